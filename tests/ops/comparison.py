"""A call of a kernel, forward and backward, against the definition written out pair by pair in float64."""

import math
from itertools import product

import torch

from cosformer.ops.spec import AttentionSpec, Call, accumulator
from ops.definition import attend_pairs

# The contract of all kernels: each form with each of these, with and without ReLU and angles. Packed sequences have no
# state, and what is not causal has no last queries.
FORMS = {"decay": {}, "causal": {"decays": False}, "full": {"decays": False, "causal": False}}
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
COMBINATIONS = [
    case for case in product(FORMS, WHAT, (False, True), (False, True)) if case[:2] != ("full", "last queries")
]

NAMES = ("out", "den", "kv", "z", "dq", "dk", "dv", "dkv", "dz")
BOUNDS = (0, 3, 3, 80, 81, 130)


def rates(heads, channels):
    """From none over one in a million to four per token, in another order for each head."""
    some = torch.cat([torch.zeros(1), torch.logspace(-6, math.log10(4), channels - 1)])
    return torch.stack([some.roll(3 * head) for head in range(heads)])


def compare(launch, *, relu, angles, masked, packed, with_state, lead=0, decays=True, causal=True, dtype=torch.float32,
            normaliser="clamp", sizes=(1, 4, 2, 130, 12, 10), place=lambda x: x):  # fmt: skip
    """The largest error of each result, relative to its largest number."""
    b, h, hk, n, d, e = sizes
    generator = torch.Generator().manual_seed(n + d)
    s = n + lead
    q, k, v = (torch.randn(shape, generator=generator) for shape in ((b, h, n, d), (b, hk, s, d), (b, hk, s, e)))
    q, k = (q, k) if relu else (q.abs(), k.abs())
    q, k = torch.cat([q[..., :1].abs() + 0.5, q[..., 1:]], -1), torch.cat([k[..., :1].abs() + 0.5, k[..., 1:]], -1)
    q, k, v = (place(x.to(dtype)) for x in (q, k, v))
    features = 2 * d if angles else d
    shapes = ((b, hk, features, e), (b, hk, features))
    sums = accumulator(dtype)
    state = [place(torch.rand(shape, generator=generator).to(sums)) for shape in shapes] if with_state else None
    mask = torch.rand(b, s, generator=generator) > 0.3 if masked else None
    if mask is not None:
        mask[:, lead + 40 : lead + 75] = False
    cu = torch.tensor(BOUNDS) if packed else None
    decay = place(rates(hk, d).to(sums)) if decays else None
    first, length = (60 if with_state else 0), (s + 70 if angles else 0)
    p = AttentionSpec(relu, causal, first + lead, first, length, length, normaliser, 1e-6)
    given = Call(q, k, v, *(state or (None, None)), mask, cu, decay, p)
    results = launch.forward(given)
    grads = [torch.randn(x.shape, generator=generator).to(sums) for x in (results[0], *results[2:])]
    if packed:  # leaves no state
        assert not results[2].any() and not results[3].any()
        grads[1:] = [torch.zeros_like(x) for x in grads[1:]]
    grads[0] = grads[0].to(dtype)
    got = launch.backward(given, *(place(x) for x in grads), *results)

    leaves = [x.double().requires_grad_() for x in (q, k, v, *(state or ()))]
    exact = attend_pairs(
        *leaves[:3], causal=causal, relu=relu, length=length, first=first, key_mask=mask, cu_seqlens=cu, decay=decay,
        state=leaves[3:] or None, normaliser=normaliser,
    )  # fmt: skip
    loss = sum((x * g.double()).sum() for x, g in zip((exact[0], *exact[2:]), grads, strict=True))
    wanted = [*exact, *torch.autograd.grad(loss, leaves)]
    found = dict(zip(NAMES, (*results, *got), strict=True))
    if mask is not None:
        hidden = ~mask[:, None, :, None]
        assert not any(found[name].masked_select(hidden).any() for name in ("dk", "dv")), "gradients of masked keys"
    errors = {}
    for name, want in zip(NAMES, wanted, strict=False):
        if found[name] is not None and not (packed and name in ("kv", "z")):
            errors[name] = ((found[name].double() - want).abs().max() / want.abs().max().clamp_min(1)).item()
    return errors


def within(errors, limit):
    for name, error in errors.items():
        assert error <= limit, f"{name}: {error:.1e}"
