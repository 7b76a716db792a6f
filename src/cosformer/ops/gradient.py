"""Autograd over the linear kernels: a backward pass of its own, and second derivatives through the definition."""

from typing import Any

import torch
from torch import Tensor

from cosformer.ops.backends import kernel
from cosformer.ops.dense import dense_forward, dense_state, hide
from cosformer.ops.library import SCALARS, problem_of
from cosformer.ops.problem import accumulator
from cosformer.ops.watchers import unwatched


class LinearKernel(torch.autograd.Function):
    """``(q, k, v, kv, z, key_mask, cu_seqlens, start, *settings) -> (out, den, kv, z)``.

    Saves q, k, v, the incoming state, out and the row sums: O(N (D + E)). Forward mode is not defined and raises.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return torch.ops.cosformer.linear_forward(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:8], *output)
        ctx.settings = inputs[8:]

    @staticmethod
    def backward(ctx: Any, g_out: Tensor, g_den: Tensor, g_kv: Tensor, g_z: Tensor) -> tuple[Any, ...]:  # pyright: ignore
        *tensors, start, out, den, kv_next, z_next = ctx.saved_tensors
        arguments = (g_out, g_kv, g_z, *tensors, out, den, kv_next, z_next)
        if unwatched(*arguments):
            p, backend = problem_of(start, *ctx.settings)
            dq, dk, dv, dkv, dz = kernel(backend).backward(*arguments, p)
        elif torch.compiler.is_compiling():  # a compiled graph has first derivatives only
            dq, dk, dv, dkv, dz = torch.ops.cosformer.linear_backward(*arguments, start, *ctx.settings)
        else:
            dq, dk, dv, dkv, dz = LinearKernelBackward.apply(*arguments, start, *ctx.settings)  # pyright: ignore
        state = tensors[3] is not None
        return dq, dk, dv, dkv if state else None, dz if state else None, *[None] * (2 + SCALARS)


class LinearKernelBackward(torch.autograd.Function):
    """The backward pass as a function that can be differentiated once more, at O(N^2) memory."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, ...]:
        return torch.ops.cosformer.linear_backward(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        # out, den and the next state are functions of the other inputs: the definition below accounts for them
        ctx.save_for_backward(*inputs[:10], inputs[14])
        ctx.settings = inputs[15:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        *inputs, key_mask, cu_seqlens, start = ctx.saved_tensors
        p, _ = problem_of(start, *ctx.settings)
        has_state = inputs[6] is not None
        known = inputs if has_state else inputs[:6]

        def definition(q: Tensor, k: Tensor, v: Tensor, *state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            acc = accumulator(q.dtype)
            kv, z = state if has_state else (None, None)
            keys, values = hide(k.to(acc), key_mask), hide(v.to(acc), key_mask)
            out = dense_forward(q.to(acc), keys, values, kv, z, cu_seqlens, p)
            kv, z = dense_state(keys, values, kv, z, p)
            # packed sequences leave no state behind
            return out.to(v.dtype), kv * (cu_seqlens is None), z * (cu_seqlens is None)

        def first_derivative(g_out: Tensor, g_kv: Tensor, g_z: Tensor, *arguments: Tensor) -> Any:
            return torch.func.vjp(definition, *arguments)[1]((g_out, g_kv, g_z))

        second = torch.func.vjp(first_derivative, *known)[1](tuple(grads[: len(known) - 3]))
        return *second, *[None] * (8 - len(known)), *[None] * (6 + SCALARS)
