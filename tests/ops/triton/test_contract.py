"""The contract of the Triton kernels: every combination of mask, packing, state, ReLU, angles and decay against the
definition written out pair by pair in float64; outputs, row sums, states, and the gradients of all inputs."""

import pytest

from ops.comparison import COMBINATIONS, FORMS, NOTHING, WHAT, compare, within

QUICK = {
    ("decay", "masked state", True, True), ("decay", "masked state", False, False), ("decay", "packed", True, True),
    ("decay", "last queries", False, True), ("decay", "packed masked", True, False),
    ("causal", "masked state", False, True), ("causal", "masked state", False, False),
    ("causal", "packed masked", False, False), ("causal", "last queries", True, True),
    ("full", "masked state", False, True), ("full", "masked state", True, False),
    ("full", "packed masked", False, True),
}  # fmt: skip
ALL = [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in COMBINATIONS]


@pytest.mark.parametrize(("form", "what", "relu", "angles"), ALL)
def test_every_combination_equals_the_definition(small, form, what, relu, angles, watch, in_nan):
    within(compare(small, relu=relu, angles=angles, place=in_nan, **FORMS[form], **(NOTHING | WHAT[what])), 2e-6)
