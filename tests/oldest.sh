#!/bin/sh
# The oldest versions that pyproject.toml names: an environment of their own, `cosformer check`, and the tests of operator,
# module and models. usage, from the root of the repository: [PYTHON=python3.11] [OLDEST=folder] tests/oldest.sh
set -eu
PYTHON=${PYTHON:-python3}
OLDEST=${OLDEST:-.venv-oldest}
export PIP_CONSTRAINT="$PWD/constraints-oldest.txt" PIP_DISABLE_PIP_VERSION_CHECK=1
test -x "$OLDEST/bin/python" || "$PYTHON" -m venv "$OLDEST"
"$OLDEST/bin/pip" install --quiet '.[train]' pytest hypothesis
"$OLDEST/bin/pip" freeze | grep -i -E "^($(grep -o '^[a-z-]*' constraints-oldest.txt | paste -s -d '|'))=="
"$OLDEST/bin/cosformer" check
OMP_NUM_THREADS=1 "$OLDEST/bin/python" -m pytest -p no:cacheprovider -m 'not slow' tests/ops tests/nn tests/models
