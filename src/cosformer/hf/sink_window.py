"""Softmax over the first and the most recent keys (StreamingLLM): the near part of a linearized decoder."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.attention.base import TensorState
from cosformer.ops.checks import without_autocast
from cosformer.ops.spec import accumulator


@dataclass(frozen=True, eq=False)
class SinkWindowState(TensorState):
    """The sinks, which are the first unmasked keys of each row, and the last ``window`` keys, all with their positions.

    ``key_mask`` is False where the window has no key yet and where its key is masked or a sink.
    """

    k: Tensor  # [B,Hk,window,D], as the model rotated them
    v: Tensor  # [B,Hk,window,E]
    positions: Tensor  # int64 [B,window]
    key_mask: Tensor  # bool [B,window]
    sink_k: Tensor  # [B,Hk,sinks,D]
    sink_v: Tensor  # [B,Hk,sinks,E]
    sink_positions: Tensor  # int64 [B,sinks]
    unmasked: Tensor  # int64 [B], unmasked tokens so far
    seen: int  # all tokens so far

    @classmethod
    def from_state_dict(cls, tensors: dict[str, Tensor]) -> "SinkWindowState":
        """The state that ``state_dict`` saved."""
        values: dict[str, Any] = {**tensors, "seen": int(tensors["seen"])}
        return cls(**values)


class Near(NamedTuple):
    """What the sinks and the window give, and what a far part needs besides."""

    out: Tensor  # [B,H,n,E]
    log_mass: Tensor  # [B,H,n], logsumexp of the scores
    q: Tensor  # [B,H,n,D], before rotary positions
    k: Tensor  # [B,Hk,n,D], the keys that leave the window as each query comes, before rotary positions
    v: Tensor  # [B,Hk,n,E]
    key_mask: Tensor  # bool [B,n]
    state: SinkWindowState


class SinkWindow(nn.Module):
    """Causal softmax over the first ``sinks`` unmasked keys and the last ``window`` keys, the query's own included.

    ``context`` is the longest distance that the model was trained on: a query further from the first sink sees the
    sinks just before its window instead, as in StreamingLLM. ``rotary`` is the model's rotary embedding; None without
    one.
    """

    def __init__(self, *, window: int, sinks: int, context: int) -> None:
        super().__init__()
        self.window, self.sinks, self.context = window, sinks, context
        self.rotary: nn.Module | None = None

    def extra_repr(self) -> str:
        return f"window={self.window}, sinks={self.sinks}"

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """q [B,H,N,D], k [B,Hk,N,D], v [B,Hk,N,E], key_mask bool [B,N], positions int64 [B,N] -> [B,H,N,E]."""
        return self.extend(q, k, v, None, key_mask, positions)[0]

    def extend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: Any = None,
        key_mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """The next n tokens after ``state``, whose size does not grow: (out [B,H,n,E], new state)."""
        near = self.near(q, k, v, state, key_mask, positions)
        return near.out.to(v.dtype), near.state

    def near(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: SinkWindowState | None,
        key_mask: Tensor | None,
        positions: Tensor | None,
    ) -> Near:
        """Attention to sinks and window, in float32 at least. ``positions`` are those of the rotary embedding."""
        with without_autocast(q.device):
            return self._near(q, k, v, state, key_mask, positions)

    def _near(self, q: Tensor, k: Tensor, v: Tensor, state: Any, key_mask: Tensor | None, positions: Any) -> Near:
        n, window, dtype = q.shape[2], self.window, accumulator(q.dtype)
        if key_mask is None:
            key_mask = torch.ones(len(k), n, dtype=torch.bool, device=k.device)
        else:  # a masked key must not reach a sum even if it is not finite
            k, v = (x.masked_fill(~key_mask[:, None, :, None], 0) for x in (k, v))
        if state is None:
            state = self._empty(k, v)
        if positions is None:
            if self.rotary is not None:
                raise ValueError("a model with rotary positions must hand over position_ids")
            positions = (state.seen + torch.arange(n, device=k.device)).expand(len(k), n)

        unmasked = state.unmasked[:, None] + key_mask.cumsum(1)
        is_sink = key_mask & (unmasked <= self.sinks)
        sink_k, sink_v, sink_positions = self._gather_sinks(state, k, v, positions, is_sink)
        keys, values = torch.cat([state.k, k], 2), torch.cat([state.v, v], 2)
        places = torch.cat([state.positions, positions], 1)
        mask = torch.cat([state.key_mask, key_mask & ~is_sink], 1)
        new = SinkWindowState(
            keys[:, :, n:].clone(),
            values[:, :, n:].clone(),
            places[:, n:].clone(),
            mask[:, n:].clone(),
            sink_k,
            sink_v,
            sink_positions,
            unmasked[:, -1],
            state.seen + n,
        )

        leaving, to_sinks = keys[:, :, :n], q
        if self.rotary is not None:
            raw = rotate_back(q, *self.rotary(q, positions))
            leaving = rotate_back(leaving, *self.rotary(k, places[:, :n]))
            first = sink_positions[:, :1] if self.sinks else positions
            beyond = positions - first >= self.context
            just_before = torch.where(beyond, first + window + self.sinks - 1, positions)
            to_sinks = torch.where(beyond[:, None, :, None], rotate(raw, *self.rotary(q, just_before)), q)
        else:
            raw = q
        q, to_sinks, keys, values, sink_k, sink_v = (x.to(dtype) for x in (q, to_sinks, keys, values, sink_k, sink_v))
        out, log_mass = attend_near(q, to_sinks, keys, values, sink_k, sink_v, mask, unmasked, window)
        return Near(out, log_mass, raw.to(dtype), leaving.to(dtype), values[:, :, :n], mask[:, :n], new)

    def _empty(self, k: Tensor, v: Tensor) -> SinkWindowState:
        rows, heads = k.shape[:2]

        def block(length: int) -> tuple[Tensor, Tensor, Tensor]:
            places = torch.zeros(rows, length, dtype=torch.int64, device=k.device)
            return k.new_zeros(rows, heads, length, k.shape[3]), v.new_zeros(rows, heads, length, v.shape[3]), places

        (window_k, window_v, positions), (sink_k, sink_v, sink_positions) = block(self.window), block(self.sinks)
        mask, unmasked = torch.zeros_like(positions, dtype=torch.bool), positions.new_zeros(rows)
        return SinkWindowState(window_k, window_v, positions, mask, sink_k, sink_v, sink_positions, unmasked, 0)

    def _gather_sinks(
        self, state: SinkWindowState, k: Tensor, v: Tensor, positions: Tensor, is_sink: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The sinks of ``state``, then the new ones; slots that are not filled yet hold anything."""
        filled = torch.arange(self.sinks, device=k.device) < state.unmasked[:, None]
        order = torch.cat([filled, is_sink], 1).byte().argsort(dim=1, descending=True, stable=True)[:, : self.sinks]

        def pick(old: Tensor, new: Tensor) -> Tensor:
            index = order[:, None, :, None].expand(-1, old.shape[1], -1, old.shape[3])
            return torch.cat([old, new], 2).gather(2, index)

        return (
            pick(state.sink_k, k),
            pick(state.sink_v, v),
            torch.cat([state.sink_positions, positions], 1).gather(1, order),
        )


