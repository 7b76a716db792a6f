"""cosFormer: ReLU features, re-weighted by the cosine of the distance."""

from typing import Any

from torch import Tensor

from cosformer.attention.base import Attention, Traits
from cosformer.ops.backends import check_backend
from cosformer.ops.one_token import try_one_token
from cosformer.ops.operator import cosformer_attention
from cosformer.ops.state import LinearState

EPS = 1e-6


class Cosformer(Attention):
    """Weights ``relu(q_i).relu(k_j) cos(pi/2 (i - j) / max_len)``, normalised by their sum (Qin et al. 2022).

    ``max_len`` is the paper's M: it sets how far the cosine reaches, so it is a setting of the model, not of a call.
    ``backend``: see ``cosformer.ops.backends``; it changes the speed, not the result.
    """

    traits = Traits(paper="Qin et al. 2022", time="N D^2", memory="N D", causal=True, cross=True, streaming=True)
    grouped = True

    def __init__(self, *, num_heads: int, head_dim: int, max_len: int, causal: bool, backend: str = "auto") -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        check_backend(backend)
        self.backend = backend

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q [B,H,N,D], k [B,H,S,D], v [B,H,S,E], key_mask bool [B,S] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        return cosformer_attention(
            q, k, v, causal=self.causal, max_len=self.max_len, key_mask=key_mask, backend=self.backend
        )

    def packed(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Sequences one behind the other, each attending to itself alone: ``[1,H,T,.]`` -> ``[1,H,T,E]``."""
        return cosformer_attention(
            q, k, v, causal=self.causal, max_len=self.max_len, cu_seqlens=cu_seqlens, backend=self.backend
        )

    def sharded(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        group: Any,
        key_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """This rank's rows of a sequence sharded over the ranks of ``group``; ``cu_seqlens`` is that of the whole."""
        options: dict[str, Any] = {"causal": self.causal, "max_len": self.max_len, "backend": self.backend}
        return cosformer_attention(q, k, v, **options, key_mask=key_mask, cu_seqlens=cu_seqlens, group=group)

    def summarize(self, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> LinearState:
        """Keys and values to be attended to later, by any number of :meth:`attend_state`: sums of one size."""
        queries = k[:, :, :0].repeat_interleave(self.num_heads // k.shape[1], 1)
        _, state = cosformer_attention(
            queries, k, v, max_len=self.max_len, key_mask=key_mask, return_state=True, backend=self.backend
        )
        return state

    def attend_state(self, q: Tensor, state: LinearState, first: int = 0) -> Tensor:
        """Cross-attention of queries at positions ``first``, ``first + 1``, ... to what :meth:`summarize` gave."""
        k = q.new_zeros(q.shape[0], state.kv.shape[1], 0, q.shape[-1])
        v = q.new_zeros(q.shape[0], state.kv.shape[1], 0, state.kv.shape[-1])
        return cosformer_attention(q, k, v, max_len=self.max_len, q_offset=first, state=state, backend=self.backend)

    def extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: LinearState | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, LinearState]:
        """The next n tokens after ``state``, whose size does not grow: (out [B,H,n,E], new state)."""
        if state is not None and key_mask is None and self.causal and self.backend == "auto":
            found = try_one_token(q, k, v, state, self.max_len, None, EPS)
            if found is not None and q.shape[1] == self.num_heads:
                return found
        self.check_extend(q, k, v, key_mask, state)
        return cosformer_attention(
            q,
            k,
            v,
            causal=True,
            max_len=self.max_len,
            key_mask=key_mask,
            state=state,
            return_state=True,
            eps=EPS,
            backend=self.backend,
        )
