"""The contract of the Triton kernels: every combination of mask, packing, state, ReLU, angles and decay against the
definition written out pair by pair in float64; outputs, row sums, states, and the gradients of all inputs."""

from itertools import product

import pytest

from ops.triton.comparison import compare, within

# forms of a call: causal with and without decay, and full
FORMS = {"decay": {}, "causal": {"decays": False}, "full": {"decays": False, "causal": False}}
# masks, packings, states; packed sequences have no state
WHAT = {
    "whole": {},
    "masked": {"masked": True},
    "state": {"with_state": True},
    "masked state": {"masked": True, "with_state": True},
    "packed": {"packed": True},
    "packed masked": {"packed": True, "masked": True},
    "last queries": {"lead": 70, "masked": True, "with_state": True},
}
NOTHING = {"masked": False, "packed": False, "with_state": False}
QUICK = {
    ("decay", "masked state", True, True), ("decay", "masked state", False, False), ("decay", "packed", True, True),
    ("decay", "last queries", False, True), ("decay", "packed masked", True, False),
    ("causal", "masked state", False, True), ("causal", "masked state", False, False),
    ("causal", "packed masked", False, False), ("causal", "last queries", True, True),
    ("full", "masked state", False, True), ("full", "masked state", True, False),
    ("full", "packed masked", False, True),
}  # fmt: skip
ALL = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for case in product(FORMS, WHAT, (False, True), (False, True))
    if case[:2] != ("full", "last queries")
]


@pytest.mark.parametrize(("form", "what", "relu", "angles"), ALL)
def test_every_combination_equals_the_definition(small, form, what, relu, angles, watch, in_nan):
    within(compare(small, relu=relu, angles=angles, place=in_nan, **FORMS[form], **(NOTHING | WHAT[what])), 2e-6)
