# `make demo` and `make test` work on a fresh machine with Python >= 3.11, make and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := all,test,oracles,docs
# isolated builds obey the same pins: an unpinned torch would bring gigabytes of CUDA packages
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: install demo test test-all test-hf test-instruction-sets test-arm test-versions test-places fuzz mutants torture coverage sanitize gpu-table build-check docs pictures model lint types format clean

install: $(STAMP)

$(STAMP): pyproject.toml setup.py constraints.txt $(wildcard src/cosformer/ops/native/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch
	$(BIN)/pip install --quiet --editable '.[$(EXTRAS)]'
	touch $@

demo: install
	$(BIN)/cosformer demo

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/pyright

test: lint types
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m 'not slow'
	$(MAKE) test-instruction-sets

test-all: lint types
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2
	$(MAKE) test-instruction-sets

# which lines of the package the tests run; the figure stands in CONTRIBUTING.md
coverage: install
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m 'not slow' --cov=cosformer --cov-report=term

# transformers' own tester mixins against our models, from a checkout of its repository:
# make test-hf TRANSFORMERS=<checkout>, of the version that is installed
test-hf: install
	@test -f "$(TRANSFORMERS)/tests/test_modeling_common.py" || { echo "test-hf: not run; give TRANSFORMERS=<checkout of the transformers repository>"; exit 2; }
	$(BIN)/pip install --quiet --target build/test-hf --no-deps parameterized httpx httpcore h11 anyio sniffio certifi idna \
		datasets pyarrow dill multiprocess xxhash pandas python-dateutil six
	PYTHONPATH="$(TRANSFORMERS):build/test-hf" OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -c /dev/null --rootdir=tests/hf -p no:cacheprovider \
		--import-mode=importlib -W ignore -q -rf tests/hf/mixins.py tests/hf/mixin_pipelines.py

# the operator's tests with the other builds of the kernels that this processor runs
test-instruction-sets: install
	PYTHON=$(BIN)/python sh tests/ops/instruction_sets.sh -n 2 -m 'not slow'

# the kernels compiled for 64-bit ARM and run under qemu, where Debian's gcc-aarch64-linux-gnu and qemu-user are installed
test-arm: install
	PYTHONPATH=tests $(BIN)/python tools/arm/run.py

# other versions of torch, transformers, numpy and Python, each in an environment of its own: gigabytes of downloads and hours;
# LINES="oldest torch-2.8.0" runs a part, and docs/versions.jsonl has what was run
test-versions:
	PIP_CONSTRAINT= $(PYTHON) tools/versions.py $(LINES)

# random calls of the operator against an oracle written apart from it: make fuzz SEED=1 COUNT=20000;
# two threads that wait for one another by spinning take five times as long
SEED ?= 0
FIRST ?= 0
COUNT ?= 2000
fuzz: install
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive PYTHONPATH=tests $(BIN)/python -m fuzz --seed $(SEED) --first $(FIRST) --count $(COUNT) --log tests/fuzz/ran.jsonl

# the checks, the demo and a part of the tests in a path with a space, without git, without root, offline and so on; ALL=1: all tests
test-places: install
	PYTHON=$(BIN)/python ALL=$(ALL) sh tests/places.sh

# every mask, selection and bound of the kernels removed or changed, one at a time: hours; make mutants TARGET=triton OPTIONS="--every 10"
TARGET ?= triton
mutants: install
	nice -n 19 $(BIN)/python tests/mutations.py $(TARGET) $(OPTIONS)

# processes killed, bytes flipped, commands at once, downloads, full disks, misuses: a tenth of the cases, or ALL=1; some minutes, or an hour
torture: install
	nice -n 19 env OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m torture --seed $(SEED) $(if $(ALL),--all)

# the native kernels under AddressSanitizer and UndefinedBehaviorSanitizer, of gcc and (where it is installed) of clang
sanitize: install
	CC=gcc PYTHON=$(BIN)/python sh tests/ops/sanitize.sh
	if command -v clang > /dev/null; then CC=clang PYTHON=$(BIN)/python sh tests/ops/sanitize.sh; \
	else echo "no clang here: its sanitizers were not run (apt-get install clang)"; fi

# what the Triton kernels need of a GPU, by compiling them for each: some minutes a target; no GPU is needed
gpu-table: install
	$(BIN)/python -m tools.triton_resources --write docs/how-to/gpu_kernels.json

# the documentation, into site/index.html; fails on any warning
docs: install
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# the model that comes with the package, trained again: about an hour of one core; goes on where it was stopped
model: install
	test -f runs/lm-stdlib/experiment.json || $(BIN)/cosformer train lm-stdlib --run runs/lm-stdlib
	$(BIN)/cosformer resume runs/lm-stdlib
	$(BIN)/python -m tools.ship_model runs/lm-stdlib src/cosformer/shipped/lm-stdlib

# docs/images, from the committed results and the formulas; docs/attention/matrices.png, from the attentions
pictures: install
	$(BIN)/python docs/images/draw.py
	$(BIN)/python docs/attention/draw.py

# sdist and wheels as a release has them, checked and installed; DIST=folder keeps them, OTHER_PYTHON=python3.13 installs one wheel into both
build-check: install
	PYTHON=$(BIN)/python OTHER_PYTHON=$(OTHER_PYTHON) DIST=$(DIST) sh tests/build_check.sh

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) site build dist *.egg-info src/*.egg-info
