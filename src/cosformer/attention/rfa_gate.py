"""Random feature attention with a gate: the sums forget, at a speed learned from the tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.attention.feature_map import check_state
from cosformer.attention.pieces import attend_in_pieces, works_in_pieces
from cosformer.attention.rfa import RandomFeatures
from cosformer.ops.autocast import without_autocast
from cosformer.ops.gated import gated_attention
from cosformer.ops.state import LinearState


class GatedRandomFeatures(RandomFeatures):
    """``S_t = g_t S_(t-1) + (1 - g_t) phi(k_t) v_t^T``, z_t likewise, ``o_t = phi(q_t) S_t / phi(q_t).z_t``.

    ``g_t = sigmoid(w.k_t + b)``, one number for each head; w and b are learned. The paper's gate reads the layer's
    input; a mechanism of this library sees its linear image k. At a masked key g is 1: the sums pass unchanged.
    Causal only, computed chunk by chunk in linear time.
    """

    eps = 1e-12  # small gates make small sums; their ratio is as good as that of large ones

    def __init__(
        self, *, num_heads: int, head_dim: int, max_len: int, causal: bool, num_features: int, seed: int
    ) -> None:
        sizes = {"num_heads": num_heads, "head_dim": head_dim, "max_len": max_len}
        super().__init__(**sizes, causal=causal, num_features=num_features, seed=seed)
        self.gate_weight = nn.Parameter(torch.empty(num_heads, head_dim, 1))
        self.gate_bias = nn.Parameter(torch.empty(num_heads, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        bound = self.head_dim**-0.5
        nn.init.uniform_(self.gate_weight, -bound, bound)
        nn.init.zeros_(self.gate_bias)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q, k [B,H,N,D], v [B,H,N,E], key_mask bool [B,N] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        with without_autocast(q.device):
            if not self.training and works_in_pieces(q, k):
                return attend_in_pieces(self._extend, q, k, v, key_mask, causal=True)
            return self._gated(q, k, v, None, key_mask, fresh=self.training)[0]

    def _extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: LinearState | None, key_mask: Tensor | None, first: int
    ) -> tuple[Tensor, LinearState]:
        return self._gated(q, k, v, state, key_mask, fresh=False)

    def _gated(
        self, q: Tensor, k: Tensor, v: Tensor, state: LinearState | None, key_mask: Tensor | None, fresh: bool
    ) -> tuple[Tensor, LinearState]:
        fq, fk = self.features(q, k, first=0, fresh=fresh)
        if state is not None:
            check_state(state, fk, v)
        logit = (k.to(fk.dtype) @ self.gate_weight.to(fk.dtype)).squeeze(-1) + self.gate_bias.to(fk.dtype)
        log_keep, write = F.logsigmoid(logit), logit.neg().sigmoid()  # log g and 1 - g, each without cancellation
        if key_mask is not None:
            log_keep = log_keep.masked_fill(~key_mask[:, None], 0)
            write = write.masked_fill(~key_mask[:, None], 0)
            fk = fk.masked_fill(~key_mask[:, None, :, None], 0)
        out, state = gated_attention(
            fq, fk * write[..., None], v.to(fq.dtype), log_keep, state, normaliser=self.normaliser, eps=self.eps
        )
        return out.to(v.dtype), state
