"""The linear kernels inside torch: registered operators for compilers and vmap, autograd, and when neither is needed.

``cosformer::linear_forward`` and ``cosformer::linear_backward`` take the fields of a :class:`Call`, the specification's
one by one. ``start`` is a scalar tensor, the tokens that the state has seen where only a compiled graph knows them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cosformer.ops import native, two_sided
from cosformer.ops.backends import KERNELS
from cosformer.ops.checks import check_bounds, check_room
from cosformer.ops.dense import dense_forward, dense_state, hide, packed_lengths
from cosformer.ops.spec import SCHEMA, AttentionSpec, Call, accumulator, new_output

_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? kv, Tensor? z, Tensor? key_mask, Tensor? cu_seqlens, Tensor? decay"
_RESULTS = "Tensor out, Tensor den, Tensor kv_next, Tensor z_next"
_LIBRARY = torch.library.Library("cosformer", "DEF")
_LIBRARY.define(f"linear_forward({_INPUTS}, Tensor? start, {SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor)")
_LIBRARY.define(
    f"linear_backward({_INPUTS}, Tensor g_out, Tensor g_kv, Tensor g_z, {_RESULTS}, Tensor? start, {SCHEMA})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
# `advance` moves a state's position inside a compiled graph, where Python cannot look at the value to refuse it
_LIBRARY.define("advance(Tensor position, SymInt tokens, SymInt max_len) -> Tensor")


def linear_kernel(call: Call, start: Tensor | None, *, direct: bool) -> tuple[Tensor, ...]:
    """``(out, den, kv, z)`` by the backend of ``call.spec``, differentiable; ``direct``: bypass the dispatcher."""
    if direct:
        return run_forward(call)
    if (torch.compiler.is_compiling() or torch._C._is_tracing()) and not needs_gradients(*call.tensors):
        return torch.ops.cosformer.linear_forward(*call.tensors, start, *call.spec)
    return LinearKernel.apply(*call.tensors, start, call.spec)  # pyright: ignore[reportReturnType]


def run_forward(call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    kernel = KERNELS[call.spec.backend]
    if call.looks_both_ways and kernel is not native:
        return two_sided.forward(kernel, call)
    return kernel.forward(call)


def run_backward(call: Call, *gradients_and_results: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    kernel = KERNELS[call.spec.backend]
    if call.looks_both_ways and kernel is not native:
        return two_sided.backward(kernel, call, *gradients_and_results)
    return kernel.backward(call, *gradients_and_results)


def needs_gradients(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def every_call_is_observed() -> bool:
    """Whether a compiler, tracer, transform or mode has to see every call, whatever its tensors."""
    # the compiler first: it cannot trace the questions about the others
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def can_bypass_dispatcher(*tensors: Tensor | None) -> bool:
    """Whether a kernel may be called directly: no gradient, compiler, tracer, transform or mode has to see the call."""
    if every_call_is_observed() or needs_gradients(*tensors):
        return False
    # meta tensors have shapes alone, which the registered operators know without a walk through the chunks
    return all(x is None or (type(x) in (Tensor, torch.nn.Parameter) and not x.is_meta) for x in tensors)


class LinearKernel(torch.autograd.Function):
    """``(*call.tensors, start, spec) -> (out, den, kv, z)``.

    Saves q, k, v, the incoming state, out and the row sums: O(N (D + E)). Forward mode is not defined and raises.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, ...]:
        *tensors, spec = args
        return torch.ops.cosformer.linear_forward(*tensors, *spec)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.spec = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx: Any, g_out: Tensor, g_den: Tensor, g_kv: Tensor, g_z: Tensor) -> tuple[Any, ...]:  # pyright: ignore
        *tensors, start, out, den, kv_next, z_next = ctx.saved_tensors
        call = Call._make((*tensors, ctx.spec))
        rest = (g_out, g_kv, g_z, out, den, kv_next, z_next)
        if torch.compiler.is_compiling():  # a compiled graph has first derivatives only
            grads = torch.ops.cosformer.linear_backward(*tensors, *rest, start, *call.spec)
        elif can_bypass_dispatcher(*tensors, *rest):
            grads = run_backward(call, *rest)
        else:
            grads = LinearKernelBackward.apply(*tensors, *rest, start, call.spec)
        dq, dk, dv, dkv, dz = grads  # pyright: ignore
        state = (dkv, dz) if call.kv is not None else (None, None)
        return dq, dk, dv, *state, None, None, None, None, None


