#!/bin/sh
# The checks, the demo and tests in places where other projects break: a folder of the project's own name, a path with a space and a
# letter that is not ASCII, an unpacked archive without history, a user that is not root with a home that cannot be written, TMPDIR
# elsewhere, CI set and unset, no network, a core that another program takes. Sources and kernels are copies of HEAD; the
# environment is shared. With ALL=1 all of `make test`, without a part of it.
# usage, from the root of the repository: [PYTHON=.venv/bin/python] [ALL=1] [PLACES="cosformer archive"] sh tests/places.sh
set -u
PYTHON=$(cd "$(dirname "${PYTHON:-.venv/bin/python}")" && pwd)/python
PATH=$(dirname "$PYTHON"):$PATH
TESTS="tests/ops/test_graphs.py tests/test_architecture.py tests/test_output_file.py tests/train/test_altered_records.py tests/data/test_download.py"
[ -z "${ALL:-}" ] || TESTS=tests
PLACES=${PLACES:-cosformer letters archive user elsewhere ci offline busy}
root=$PWD
folder=$(mktemp -d)
chmod 755 "$folder"
other=
trap '[ -z "$other" ] || kill "$other"; chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
failed=0

copy() { # HEAD into the folder $1: as a clone or, for the place `archive`, as git archive gives it
    mkdir -p "$1"
    if [ "$name" = archive ]; then git -C "$root" archive HEAD | tar -x -C "$1"; else git clone -q "$root" "$1"; fi
    cp "$root"/src/cosformer/ops/native/*.so "$1/src/cosformer/ops/native/"
}

step() { # the step's name and its command, in the place
    log="$folder/$name-$1.log"
    started=$(date +%s)
    what=$1
    shift
    if (cd "$place" && $before "$@") >"$log" 2>&1; then
        echo "$name: $what passed, $(($(date +%s) - started)) s"
    else
        echo "$name: $what FAILED"
        tail -20 "$log"
        failed=1
    fi
}

for name in $PLACES; do
    place="$folder/$name/tree"
    before="env -u CI"
    case $name in
        cosformer) place="$folder/cosformer" ;;
        letters) place="$folder/a place für it" ;;
        ci) before="env CI=true" ;;
        elsewhere) mkdir -p "$folder/other tmp" && export TMPDIR="$folder/other tmp" ;;
        user)
            home="$folder/user/home"
            mkdir -p "$home" && chmod 555 "$home"
            if [ "$(id -u)" != 0 ]; then
                before="env HOME=$home"
            elif setpriv --reuid 65534 --regid 65534 --clear-groups env "$PYTHON" -c pass 2>/dev/null; then
                before="setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=$home"
            else # another user cannot even read this interpreter: root, without what makes it root
                before="setpriv --bounding-set=-all --inh-caps=-all env HOME=$home"
            fi ;;
        offline)
            # what is asked for by mistake would otherwise come from a cache or over the network
            if unshare -rn true 2>/dev/null; then before="unshare -rn"; else before="env https_proxy=http://127.0.0.1:1 http_proxy=http://127.0.0.1:1"; fi ;;
        busy)
            sh -c 'while :; do :; done' &
            other=$! ;;
    esac
    copy "$place"
    case $before in *reuid*) chown -R 65534:65534 "$place" ;; esac
    export PYTHONPATH="$place/src:$place:$place/tests" OMP_NUM_THREADS=1
    step check "$PYTHON" -m cosformer check
    step demo "$PYTHON" -m cosformer demo --steps 2
    step tests "$PYTHON" -m pytest -q -x -p no:cacheprovider -m "not slow" $TESTS
    [ "$name" != busy ] || { kill "$other"; other=; }
    unset TMPDIR
done
exit $failed
