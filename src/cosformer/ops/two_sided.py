"""Decay without causality: half of the channels look left, the other half right, by two causal sweeps of a linear
kernel.

The sweep to the right goes over the sequence from its end. Both give sums that are not divided yet; numerators and row
sums of both are added before the one division, so the backward pass of each sweep is the kernel's own with the whole
output and the whole row sums. The native kernels read a sequence backwards and add in place; here the others do with
copies.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from cosformer.ops.normaliser import NORMALISERS
from cosformer.ops.spec import Call, accumulator, new_output


def sweeps(call: Call) -> tuple[Call, Call]:
    """The causal calls of the channels that look left, and of those that look right.

    The second reads q, k and v from the last row to the first: mask and bounds are in this order, and the tensors, of
    which both have views, are not yet.
    """
    q, k, v, _, _, mask, cu_seqlens, decay, spec = call
    assert decay is not None
    half = q.shape[3] // 2
    spec = spec._replace(causal=True)
    left = Call(q[..., :half], k[..., :half], v, None, None, mask, cu_seqlens, decay[:, :half].contiguous(), spec)
    mask = None if mask is None else mask.flip(1)
    bounds = None if cu_seqlens is None else cu_seqlens[-1] - cu_seqlens.flip(0)
    return left, Call(q[..., half:], k[..., half:], v, None, None, mask, bounds, decay[:, half:].contiguous(), spec)


def forward(kernel: ModuleType, call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``(out, den, kv, z)`` like the kernel's; the state is zeros, as none describes both directions."""
    num, den = _sums(kernel, call)
    divisor = NORMALISERS[call.spec.normaliser].divisor(den, call.spec.eps)
    out = new_output(call.q, call.v).copy_(num / divisor[..., None])
    (batch, heads, _, d), e = call.k.shape, call.v.shape[3]
    features = d * (2 if call.spec.k_len else 1)
    return out, den, num.new_zeros(batch, heads, features, e), num.new_zeros(batch, heads, features)


def backward(
    kernel: ModuleType, call: Call, g_out: Tensor, g_kv: Tensor, g_z: Tensor, out: Tensor, den: Tensor, *_: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; none reach the state."""
    if out.dtype != den.dtype:  # a rounded output would put its error into every gradient
        out = _sums(kernel, call)[0] / NORMALISERS[call.spec.normaliser].divisor(den, call.spec.eps)[..., None]
    left, right = _sweeps(call)
    g_out = g_out.to(out.dtype)
    state: Any = _no_state(left)
    dq1, dk1, dv1, _, _ = kernel.backward(left, g_out, *state, out, den, *state)
    g_out, out, den = (x.flip(2) for x in (g_out, out, den))
    dq2, dk2, dv2, _, _ = kernel.backward(right, g_out, *state, out, den, *state)
    dq, dk = (torch.cat([a, b.flip(2)], dim=-1) for a, b in ((dq1, dq2), (dk1, dk2)))
    dv = dv1 + dv2.flip(2)
    dq, dk, dv = (grad.to(x.dtype) for grad, x in zip((dq, dk, dv), call[:3], strict=True))
    return dq, dk, dv, torch.zeros_like(g_kv), torch.zeros_like(g_z)


def _sums(kernel: ModuleType, call: Call) -> tuple[Tensor, Tensor]:
    """Numerators ``[B,H,N,E]`` and row sums ``[B,H,N]`` of both sweeps together."""
    left, right = (kernel.forward(x._replace(spec=x.spec._replace(normaliser="none")))[:2] for x in _sweeps(call))
    return left[0] + right[0].flip(2), left[1] + right[1].flip(2)


def _sweeps(call: Call) -> tuple[Call, Call]:
    """The sweeps of a call, as calls that any kernel takes."""
    q, k, v = (x.to(accumulator(x.dtype)) for x in call[:3])  # sums of a half would lose what the other cancels
    left, right = sweeps(call._replace(q=q, k=k, v=v))
    q, k, v = (x.flip(2) for x in right[:3])
    return left, right._replace(q=q, k=k, v=v)


def _no_state(call: Call) -> tuple[Tensor, Tensor]:
    (batch, heads, _, d), e = call.k.shape, call.v.shape[3]
    features = d * (2 if call.spec.k_len else 1)
    return call.k.new_zeros(batch, heads, features, e), call.k.new_zeros(batch, heads, features)
