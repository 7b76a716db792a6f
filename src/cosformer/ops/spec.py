"""What one call of the family computes: the specification that goes from the operator to a kernel and back."""

from typing import NamedTuple

import torch
from torch import Tensor


class AttentionSpec(NamedTuple):
    """Settings of one linear attention, whatever form computes it.

    Features are ``x' = relu(x)``, or x as it is. With angles, query i sits at position ``q_first + i`` and key j at
    ``k_first + j``, and the score of a pair is ``q'.k' * cos(angle_i - angle_j)``, ``angle = (pi/2) * position / length``.
    Without (``q_len = k_len = 0``) it is ``q'.k'``.

    The fields are plain numbers and words, in the order of ``SCHEMA``: a registered operator takes ``*spec`` and makes a
    specification of them again.
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

    def moved(self, tokens: int | Tensor) -> "AttentionSpec":
        """Placed behind so many tokens: keys move, and causal queries with them; others keep their positions."""
        q_first, k_first = self.q_first + tokens if self.causal else self.q_first, self.k_first + tokens
        # field by field: older compilers of torch follow neither _replace nor a slice
        return AttentionSpec(
            self.relu, self.causal, q_first, k_first, self.q_len, self.k_len, self.normaliser, self.eps, self.backend
        )


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
