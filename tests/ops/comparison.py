"""A call of a kernel, forward and backward, against the definition written out pair by pair in float64."""

import math
from functools import cache
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
# without causality, each half of the channels looks one way; no state goes with that
BOTH_WAYS = {"causal": False}
# normalisers and their eps: beside the usual one, one above some row sums and below others
NORMALISERS = [("add", 1e-6), ("signed", 1e-6), ("none", 1e-6), ("clamp", 150.0), ("signed", 150.0)]
NOTHING = {"masked": False, "packed": False, "with_state": False}
COMBINATIONS = [
    case for case in product(FORMS, WHAT, (False, True), (False, True)) if case[:2] != ("full", "last queries")
]

NAMES = ("out", "den", "kv", "z", "dq", "dk", "dv", "dkv", "dz")
SUMS = ("den", "kv", "z", "dkv", "dz")  # never rounded to a low precision
BOUNDS = (0, 3, 3, 80, 95, 96, 130)  # short, empty, long; one of a single token that ends where chunks of 16 and 32 do


def rates(heads, channels):
    """From none over one in a million to four per token, in another order for each head."""
    some = torch.cat([torch.zeros(1), torch.logspace(-6, math.log10(4), channels - 1)])
    return torch.stack([some.roll(3 * head) for head in range(heads)])


@cache
def problem(*, relu, angles, masked, packed, with_state, lead=0, decays=True, causal=True, dtype=torch.float32,
            normaliser="clamp", eps=1e-6, sizes=(1, 4, 2, 130, 12, 10)):  # fmt: skip
    """A random call, gradients of its output and state, and what the definition makes of both, named by NAMES."""
    b, h, hk, n, d, e = sizes
    generator = torch.Generator().manual_seed(n + d)
    s, sums = n + lead, accumulator(dtype)
    q, k, v = (torch.randn(shape, generator=generator) for shape in ((b, h, n, d), (b, hk, s, d), (b, hk, s, e)))
    q, k = (q, k) if relu else (q.abs(), k.abs())
    q, k = torch.cat([q[..., :1].abs() + 0.5, q[..., 1:]], -1), torch.cat([k[..., :1].abs() + 0.5, k[..., 1:]], -1)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    features = 2 * d if angles else d
    shapes = ((b, hk, features, e), (b, hk, features)) if with_state else ()
    state = [torch.rand(shape, generator=generator).to(sums) for shape in shapes]
    mask = torch.rand(b, s, generator=generator) > 0.3 if masked else None
    if mask is not None:
        mask[:, lead + 40 : lead + 75] = False
    cu = torch.tensor(BOUNDS) if packed else None
    decay = rates(hk, d).to(sums) if decays else None
    first, length = (60 if with_state else 0), (s + 70 if angles else 0)
    # as with align="proportional": only there do queries and keys have angles of their own
    k_length = length + 30 if angles and not (causal or packed or decays) else length
    spec = AttentionSpec(relu, causal, first + lead, first, length, k_length, normaliser, eps)
    call = Call(q, k, v, *(state or (None, None)), mask, cu, decay, spec)

    leaves = [x.double().clone().requires_grad_() for x in (q, k, v, *state)]
    exact = attend_pairs(
        *leaves[:3], causal=causal, relu=relu, length=length, k_length=k_length, first=first, key_mask=mask,
        cu_seqlens=cu, decay=decay, state=leaves[3:] or None, normaliser=normaliser, eps=eps,
    )  # fmt: skip
    stateless = packed or (decays and not causal)
    parts = exact[:1] if stateless else (exact[0], *exact[2:])
    grads = [torch.randn(x.shape, generator=generator).to(sums) for x in parts]
    grads[0] = grads[0].to(dtype)
    loss = sum((x * g.double()).sum() for x, g in zip(parts, grads, strict=True))
    wanted = dict(zip(NAMES, (*exact, *torch.autograd.grad(loss, leaves)), strict=False))
    wanted = {name: x.detach() for name, x in wanted.items() if not (stateless and name in ("kv", "z"))}
    return call, grads, wanted


def compare(launch, *, place=lambda x: x, **options):
    """The largest error of each result of a kernel, relative to its largest number; ``place`` moves its tensors."""
    call, grads, wanted = problem(**options)
    given = call._replace(
        **{name: place(x) for name in ("q", "k", "v", "kv", "z", "decay") if (x := getattr(call, name)) is not None}
    )
    results = launch.forward(given)
    if len(grads) == 1:  # packed sequences leave no state, nor do those seen from both sides
        assert not results[2].any() and not results[3].any()
        grads = [*grads, *(torch.zeros_like(x) for x in results[2:])]
    found = dict(zip(NAMES, (*results, *launch.backward(given, *map(place, grads), *results)), strict=True))
    if call.key_mask is not None:
        hidden = ~call.key_mask[:, None, :, None]
        assert not any(found[name].masked_select(hidden).any() for name in ("dk", "dv")), "gradients of masked keys"
    return {
        name: ((found[name].double() - want).abs().max() / want.abs().max().clamp_min(1)).item()
        for name, want in wanted.items()
        if found[name] is not None
    }


def within(errors, limit, of_sums=None):
    """``of_sums``: the limit of SUMS, if not ``limit``."""
    for name, error in errors.items():
        assert error <= (limit if of_sums is None or name not in SUMS else of_sums), f"{name}: {error:.1e}"
