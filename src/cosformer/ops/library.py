"""The linear kernels as torch operators, so that torch.compile, torch.export and vmap see one node each.

``cosformer::linear_forward`` and ``cosformer::linear_backward`` take the fields of :class:`Problem` one by one. ``start`` is a
scalar tensor added to both first positions: what a compiled graph knows of the state's position.
"""

from typing import Any

import torch
from torch import Tensor

from cosformer.ops.backends import kernel
from cosformer.ops.checks import check_bounds
from cosformer.ops.problem import Problem, accumulator, new_output

_LIBRARY = torch.library.Library("cosformer", "DEF")
_PROBLEM = (
    "Tensor? start, bool relu, bool causal, SymInt q_first, SymInt k_first, SymInt q_len, SymInt k_len, "
    "str normaliser, float eps, str backend"
)
_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? kv, Tensor? z, Tensor? key_mask, Tensor? cu_seqlens"
_LIBRARY.define(f"linear_forward({_INPUTS}, {_PROBLEM}) -> (Tensor, Tensor, Tensor, Tensor)")
_LIBRARY.define(
    f"linear_backward(Tensor g_out, Tensor g_kv, Tensor g_z, {_INPUTS}, Tensor out, Tensor den, "
    f"Tensor kv_next, Tensor z_next, {_PROBLEM})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
SCALARS = 10  # fields of _PROBLEM


def problem_of(
    start: Tensor | None, relu: bool, causal: bool, q_first: int, k_first: int, *rest: Any
) -> tuple[Problem, str]:
    *settings, backend = rest
    shift = 0 if start is None else int(start)
    # other queries' positions do not move with the state
    return Problem(relu, causal, q_first + shift if causal else q_first, k_first + shift, *settings), backend


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: Tensor | None,
    z: Tensor | None,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    *scalars: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    problem, backend = problem_of(*scalars)
    if cu_seqlens is not None:  # a compiled caller could not look at its values
        check_bounds(cu_seqlens, q.shape[2], problem.k_len)
    return kernel(backend).forward(q, k, v, kv, z, key_mask, cu_seqlens, problem)


def _backward(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    tensors, scalars = args[:-SCALARS], args[-SCALARS:]
    problem, backend = problem_of(*scalars)
    return kernel(backend).backward(*tensors, problem)


_LIBRARY.impl("linear_forward", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("linear_backward", _backward, "CompositeExplicitAutograd")


@torch.library.register_fake("cosformer::linear_forward", lib=_LIBRARY)
def _(q: Tensor, k: Tensor, v: Tensor, kv: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    k_len = rest[-4]
    acc = accumulator(q.dtype)
    features = k.shape[-1] if isinstance(k_len, int) and k_len == 0 else 2 * k.shape[-1]
    state = (*k.shape[:2], features)
    return (
        q.new_empty(*q.shape[:3], v.shape[-1]) if rest[-1] == "native" else new_output(q, v),
        q.new_empty(q.shape[:3], dtype=acc),
        q.new_empty(*state, v.shape[-1], dtype=acc),
        q.new_empty(state, dtype=acc),
    )


@torch.library.register_fake("cosformer::linear_backward", lib=_LIBRARY)
def _(
    g_out: Tensor, g_kv: Tensor, g_z: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    return dq, dk, dv, torch.empty_like(g_kv), torch.empty_like(g_z)


def _fold(x: Any, dim: int | None, size: int) -> Any:
    """A tensor with its vmapped dimension folded into the batch; unbatched ones repeat."""
    if not isinstance(x, Tensor):
        return x
    x = x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.flatten(0, 1)


def _vmap_rule(operator: Any, first_plain: int) -> Any:
    """The batching rule of an operator whose arguments from ``first_plain`` on have no batch (start and scalars)."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        cu_seqlens = args[first_plain - 1] if operator is torch.ops.cosformer.linear_forward else args[9]
        if cu_seqlens is not None:
            raise ValueError("cu_seqlens has no batch, so it cannot be vmapped; call once per batch item instead")
        if isinstance(args[first_plain], Tensor) and in_dims[first_plain] is not None:
            raise ValueError(
                "a state's position cannot be vmapped; all batch items must have seen the same number of tokens"
            )
        folded = [_fold(x, d, info.batch_size) for x, d in zip(args[:first_plain], in_dims, strict=False)]
        results = operator(*folded, *args[first_plain:])
        return tuple(x.unflatten(0, (info.batch_size, -1)) for x in results), (0,) * len(results)

    return rule


torch.library.register_vmap(
    "cosformer::linear_forward", _vmap_rule(torch.ops.cosformer.linear_forward, 7), lib=_LIBRARY
)
torch.library.register_vmap(
    "cosformer::linear_backward", _vmap_rule(torch.ops.cosformer.linear_backward, 14), lib=_LIBRARY
)


# `advance` moves a state's position inside a compiled graph, where Python cannot look at the value to refuse it
_LIBRARY.define("advance(Tensor position, SymInt tokens, SymInt max_len) -> Tensor")


def check_room(seen: int, tokens: int, max_len: int) -> None:
    """Raise when a state would run past ``max_len``."""
    if max_len and seen + tokens > max_len:
        raise ValueError(
            f"the state has seen {seen} tokens and {tokens} more exceed max_len={max_len}, past which weights turn negative;"
            " start with a larger max_len, or begin a new state"
        )


def _advance(position: Tensor, tokens: int, max_len: int) -> Tensor:
    check_room(int(position), tokens, max_len)
    return position + tokens


_LIBRARY.impl("advance", _advance, "CompositeExplicitAutograd")


@torch.library.register_fake("cosformer::advance", lib=_LIBRARY)
def _(position: Tensor, tokens: int, max_len: int) -> Tensor:
    return torch.empty_like(position)
