"""What every call of the family checks before a kernel sees a tensor: kernels read memory by these shapes."""

from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from cosformer.ops.decay import FASTEST
from cosformer.ops.spec import accumulator
from cosformer.ops.state import LinearState

LONGEST = 2**53
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_SMALLEST = {dtype: torch.finfo(accumulator(dtype)).tiny for dtype in _DTYPES}


def check_tensors(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> None:
    """q [B,H,N,D], k [B,Hk,S,D], v [B,Hk,S,E] and the mask [B,S] fit together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError(
                f"{name} has {x.dim()} dimensions, shape {tuple(x.shape)}; expected 4: [batch, heads, length, channels]"
            )
        if x.dtype not in _DTYPES:
            raise ValueError(f"{name} is {x.dtype}; expected float64, float32, bfloat16 or float16")
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k, v are on {q.device}, {k.device}, {v.device}; move them to one device")
    b, h, _, d = q.shape
    hk, s = k.shape[1], k.shape[2]
    if k.shape[0] != b or v.shape[0] != b:
        raise ValueError(f"q, k, v have batch sizes {b}, {k.shape[0]}, {v.shape[0]}; they must be equal")
    if k.shape[3] != d:
        raise ValueError(f"q has {d} channels and k has {k.shape[3]}; they must be equal (v may differ)")
    if v.shape[1] != hk or v.shape[2] != s:
        raise ValueError(f"k has {hk} heads of {s} positions, v has {v.shape[1]} of {v.shape[2]}; they must be equal")
    if hk == 0 or h % hk:
        raise ValueError(f"q has {h} heads, k and v have {hk}; the first must be a multiple of the second")
    if d == 0 or v.shape[3] == 0:
        raise ValueError(f"q and v have {d} and {v.shape[3]} channels; both need at least 1")
    if key_mask is not None:
        if key_mask.dtype != torch.bool:
            raise ValueError(f"key_mask is {key_mask.dtype}; expected bool, True = may be attended")
        if key_mask.shape != (b, s):
            raise ValueError(
                f"key_mask has shape {tuple(key_mask.shape)}; expected [batch, key positions] = [{b}, {s}]"
            )
        if key_mask.device != q.device:
            raise ValueError(f"key_mask is on {key_mask.device} and q on {q.device}; move them to one device")


def check_whole(name: str, value: int, least: int) -> None:
    """A length or a position: a whole number that float64, in which angles are computed, holds exactly."""
    if not isinstance(value, (int, torch.SymInt)) and not hasattr(value, "__index__"):
        raise ValueError(f"{name}={value!r} is a {type(value).__name__}; pass a whole number")
    if value < least:
        raise ValueError(f"{name}={value}; it must be at least {least}")
    if value > LONGEST:
        raise ValueError(f"{name}={value}; it must be at most 2**53, up to which angles are exact")


def check_eps(eps: float, dtype: torch.dtype) -> float:
    """``eps`` that can be divided by in the sums' dtype: at least its smallest normal number."""
    if not eps > 0:
        raise ValueError(f"eps={eps}; it must be above 0 so that rows with nothing to attend to give zeros")
    return max(eps, _SMALLEST[dtype])


def check_room(seen: int, tokens: int, max_len: int) -> None:
    """Raise when a state would run past ``max_len``."""
    if max_len and seen + tokens > max_len:
        raise ValueError(
            f"the state has seen {seen} tokens and {tokens} more exceed max_len={max_len}, past which weights turn "
            "negative; start with a larger max_len, or begin a new state"
        )


def check_bounds(cu_seqlens: Tensor, n: int, max_len: int) -> None:
    """Packed sequences lie one behind the other from 0 to ``n``, none longer than ``max_len`` (0: no limit)."""
    ends = cu_seqlens.tolist()
    if ends[0] != 0 or ends[-1] != n or any(a > b for a, b in pairwise(ends)):
        raise ValueError(
            f"cu_seqlens must rise from 0 to N={n}, got {ends if len(ends) < 12 else [*ends[:4], '...', *ends[-4:]]}"
        )
    longest = max((b - a for a, b in pairwise(ends)), default=0)
    if max_len and longest > max_len:
        raise ValueError(f"packed sequence of {longest} tokens exceeds max_len={max_len}; use a larger max_len")


def check_state(state: LinearState, k: Tensor, v: Tensor, features: int, max_len: int | None) -> None:
    """The state was made by calls with the sizes, the dtype and the max_len of this one."""
    if not isinstance(state, LinearState):
        raise ValueError(f"state is a {type(state).__name__}; pass what return_state=True gave, or None")
    expected = (k.shape[0], k.shape[1], features, v.shape[3])
    if state.kv.shape != expected or state.z.shape != expected[:3]:
        raise ValueError(
            f"state holds kv {tuple(state.kv.shape)} and z {tuple(state.z.shape)}; k and v of this call need"
            f" [B, Hk, F, E] = {list(expected)} and [B, Hk, F] = {list(expected[:3])}"
        )
    if state.max_len != max_len:
        raise ValueError(
            f"state was made with max_len={state.max_len}, this call has max_len={max_len}; they must be equal"
        )
    for x in (state.kv, state.z):
        if x.device != k.device:
            raise ValueError(f"state is on {x.device} and k on {k.device}; move it with state.to(...)")
        if (x.dtype == torch.float64) != (k.dtype == torch.float64):
            raise ValueError(f"state is {x.dtype} and k is {k.dtype}; move it with state.to(dtype=...)")


def check_decay(decay: Tensor, k: Tensor) -> Tensor:
    """Rates ``[Hk,D]`` from 0 to 4 per token, in the accumulator's dtype."""
    if not isinstance(decay, Tensor):
        raise ValueError(f"decay is a {type(decay).__name__}; pass a tensor of rates [key heads, channels]")
    if decay.requires_grad:
        raise ValueError("decay requires a gradient, but its rates are fixed; pass decay.detach()")
    expected = (k.shape[1], k.shape[3])
    if decay.shape != expected or not decay.is_floating_point():
        raise ValueError(
            f"decay is {decay.dtype} of shape {tuple(decay.shape)}; expected floats [key heads, channels] = "
            f"{list(expected)}"
        )
    if decay.device != k.device:
        raise ValueError(f"decay is on {decay.device} and k on {k.device}; move them to one device")
    if torch._C._functorch.is_batchedtensor(decay):  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError("decay has no batch, so it cannot be vmapped; call once per batch item instead")
    # values are not known while tracing or on the meta device
    if not (torch.compiler.is_compiling() or decay.is_meta):
        wrong = ~((decay >= 0) & (decay <= FASTEST))
        if wrong.any():
            head, channel = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"decay of head {head}, channel {channel} is {decay[head, channel].item()}; rates are from 0 to "
                f"{FASTEST:g} a token"
            )
    return decay.to(accumulator(k.dtype))


