#!/bin/sh
# Build wheel and sdist, install the sdist into an empty environment with a compiler and without one, and ask which backend runs.
# usage, from the root of the repository: tests/build_check.sh [compiler|no-compiler]   (without a word: both)
# PYTHON names an interpreter with the `build` package.
set -eu
only=${1:-both}
PYTHON=${PYTHON:-.venv/bin/python}
# isolated builds obey the same pins: an unpinned torch would bring gigabytes of CUDA packages
PIP_CONSTRAINT=${PIP_CONSTRAINT:-$PWD/constraints.txt}
export PIP_CONSTRAINT
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$PYTHON" -m build --outdir "$folder/dist" .
ls -l "$folder/dist"
for model in "$("$PYTHON" -m zipfile -l "$folder"/dist/*.whl)" "$("$PYTHON" -m tarfile -l "$folder"/dist/*.tar.gz)"; do
    echo "$model" | grep -q "shipped/lm-stdlib/best/model.safetensors" || { echo "the trained model is not in it"; exit 1; }
done

check() { # name of the environment, compiler, the backend it must say
    [ "$only" = both ] || [ "$only" = "$1" ] || return 0
    "$PYTHON" -m venv "$folder/$1"
    CC=$2 "$folder/$1/bin/pip" install --quiet --no-cache-dir "$folder"/dist/*.tar.gz
    (cd "$folder" && "$folder/$1/bin/cosformer" check) >"$folder/$1.txt"
    echo "$1:" && grep "^ *float32  .*$3 from" "$folder/$1.txt" || { cat "$folder/$1.txt"; echo "$1: $3 was wanted"; exit 1; }
}
check compiler "${CC:-cc}" native
check no-compiler false chunked
