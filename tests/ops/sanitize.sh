#!/bin/sh
# Build the native kernels with AddressSanitizer and UndefinedBehaviorSanitizer and run tests against that build.
# usage, from the root of the repository: [CC=gcc|clang] tests/ops/sanitize.sh [pytest arguments]
set -eu
PYTHON=${PYTHON:-.venv/bin/python}
CC=${CC:-gcc}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Python is not built with the sanitizers, so their runtime must be a shared library that is loaded before it
if "$CC" --version | grep -q clang; then
    shared=-shared-libsan
    runtime=$("$CC" -print-file-name="libclang_rt.asan-$(uname -m).so") # has both sanitizers
else
    shared=
    runtime="$("$CC" -print-file-name=libasan.so) $("$CC" -print-file-name=libubsan.so)"
fi
echo "sanitizers of $("$CC" --version | head -n 1)"
# shellcheck disable=SC2086 # no flag is no word
"$CC" -std=gnu11 -O1 -g -fPIC -shared -fvisibility=hidden -fno-omit-frame-pointer -Wall -Wextra -Werror -Wno-psabi \
    -fsanitize=address,undefined -fno-sanitize-recover=undefined $shared \
    -o "$folder/kernels.so" src/cosformer/ops/native/*.c -lm -ldl -lpthread

# the kernels' own tests, and every test of the operator that runs them
[ $# -gt 0 ] || set -- tests/ops/test_native.py tests/ops/test_one_token.py tests/ops/test_backends.py tests/ops/test_state.py \
    tests/ops/test_errors.py tests/ops/test_precision.py tests/ops/test_nonfinite.py tests/ops/test_fuzz.py
# leaks are not reported: the interpreter and torch keep memory to the end
LD_PRELOAD="$runtime" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 COSFORMER_KERNELS="$folder/kernels.so" \
    "$PYTHON" -m pytest --capture=sys -p no:xdist -p no:cacheprovider "$@"