def attend_near(
    q: Tensor,
    to_sinks: Tensor,
    k: Tensor,
    v: Tensor,
    sink_k: Tensor,
    sink_v: Tensor,
    mask: Tensor,
    unmasked: Tensor,
    window: int,
) -> tuple[Tensor, Tensor]:
    """Softmax output ``[B,H,n,E]`` and logsumexp ``[B,H,n]``; a query without keys gives zero.

    Query i of ``q [B,H,n,D]`` sees keys i + 1 to i + window of ``k``, ``v [B,Hk,window+n,.]`` where ``mask
    [B,window+n]`` is true, and, by ``to_sinks [B,H,n,D]``, as many sinks as ``unmasked [B,n]`` says. Processed in
    blocks of ``window`` queries, each of which sees two windows of keys.
    """
    (rows, heads, n, dim), groups, sinks = q.shape, k.shape[1], sink_k.shape[2]
    block = min(n, window)
    spare = -n % block
    q, to_sinks = (
        F.pad(x * dim**-0.5, (0, 0, 0, spare)).view(rows, groups, heads // groups, -1, block, dim)
        for x in (q, to_sinks)
    )
    k, v = (F.pad(x, (0, 0, 0, spare)).unfold(2, block + window, block) for x in (k, v))  # [B,Hk,blocks,.,keys]
    seen = F.pad(mask, (0, spare)).unfold(1, block + window, block)  # [B,blocks,keys]
    ahead = torch.arange(block + window, device=q.device) - torch.arange(block, device=q.device)[:, None]
    allowed = ((ahead > 0) & (ahead <= window)) & seen[:, None, None, :, None]
    ready = F.pad(unmasked, (0, spare)).view(rows, 1, 1, -1, block, 1) > torch.arange(sinks, device=q.device)
    scores = torch.cat(
        [
            (to_sinks @ sink_k.mT[:, :, None, None]).masked_fill(~ready, -torch.inf),
            (q @ k[:, :, None]).masked_fill(~allowed, -torch.inf),
        ],
        -1,
    )
    top = scores.detach().amax(-1, keepdim=True).clamp_min(torch.finfo(q.dtype).min)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
    out = weights[..., :sinks] @ sink_v[:, :, None, None] + weights[..., sinks:] @ v.mT[:, :, None]
    out, log_mass = out / total, top + total.log()
    return out.reshape(rows, heads, -1, out.shape[-1])[:, :, :n], log_mass.reshape(rows, heads, -1)[:, :, :n]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B,H,n,D] with its first R channels rotated by ``cos``, ``sin [B,n,R]`` as in Llama (partial rotary)."""
    cos, sin, width = cos[:, None], sin[:, None], cos.shape[-1]
    turned = x[..., :width]
    first, second = turned.chunk(2, -1)
    turned = turned * cos + torch.cat([-second, first], -1) * sin
    return turned if width == x.shape[-1] else torch.cat([turned, x[..., width:]], -1)


def rotate_back(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The inverse of :func:`rotate`, also where cos and sin carry a scaling, as YaRN's do."""
    square = cos.square() + sin.square()
    return rotate(x, cos / square, -sin / square)
