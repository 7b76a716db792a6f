"""References and measures that several mechanisms are tested with."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@pytest.fixture
def masked_softmax_attention() -> Callable[..., Tensor]:
    """The definition of every pattern attention: softmax over the allowed scores, zeros where there are none."""

    def attention(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf)
        weights = torch.where(allowed.any(-1, keepdim=True), scores, 0).softmax(-1)
        return torch.where(allowed, weights, 0) @ v

    return attention


@pytest.fixture
def assert_same_attention() -> Callable[..., None]:
    """Outputs and gradients of two functions of q, k, v are the same."""

    def check(actual: Callable[..., Tensor], expected: Callable[..., Tensor], *inputs: Tensor, atol: float) -> None:
        results = []
        for attention in (actual, expected):
            leaves = [x.detach().clone().requires_grad_() for x in inputs]
            out = attention(*leaves)
            weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
            results.append((out, *torch.autograd.grad((out * weight).sum(), leaves)))
        for a, e in zip(*results, strict=True):
            torch.testing.assert_close(a, e, atol=atol, rtol=0)
        out, *_, v_gradient = results[1]  # a row with one key has no gradient in q and k
        assert min(out.abs().max(), v_gradient.abs().max()) > 100 * atol, "the comparison is between zeros"

    return check


class _Largest(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                # what lies in memory, not what a view of overlapping windows pretends to have
                self.numel = max(self.numel, x.untyped_storage().nbytes())
        return out


@pytest.fixture
def largest_tensor() -> Callable[[Callable[[], Tensor]], int]:
    """Bytes of the largest tensor that a forward and backward pass makes."""

    def measure(attention: Callable[[], Tensor]) -> int:
        with _Largest() as largest:
            attention().sum().backward()
        return largest.numel

    return measure
