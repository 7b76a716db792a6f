"""Learned features for the far part of the past, softmax for the near one: a state of one size still (after LoLCATs)."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.attention.feature_maps import FeatureMap
from cosformer.hf.learned_map import LearnedMap
from cosformer.ops.checks import without_autocast
from cosformer.ops.operator import linear_attention
from cosformer.ops.state import LinearState


@dataclass(frozen=True, eq=False)
class WindowState:
    """Sums over the keys that have left the window, and the last ``window`` keys and values ``[B,Hk,window,.]``.

    ``key_mask`` bool ``[B,window]``: False where no key is yet, or where it may not be attended.
    """

    far: LinearState
    k: Tensor
    v: Tensor
    key_mask: Tensor

    @property
    def seen(self) -> int:
        """How many tokens it has taken in."""
        return self.far.seen

    def reorder(self, index: Tensor) -> "WindowState":
        """Batch rows picked by ``index`` (int64 ``[B']``), as beam search needs."""
        k, v, mask = (x.index_select(0, index.to(x.device)) for x in (self.k, self.v, self.key_mask))
        return WindowState(self.far.reorder(index), k, v, mask)

    def detach(self) -> "WindowState":
        """The same numbers without their history."""
        return replace(self, far=self.far.detach(), k=self.k.detach(), v=self.v.detach())

    def to(self, *args: Any, **kwargs: Any) -> "WindowState":
        """Like ``Tensor.to``, for device and dtype; the mask follows the device and stays bool."""
        k = self.k.to(*args, **kwargs)
        return WindowState(self.far.to(*args, **kwargs), k, self.v.to(*args, **kwargs), self.key_mask.to(k.device))

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors to save."""
        far = {f"far.{name}": tensor for name, tensor in self.far.state_dict().items()}
        return {**far, "k": self.k, "v": self.v, "key_mask": self.key_mask}

    @classmethod
    def from_state_dict(cls, tensors: dict[str, Tensor]) -> "WindowState":
        """The state that :meth:`state_dict` saved."""
        far = {name.removeprefix("far."): tensor for name, tensor in tensors.items() if name.startswith("far.")}
        return cls(LinearState.from_state_dict(far), tensors["k"], tensors["v"], tensors["key_mask"])


class WindowedMap(LearnedMap):
    """The last ``window`` keys by ``exp(q.k / sqrt(D))``, relative to the largest of them, and all before them by learned
    features times a learned factor a head; both share one normaliser. Causal.
    """

    def __init__(self, attention: str, *, window: int, num_heads: int, causal: bool, **sizes: Any) -> None:
        super().__init__(attention, num_heads=num_heads, causal=causal, **sizes)
        if not causal:
            raise ValueError("a window looks back: it needs a causal model; leave window out")
        # sums of their own, gated or rotated, do not go together with a window's
        if not isinstance(self.inner, FeatureMap) or type(self.inner).attend is not FeatureMap.attend:
            raise ValueError(f"attention={attention!r} has no window; use relu, linear or performer with one")
        self.window = window
        self.factor = nn.Parameter(torch.full((num_heads, 1, 1), -3.0))  # a logarithm

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, window={self.window}"

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q [B,H,N,D], k [B,Hk,N,D], v [B,Hk,N,E], key_mask bool [B,N] -> [B,H,N,E]."""
        return self.extend(q, k, v, None, key_mask)[0]

    def extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: WindowState | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, WindowState]:
        """The next n tokens after ``state``, whose size does not grow: (out [B,H,n,E], new state)."""
        self.inner.check_extend(*self._wide(q, k), v, key_mask, 0 if state is None else state.seen)
        with without_autocast(q.device):
            inner: Any = self.inner  # a FeatureMap, as the constructor saw to
            n, window = q.shape[2], self.window
            new = torch.ones(len(k), n, dtype=torch.bool, device=k.device) if key_mask is None else key_mask
            if state is None:  # a window of nothing that may be attended
                keys, values, mask = F.pad(k, (0, 0, window, 0)), F.pad(v, (0, 0, window, 0)), F.pad(new, (window, 0))
            else:
                keys, values = torch.cat([state.k, k], 2), torch.cat([state.v, v], 2)
                mask = torch.cat([state.key_mask, new], 1)
            fq, fk, fv = self._features(q, keys[:, :, :n], values[:, :, :n])  # as a token comes, one leaves the window
            fq, fk = inner.features(fq, fk, first=0, fresh=False)
            far, sums = linear_attention(
                fq,
                fk,
                with_ones(fv),
                causal=True,
                key_mask=mask[:, :n],
                state=None if state is None else state.far,
                return_state=True,
                relu=inner.relu,
                normaliser="none",
            )
            near = near_sums(q.to(fv.dtype), keys.to(fv.dtype), with_ones(values.to(fv.dtype)), mask, window)
            total = near + self.factor.to(fv.dtype).exp() * far
            out = total[..., :-1] / total[..., -1:].clamp_min(1e-6)
            last = (keys[:, :, n:].clone(), values[:, :, n:].clone(), mask[:, n:].clone())
            return out.to(v.dtype), WindowState(sums, *last)

    def _wide(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Of the shape that the inner mechanism checks."""
        return q[..., :1].expand(*q.shape[:3], self.features), k[..., :1].expand(*k.shape[:3], self.features)


def with_ones(v: Tensor) -> Tensor:
    """A column of ones: its sum is the normaliser."""
    return F.pad(v, (0, 1), value=1.0)


def near_sums(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, window: int) -> Tensor:
    """``q [B,H,n,D]``; ``k``, ``v [B,Hk,window+n,.]`` and ``mask [B,window+n]`` -> sums of weighted values ``[B,H,n,E]``.

    Query i sees keys i + 1 to i + window. Worked off in blocks of ``window`` queries, whose keys are two windows.
    """
    (rows, heads, n, dim), groups = q.shape, k.shape[1]
    block = min(n, window)
    spare = -n % block
    q = F.pad(q, (0, 0, 0, spare)).view(rows, groups, heads // groups, -1, block, dim)
    k, v = (F.pad(x, (0, 0, 0, spare)).unfold(2, block + window, block) for x in (k, v))  # [B,Hk,blocks,.,keys]
    seen = F.pad(mask, (0, spare)).unfold(1, block + window, block)  # [B,blocks,keys]
    ahead = torch.arange(block + window, device=q.device) - torch.arange(block, device=q.device)[:, None]
    allowed = ((ahead > 0) & (ahead <= window)) & seen[:, None, None, :, None]
    scores = (q * dim**-0.5) @ k[:, :, None]
    scores = scores.masked_fill(~allowed, -torch.inf)
    top = scores.detach().amax(-1, keepdim=True).clamp_min(torch.finfo(q.dtype).min)
    return ((scores - top).exp() @ v.mT[:, :, None]).reshape(rows, heads, -1, v.shape[3])[:, :, :n]
