#!/bin/sh
# Seconds of a short training on a quiet machine and beside a program that takes one core, by how OpenMP's threads wait:
# as our commands set it, spinning without end (as before), and sleeping at once.
# usage, from the root of the repository, with nothing else running: sh tests/busy_machine.sh
set -eu
PYTHON=${PYTHON:-.venv/bin/python}
folder=$(mktemp -d)
other=
trap 'rm -rf "$folder"; [ -z "$other" ] || kill "$other"' EXIT

"$PYTHON" -m cosformer data get python >"$folder/data" 2>&1  # prepared before anything is timed
for state in quiet busy; do
    if [ "$state" = busy ]; then
        "$PYTHON" -c "while True: pass" &
        other=$!
    fi
    for policy in ours active passive; do
        for attention in cosformer softmax; do
            for repeat in 1 2 3; do
                [ "$policy" = ours ] && unset OMP_WAIT_POLICY || export OMP_WAIT_POLICY=$policy
                start=$("$PYTHON" -c "import time; print(time.time())")
                "$PYTHON" -m cosformer train lm-stdlib-small --quiet --model.attention $attention --train.steps 20 --train.tracker none \
                    --run "$folder/$state-$policy-$attention-$repeat" >"$folder/out" 2>&1
                "$PYTHON" -c "import sys, time; print(*sys.argv[2:], f'{time.time() - float(sys.argv[1]):.1f} s')" \
                    "$start" $state $policy $attention $repeat
            done
        done
    done
done
