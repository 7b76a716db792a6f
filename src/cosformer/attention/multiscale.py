"""Multi-scale cosFormer: ReLU features whose channels forget at different, fixed rates."""

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from cosformer.attention.base import Attention, Traits
from cosformer.ops.backends import check_backend
from cosformer.ops.operator import cosformer_attention, linear_attention
from cosformer.ops.state import LinearState


def decay_rates(
    *, num_heads: int, head_dim: int, causal: bool, slowest: float, scales: int = 8, fastest: float = 1.0
) -> Tensor:
    """The rates of :class:`Multiscale`: float64 ``[H, D]`` on the CPU, the channels of a group side by side."""
    if scales < 1 or head_dim % scales:
        raise ValueError(f"scales={scales} does not divide head_dim={head_dim}; each scale has as many channels")
    if not causal and scales % 2:
        raise ValueError(f"scales={scales} with causal=False: half of them look left, half right; use an even number")
    if not 0 <= slowest <= fastest <= 4:
        raise ValueError(f"slowest={slowest}, fastest={fastest}; rates per token satisfy 0 <= slowest <= fastest <= 4")
    groups = scales if causal else scales // 2
    options: dict[str, Any] = {"steps": num_heads * groups, "dtype": torch.float64, "device": "cpu"}
    if slowest:
        rates = torch.logspace(math.log10(fastest), math.log10(slowest), **options)
    else:  # a rate of 0 has no logarithm
        rates = torch.linspace(fastest, 0, **options)
    by_head = rates.view(groups, num_heads).T
    if not causal:
        by_head = torch.cat([by_head, by_head], dim=1)
    return by_head.repeat_interleave(head_dim // scales, dim=1)


class Multiscale(Attention):
    """Weights ``sum_c relu(q_i)_c relu(k_j)_c exp(-rate_c |i - j|)``, normalised by their sum.

    The channels of each head form ``scales`` groups. Each group of each head has its own rate, fixed and not learned:
    they are spaced evenly on a logarithmic scale from ``fastest`` to ``slowest`` (default ``1 / max_len``) and dealt
    out so that every head has fast and slow ones. There are no parameters, and the state has the size of ``relu``'s.

    Not causal, the first half of the groups sees the keys up to the query's position and the second half those from it
    on, with the same rates, so that the weights tell left from right.

    ``cosine`` multiplies the weights by cosFormer's ``cos(pi/2 (i - j) / max_len)`` as well, which doubles the state
    and limits the input to ``max_len``. Without it, input may have any length. ``backend``: see
    ``cosformer.ops.backends``.
    """

    traits = Traits(
        paper="this library; decays as in Sun et al. 2023",
        time="N D^2",
        memory="N D",
        causal=True,
        cross=False,
        streaming=True,
    )
    grouped = True
    rates: Tensor
    rates_single: Tensor

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_len: int,
        causal: bool,
        scales: int = 8,
        fastest: float = 1.0,
        slowest: float | None = None,
        cosine: bool = False,
        eps: float = 1e-6,
        backend: str = "auto",
    ) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        slowest = 1 / max_len if slowest is None else slowest
        check_backend(backend)
        self.bounded = cosine
        self.scales, self.fastest, self.slowest = scales, fastest, slowest
        self.cosine, self.eps, self.backend = cosine, eps, backend
        self.register_buffer("rates", self._make_rates(), persistent=False)
        self.register_buffer("rates_single", self.rates.float(), persistent=False)  # cast once, not for every token

    def extra_repr(self) -> str:
        options = f"scales={self.scales}, fastest={self.fastest}, slowest={self.slowest:.3g}, cosine={self.cosine}"
        return f"{super().extra_repr()}, {options}"

    def _make_rates(self) -> Tensor:
        sizes = {"num_heads": self.num_heads, "head_dim": self.head_dim, "causal": self.causal}
        rates = decay_rates(**sizes, scales=self.scales, fastest=self.fastest, slowest=self.slowest)
        return rates.to(torch.empty(0).device)  # which may be meta; torch 2.6's get_default_device() does not see it

    def reset_buffers(self) -> None:
        """Make the rates again, for whoever builds a model without values and fills it later."""
        self.rates = self._make_rates().to(self.rates.device)
        self.rates_single = self.rates.float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As ``nn.Module``; the rates follow the device, are made again after the meta device, and stay in float64."""
        super()._apply(fn, recurse)
        self.reset_buffers()
        return self

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        rates = self.rates if v.dtype == torch.float64 else self.rates_single
        if k.shape[1] != q.shape[1]:  # key heads have the rates of the first of their query heads
            rates = rates[:: q.shape[1] // k.shape[1]].contiguous()
        options |= {"causal": self.causal, "decay": rates, "eps": self.eps, "backend": self.backend}
        if self.cosine:
            return cosformer_attention(q, k, v, max_len=self.max_len, **options)
        return linear_attention(q, k, v, relu=True, **options)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q [B,H,N,D], k [B,H,N,D], v [B,H,N,E], key_mask bool [B,N] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        return self._attend(q, k, v, key_mask=key_mask)

    def packed(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Concatenated sequences, each attending to itself alone: ``[1,H,T,.]`` -> ``[1,H,T,E]``."""
        return self._attend(q, k, v, cu_seqlens=cu_seqlens)

    def sharded(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        group: Any,
        key_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """This rank's shard of a sequence split over ``group``; ``cu_seqlens`` covers the whole sequence."""
        return self._attend(q, k, v, key_mask=key_mask, cu_seqlens=cu_seqlens, group=group)

    def extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: LinearState | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, LinearState]:
        """The next n tokens after ``state``, whose size does not grow: (out [B,H,n,E], new state)."""
        self.check_extend(q, k, v, key_mask, state)
        return self._attend(q, k, v, key_mask=key_mask, state=state, return_state=True)
