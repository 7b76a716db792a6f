"""How many digits a mean deserves: as many as its standard error leaves standing."""

import math


def digits_of(error: float) -> int:
    """Digits behind the point up to the second digit of ``error``, which is above 0."""
    return max(0, 1 - math.floor(math.log10(error)))
