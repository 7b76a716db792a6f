"""Softmax over sinks and a window, learned features for all keys before them, and a gate between the two parts."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.attention.base import TensorState
from cosformer.hf.learned_map import start_map
from cosformer.hf.sink_window import Near, SinkWindow, SinkWindowState
from cosformer.ops.checks import without_autocast
from cosformer.ops.operator import linear_attention
from cosformer.ops.spec import accumulator
from cosformer.ops.state import LinearState


@dataclass(frozen=True, eq=False)
class GatedWindowState(TensorState):
    """Sinks and window, the sums over the keys that have left the window, and how many those are in each row."""

    near: SinkWindowState
    far: LinearState
    count: Tensor  # int64 [B]

    @property
    def seen(self) -> int:
        """How many tokens it has taken in."""
        return self.near.seen

    @classmethod
    def from_state_dict(cls, tensors: dict[str, Tensor]) -> "GatedWindowState":
        """The state that ``state_dict`` saved."""

        def part(name: str) -> dict[str, Tensor]:
            return {key.removeprefix(f"{name}."): x for key, x in tensors.items() if key.startswith(f"{name}.")}

        near, far = SinkWindowState.from_state_dict(part("near")), LinearState.from_state_dict(part("far"))
        return cls(near, far, tensors["count"])


class GatedWindow(SinkWindow):
    """``(1 - g) o_near + g o_far``, where g weighs the mean mass of the far keys against the mass of the near ones.

        o_near, L = softmax output over sinks and window, and the logsumexp of its scores
        phi, psi  = softmax(q A + a), softmax(k B + b), of queries and keys before rotary positions
        o_far     = sum_j (phi.psi_j) v_j / sum_j phi.psi_j  over the keys before the window that are no sinks
        g         = sigmoid(c log mean_j(phi.psi_j) - d L + e + q.w / sqrt(D)), 0 without far keys

    Rotary positions stay out of the far part because the maps would meet angles beyond those that they were taught at;
    the mean, not the sum, because the number of far keys grows as well.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        num_key_heads: int,
        head_dim: int,
        features: int,
        window: int,
        sinks: int,
        context: int,
        seed: int = 0,
    ) -> None:
        super().__init__(window=window, sinks=sinks, context=context)
        self.head_dim, self.features, self.seed = head_dim, features, seed
        self.query = nn.Parameter(torch.empty(num_heads, head_dim, features))
        self.key = nn.Parameter(torch.empty(num_key_heads, head_dim, features))
        self.query_bias = nn.Parameter(torch.empty(num_heads, 1, features))
        self.key_bias = nn.Parameter(torch.empty(num_key_heads, 1, features))
        self.gate_far = nn.Parameter(torch.empty(num_heads, 1))
        self.gate_near = nn.Parameter(torch.empty(num_heads, 1))
        self.gate_bias = nn.Parameter(torch.empty(num_heads, 1))
        self.gate_query = nn.Parameter(torch.empty(num_heads, head_dim, 1))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Maps near the identity, and a gate that calls for :meth:`calibrate`."""
        start = 2 * start_map(self.head_dim, self.features, self.seed)
        for maps in (self.query, self.key):
            maps.copy_(start.expand_as(maps))
        for parameter in (self.query_bias, self.key_bias, self.gate_query):
            parameter.zero_()
        self.gate_far.fill_(1.0)
        self.gate_near.fill_(1.0)
        self.gate_bias.fill_(-2.0)

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}, features={self.features}, {super().extra_repr()}"

    def extend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: GatedWindowState | None = None,
        key_mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, GatedWindowState]:
        """The next n tokens after ``state``, whose size does not grow: (out [B,H,n,E], new state)."""
        near = self.near(q, k, v, None if state is None else state.near, key_mask, positions)
        out, state = self.add_far(near, state)
        return out.to(v.dtype), state

    def add_far(self, near: Near, state: GatedWindowState | None = None) -> tuple[Tensor, GatedWindowState]:
        """The near part mixed with the far one: (out [B,H,n,E], new state)."""
        with without_autocast(near.q.device):
            out, log_mean, count, sums = self._far(near, state)
            gate = self._gate(near, log_mean)
            gate = torch.where(count[:, None] > 0, gate, 0.0)
            mixed = near.out + gate[..., None] * (out - near.out)
            return mixed, GatedWindowState(near.state, sums, count[:, -1])

    @torch.no_grad()
    def calibrate(self, q: Tensor, k: Tensor, key_mask: Tensor | None, near: Near) -> None:
        """Set the gate's bias to match each head's mean far mass, over the queries that have far keys."""
        with without_autocast(q.device):
            total = causal_log_mass(q.to(near.out.dtype), k.to(near.out.dtype), key_mask)
            true = total + torch.log1p(-(near.log_mass - total).exp().clamp_max(1 - 1e-4))
            _, log_mean, count, _ = self._far(near, None)
            has_far = count > 0 if key_mask is None else (count > 0) & key_mask
            weight = has_far[:, None].to(true.dtype)
            found = ((true - self.gate_far * log_mean) * weight).sum((0, 2)) / weight.sum().clamp_min(1)
            if has_far.any():
                self.gate_bias.copy_(found[:, None])

    def _far(self, near: Near, state: GatedWindowState | None) -> tuple[Tensor, Tensor, Tensor, LinearState]:
        """Output [B,H,n,E], log of the mean mass [B,H,n], number of far keys [B,n], sums."""
        dtype = accumulator(self.query.dtype)
        query, query_bias, key, key_bias = (x.to(dtype) for x in (self.query, self.query_bias, self.key, self.key_bias))
        fq = (near.q.to(dtype) @ query + query_bias).softmax(-1)
        fk = (near.k.to(dtype) @ key + key_bias).softmax(-1)
        sums, far = linear_attention(
            fq,
            fk,
            F.pad(near.v.to(dtype), (0, 1), value=1.0),  # a column of ones: its sum is the mass
            causal=True,
            key_mask=near.key_mask,
            state=None if state is None else state.far,
            return_state=True,
            relu=False,
            normaliser="none",
        )
        count = near.key_mask.cumsum(1) + (0 if state is None else state.count[:, None])
        mass = sums[..., -1].clamp_min(1e-9)
        return sums[..., :-1] / mass[..., None], mass.log() - count.clamp_min(1).log()[:, None], count, far

    def _gate(self, near: Near, log_mean: Tensor) -> Tensor:
        dtype = log_mean.dtype
        far, log_mass, bias, query = (
            x.to(dtype) for x in (self.gate_far, self.gate_near, self.gate_bias, self.gate_query)
        )
        asked = (near.q.to(dtype) @ query)[..., 0] * self.head_dim**-0.5
        return (far * log_mean - log_mass * near.log_mass.to(dtype) + bias + asked).clamp(-30, 30).sigmoid()


def causal_log_mass(q: Tensor, k: Tensor, key_mask: Tensor | None, rows: int = 256) -> Tensor:
    """logsumexp ``[B,H,N]`` of the scores of causal softmax attention, a few rows at a time."""
    (batch, heads, n, dim), groups = q.shape, k.shape[1]
    q = (q * dim**-0.5).view(batch, groups, heads // groups, n, dim)
    found = []
    for first in range(0, n, rows):
        last = min(first + rows, n)
        scores = q[:, :, :, first:last] @ k[:, :, None, :last].mT
        hidden = torch.arange(last, device=q.device) > torch.arange(first, last, device=q.device)[:, None]
        if key_mask is not None:
            hidden = hidden | ~key_mask[:, None, None, None, :last]
        found.append(scores.masked_fill(hidden, -1e30).logsumexp(-1))
    return torch.cat(found, -1).view(batch, heads, n)