class LinearKernelBackward(torch.autograd.Function):
    """The backward pass as a function that can be differentiated once more, at O(N^2) memory."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, ...]:
        *tensors, spec = args
        return torch.ops.cosformer.linear_backward(*tensors, *spec)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        # out, den and the next state are functions of the other inputs: the definition below accounts for them
        *tensors, _out, _den, _kv_next, _z_next, start, ctx.spec = inputs
        ctx.save_for_backward(*tensors, start)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        *tensors, g_out, g_kv, g_z, start = ctx.saved_tensors
        call = Call._make((*tensors, _after(start, ctx.spec)))
        state = () if call.kv is None else (call.kv, call.z)
        lengths = packed_lengths(call.cu_seqlens, call.q.shape[2])
        # packed sequences leave no state, and those seen from both sides
        keeps = lengths is None and (call.decay is None or call.spec.causal)

        def definition(q: Tensor, k: Tensor, v: Tensor, kv: Any = None, z: Any = None) -> tuple[Tensor, ...]:
            acc = accumulator(q.dtype)
            keys, values = hide(k.to(acc), call.key_mask), hide(v.to(acc), call.key_mask)
            wide = Call(q.to(acc), keys, values, kv, z, None, None, call.decay, call.spec)
            out = dense_forward(wide, lengths)
            kv, z = dense_state(wide)
            return out.to(v.dtype), kv * keeps, z * keeps

        def first_derivative(g_out: Tensor, g_kv: Tensor, g_z: Tensor, *arguments: Tensor) -> Any:
            return torch.func.vjp(definition, *arguments)[1]((g_out, g_kv, g_z))

        inputs = (g_out, g_kv, g_z, call.q, call.k, call.v, *state)
        wanted = grads[: 3 + len(state)]
        second = torch.func.vjp(first_derivative, *inputs)[1](wanted)
        # one for each argument of forward: the tensors of the call, three gradients, four results, start, spec
        return *second[3:], *[None] * (len(tensors) - len(second) + 3), *second[:3], *[None] * 6


def _after(start: Tensor | None, spec: AttentionSpec) -> AttentionSpec:
    """``spec`` after the tokens that a compiled graph's state has seen."""
    return spec if start is None else spec.moved(int(start))


def _forward(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *tensors, start = args[: -len(AttentionSpec._fields)]
    call = Call._make((*tensors, _after(start, AttentionSpec(*args[-len(AttentionSpec._fields) :]))))
    if call.cu_seqlens is not None:  # a compiled caller could not look at its values
        check_bounds(call.cu_seqlens, call.q.shape[2], call.spec.k_len)
    return run_forward(call)


def _backward(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    *tensors, start = args[: -len(AttentionSpec._fields)]
    spec, inputs = _after(start, AttentionSpec(*args[-len(AttentionSpec._fields) :])), len(Call._fields) - 1
    return run_backward(Call._make((*tensors[:inputs], spec)), *tensors[inputs:])


def _advance(position: Tensor, tokens: int, max_len: int) -> Tensor:
    check_room(int(position), tokens, max_len)
    return position + tokens


_LIBRARY.impl("linear_forward", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("linear_backward", _backward, "CompositeExplicitAutograd")
_LIBRARY.impl("advance", _advance, "CompositeExplicitAutograd")


@torch.library.register_fake("cosformer::linear_forward", lib=_LIBRARY)
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    spec, acc = AttentionSpec(*rest[-len(AttentionSpec._fields) :]), accumulator(q.dtype)
    angles = not isinstance(spec.k_len, int) or spec.k_len > 0
    state = (*k.shape[:2], k.shape[-1] * (2 if angles else 1))
    return (
        q.new_empty(*q.shape[:3], v.shape[-1]) if spec.backend == "native" else new_output(q, v),
        q.new_empty(q.shape[:3], dtype=acc),
        q.new_empty(*state, v.shape[-1], dtype=acc),
        q.new_empty(state, dtype=acc),
    )


@torch.library.register_fake("cosformer::linear_backward", lib=_LIBRARY)
def _(*args: Any) -> tuple[Tensor, ...]:
    q, k, v, *_ = args
    _g_out, g_kv, g_z, *_ = args[len(Call._fields) - 1 :]
    return tuple(torch.empty_like(x) for x in (q, k, v, g_kv, g_z))


@torch.library.register_fake("cosformer::advance", lib=_LIBRARY)
def _(position: Tensor, tokens: int, max_len: int) -> Tensor:
    return torch.empty_like(position)


def _fold(x: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """A tensor with its vmapped dimension folded into the batch; unbatched ones repeat."""
    if x is None:
        return None
    return (x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)


def _vmap_rule(operator: Any) -> Any:
    """Batched tensors as one larger batch; what has no batch of its own cannot be batched."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        *tensors, start = args[: -len(AttentionSpec._fields)]
        if any(x is not None and x.dtype in (torch.int32, torch.int64) for x in tensors):
            raise ValueError("cu_seqlens has no batch, so it cannot be vmapped; call once per batch item instead")
        rates = Call._fields.index("decay")  # the same for all batch items
        if start is not None and in_dims[len(tensors)] is not None:
            raise ValueError(
                "a state's position cannot be vmapped; all batch items must have seen the same number of tokens"
            )
        folded = [
            x if i == rates else _fold(x, dim, info.batch_size)
            for i, (x, dim) in enumerate(zip(tensors, in_dims, strict=False))
        ]
        results = operator(*folded, *args[len(tensors) :])
        return tuple(x.unflatten(0, (info.batch_size, -1)) for x in results), (0,) * len(results)

    return rule


for _name in ("linear_forward", "linear_backward"):
    torch.library.register_vmap(f"cosformer::{_name}", _vmap_rule(getattr(torch.ops.cosformer, _name)), lib=_LIBRARY)
