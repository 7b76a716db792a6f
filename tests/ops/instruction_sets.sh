#!/bin/sh
# Run the operator's tests with every build of the native kernels that this processor runs, but the one that `make test` takes.
# usage, from the root of the repository: tests/ops/instruction_sets.sh [pytest arguments]
set -eu
PYTHON=${PYTHON:-.venv/bin/python}
others=$("$PYTHON" -c "
from cosformer.ops.native.library import find
library = find()[0]
print(*(name for name in library.instruction_sets if name != library.instructions) if library else ())")
for name in $others; do
    echo "tests/ops with COSFORMER_INSTRUCTION_SET=$name"
    COSFORMER_INSTRUCTION_SET=$name OMP_NUM_THREADS=1 "$PYTHON" -m pytest "$@" --ignore tests/ops/test_fuzz.py tests/ops # whose cases choose their build themselves
done
