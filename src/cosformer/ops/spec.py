"""One call of the operator: the tensors and the specification, passed from the operator to the kernel."""

from typing import NamedTuple

import torch
from torch import Tensor


class AttentionSpec(NamedTuple):
    """Settings of one linear attention, whatever form computes it; made by :meth:`cosine` or :meth:`features`.

    Features are ``x' = relu(x)``, or x as it is. With angles, query i sits at position ``q_first + i`` and key j at
    ``k_first + j``, and the score of a pair is ``q'.k' * cos(angle_i - angle_j)``, ``angle = (pi/2) * position /
    length``. Without (``q_len = k_len = 0``) it is ``q'.k'``.

    The fields are plain numbers and words, in the order of ``SCHEMA``: a registered operator takes ``*spec`` and makes
    a specification of them again.
    """

    relu: bool
    causal: bool  # the queries are the last N of the S new positions
    q_first: int | Tensor  # a 0-d tensor only while a compiler traces
    k_first: int | Tensor
    q_len: int  # what divides a query's position; 0: no angles
    k_len: int
    normaliser: str  # a key of NORMALISERS
    eps: float
    backend: str = ""  # the linear kernel that computes it, forward and backward; empty: another form

    @classmethod
    def cosine(
        cls,
        max_len: int,
        *,
        causal: bool,
        q_first: int = 0,
        k_first: int = 0,
        k_len: int | None = None,
        normaliser: str = "clamp",
        eps: float = 1e-6,
    ) -> "AttentionSpec":
        """cosFormer: ReLU features at angles. ``k_len``: what divides a key's position, if not ``max_len``."""
        return cls(True, causal, q_first, k_first, max_len, max_len if k_len is None else k_len, normaliser, eps)

    @classmethod
    def features(
        cls, *, causal: bool, relu: bool = False, normaliser: str = "clamp", eps: float = 1e-6
    ) -> "AttentionSpec":
        """Products of features without angles."""
        return cls(relu, causal, 0, 0, 0, 0, normaliser, eps)

    def moved(self, tokens: int | Tensor) -> "AttentionSpec":
        """The specification after ``tokens`` earlier ones: keys move, and causal queries with them; others stay."""
        q_first = self.q_first + tokens if self.causal else self.q_first
        return self._replace(q_first=q_first, k_first=self.k_first + tokens)


class Call(NamedTuple):
    """One call on checked input: the tensors and what is computed of them, as they travel to a kernel and back."""

    q: Tensor  # [B,H,N,D]
    k: Tensor  # [B,Hk,S,D]
    v: Tensor  # [B,Hk,S,E]
    kv: Tensor | None  # [B,Hk,F,E], the state after the keys before; F = 2D with angles, D without
    z: Tensor | None  # [B,Hk,F]
    key_mask: Tensor | None  # bool [B,S]
    cu_seqlens: Tensor | None  # int [n+1]
    decay: Tensor | None  # [Hk,D], rates per token in the accumulator's dtype
    spec: AttentionSpec

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All fields but the specification."""
        return self[:-1]

    @property
    def looks_both_ways(self) -> bool:
        """Whether half of the channels look left and the other half right: decay without causality."""
        return self.decay is not None and not self.spec.causal


SCHEMA = (
    "bool relu, bool causal, SymInt q_first, SymInt k_first, SymInt q_len, SymInt k_len, "
    "str normaliser, float eps, str backend"
)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums, denominators and states are kept."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def new_output(q: Tensor, v: Tensor) -> Tensor:
    """An empty ``[B,H,N,E]`` laid out like q: where q's heads lie side by side in a token, so do the output's."""
    b, h, n, _ = q.shape
    if h > 1 and q.stride(1) < q.stride(2):
        return q.new_empty(b, n, h, v.shape[-1]).transpose(1, 2)
    return q.new_empty(b, h, n, v.shape[-1])
