"""A decoding step as one compiled graph: ``compile_step(model)``, then ``model.generate`` as ever."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from cosformer.ops.dispatch import traceable

_MATRIX_PRODUCTS = (operator.matmul, torch.matmul)


def compile_step(model: nn.Module) -> None:
    """From now on, calls of ``model`` with one new token and a cache run as a compiled graph; others, such as prompts,
    whose lengths differ, run as before.

    The first token of a shape waits for the compiler. Torch keeps what it made on disk, so that the next process waits
    for less. A state of constant size compiles once; one that grows with the sequence, as softmax's, compiles again for
    changing shapes. Needs torch 2.12 or later and, on the CPU, a C++ compiler.
    """
    if not traceable:
        raise RuntimeError(f"compile_step needs torch 2.12 or later, and this is {torch.__version__}")
    eager = model.forward
    compiled = torch.compile(eager, backend=one_row_backend, fullgraph=True)

    @functools.wraps(eager)
    def forward(*args: Any, **kwargs: Any) -> Any:
        given, past = kwargs.get("input_ids"), kwargs.get("past_key_values")
        step = not args and given is not None and given.shape[1] == 1 and past is not None
        if step and kwargs.get("position_ids") is not None and past.get_seq_length():  # pyright: ignore
            return compiled(**kwargs)
        return eager(*args, **kwargs)

    model.forward = forward


def one_row_backend(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """torch's own compiler (inductor), with products of one row on the CPU written as multiply and sum.

    Of these it makes one loop over the weights for all threads. The library product that it calls otherwise uses one
    thread, at less than half of the memory's speed.
    """
    from torch._inductor.compile_fx import compile_fx  # loads the compiler

    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target is F.linear:
            _replace(node, _linear)
        elif node.op == "call_function" and node.target in _MATRIX_PRODUCTS:
            _replace(node, _product)
    graph.recompile()
    return compile_fx(graph, inputs, config_patches={"size_asserts": False})  # pyright: ignore[reportReturnType]


def _replace(node: fx.Node, by: Callable[..., Any]) -> None:
    """Call ``by`` instead, if the first argument is one row and both are plain tensors on the CPU."""
    operands: Any = node.args[:2]
    x, weight = (operand.meta.get("example_value") for operand in operands)
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor)):
        return
    if not all(t.device.type == "cpu" and t.is_floating_point() for t in (x, weight)):
        return
    if is_traceable_wrapper_subclass(weight):  # quantized weights have products of their own
        return
    rows = x.shape[:-1].numel() if by is _linear else x.shape[-2] if x.dim() > 2 else 0
    if isinstance(rows, int) and rows == 1:
        node.target = by


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    # as_strided is not fused: what makes the row (a norm, an activation) would otherwise run again for every output
    row = x.reshape(-1).as_strided((x.shape[-1],), (1,))
    out = (row * weight).sum(-1)
    return (out if bias is None else out + bias).view(*x.shape[:-1], -1)


def _product(x: Tensor, matrix: Tensor) -> Tensor:
    return (x.mT * matrix).sum(-2, keepdim=True)
