"""Student's t distribution in plain Python: what the rule needs of it, without a library for statistics."""

import math


def t_cdf(t: float, freedom: int) -> float:
    """P(T <= t) for ``freedom`` degrees of freedom, by the closed sums for whole numbers (Abramowitz and Stegun 26.7.3-4)."""
    if math.isinf(t):
        return 0.0 if t < 0 else 1.0
    angle = math.atan2(abs(t), math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    if freedom % 2:
        term, total = cosine, cosine if freedom > 1 else 0.0
        for k in range(3, freedom, 2):
            term *= cosine * cosine * (k - 1) / k
            total += term
        inside = 2 / math.pi * (angle + sine * total)
    else:
        term, total = 1.0, 1.0
        for k in range(2, freedom, 2):
            term *= cosine * cosine * (k - 1) / k
            total += term
        inside = sine * total
    return (1 + inside) / 2 if t >= 0 else (1 - inside) / 2


def t_quantile(share: float, freedom: int) -> float:
    """The t below which ``share`` of the distribution lies, by halving."""
    if not 0 < share < 1:
        raise ValueError(f"share={share}; it lies between 0 and 1")
    low, high = -1.0, 1.0
    while t_cdf(low, freedom) > share:
        low *= 2
    while t_cdf(high, freedom) < share:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < share else (low, middle)
    return (low + high) / 2