def check_two_sided(q: Tensor, k: Tensor, **options: Any) -> None:
    """Decay without causality looks left with half of the channels and right with the others."""
    names = [name for name, value in options.items() if value]
    if q.shape[2] != k.shape[2]:
        names.insert(0, f"N={q.shape[2]} queries over S={k.shape[2]} keys")
    if names:
        raise ValueError(
            f"decay without causal is for self-attention over whole sequences and does not go with {', '.join(names)}; "
            "pass causal=True, or no decay"
        )
    if q.shape[3] % 2:
        raise ValueError(
            "decay without causal looks left with one half of the channels and right with the other, and q has "
            f"{q.shape[3]} channels; use an even number"
        )


def check_rates(state: LinearState, decay: Tensor | None) -> None:
    """The state was made with the rates of this call; none are rates of 0."""
    if state.decay is decay or torch.compiler.is_compiling():
        return
    theirs, ours = (None if x is None or x.is_meta else x for x in (state.decay, decay))
    one, other = (theirs, ours) if ours is None else (ours, theirs)
    if one is None:
        return
    other = torch.zeros_like(one) if other is None else other
    if one.shape != other.shape or one.device != other.device or not torch.equal(one, other):
        raise ValueError(
            "the state was made with other rates of decay than this call has; pass the same decay, or begin a new state"
        )


def autocast_enabled(device: torch.device) -> bool:
    """Asked so that every device has an answer: torch raises for those that know no autocast, such as meta."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A region in which tensors of this device keep their dtypes."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)
