"""Nystromformer: the softmax matrix from its columns and rows at a few landmarks."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.attention.base import Attention, Traits, at_least_one
from cosformer.attention.slices import slices, works_in_slices
from cosformer.ops.dense import hide
from cosformer.ops.grouping import add_rows
from cosformer.ops.masked_softmax import masked_softmax


class Nystrom(Attention):
    """``softmax(Q Kt^T) pinv(softmax(Qt Kt^T)) softmax(Qt K^T) V + conv(V)``, logits over sqrt(D) (Xiong et al. 2021).

    The landmarks Qt, Kt are means over R segments of equal length (up to one token) of the tokens that the mask keeps;
    with R tokens or fewer each token is its own landmark. The pseudo-inverse takes ``iterations`` steps of the paper's
    iteration, started from each matrix' own norm: the released code takes the maximum over the whole batch, which would
    make results depend on batch mates. ``conv_kernel``: length of the depth-wise convolution of V, odd, or None.
    """

    traits = Traits(
        paper="Xiong et al. 2021", time="N R D + R^3", memory="N R + R^2", causal=False, cross=False, streaming=False
    )

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_len: int,
        causal: bool,
        num_landmarks: int = 64,
        iterations: int = 6,
        conv_kernel: int | None = 35,
    ) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        at_least_one(num_landmarks=num_landmarks, iterations=iterations)
        if conv_kernel is not None and (conv_kernel < 1 or conv_kernel % 2 == 0):
            raise ValueError(
                f"conv_kernel={conv_kernel}; it must be odd, so that it has a middle, or None for no convolution"
            )
        self.num_landmarks, self.iterations = num_landmarks, iterations
        self.conv_weight = None
        if conv_kernel is not None:
            self.conv_weight = nn.Parameter(torch.empty(num_heads, 1, conv_kernel, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.conv_weight is not None:
            bound = self.conv_weight.shape[2] ** -0.5
            nn.init.uniform_(self.conv_weight, -bound, bound)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q, k [B,H,N,D], v [B,H,N,E], key_mask bool [B,N] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        live, allowed = q.new_ones(q.shape[0], q.shape[2], dtype=torch.bool), None
        if key_mask is not None:
            live, allowed = key_mask, key_mask[:, None, None, :]
        v = hide(v, key_mask)  # for the convolution

        segment, count = self.segments(live)
        alive = (count > 0)[:, None, None, :]  # landmarks: fewer than R when there are fewer tokens
        landmark_q, landmark_k = self.means(q, segment, count), self.means(k, segment, count)

        scores = landmark_q @ landmark_k.mT * self.head_dim**-0.5
        middle = masked_softmax(scores, alive & alive.mT)
        rows = F.scaled_dot_product_attention(landmark_q, k, v, attn_mask=allowed)
        rows = (pseudo_inverse(middle, self.iterations) @ rows.to(middle.dtype)).to(v.dtype)
        all_alive = key_mask is None and q.shape[2] >= self.num_landmarks
        alive = None if all_alive else alive
        if not works_in_slices(q):
            return self._rows(q, landmark_k, rows, alive, v, slice(0, q.shape[2]))
        out = v.new_empty(v.shape)
        for part in slices(q):
            out[:, :, part] = self._rows(q[:, :, part], landmark_k, rows, alive, v, part)
        return out

    def _rows(
        self, q: Tensor, landmark_k: Tensor, landmark_rows: Tensor, alive: Tensor | None, v: Tensor, part: slice
    ) -> Tensor:
        """The output of the queries at the positions ``part``, whose convolution reads the values around them."""
        out = F.scaled_dot_product_attention(q, landmark_k, landmark_rows, attn_mask=alive)
        if self.conv_weight is None:
            return out
        weight = self.conv_weight.to(v.dtype)
        reach = weight.shape[2] // 2
        first = max(0, part.start - reach)
        conv = F.conv2d(v[:, :, first : part.stop + reach], weight, padding=(reach, 0), groups=self.num_heads)
        return conv[:, :, part.start - first : part.stop - first].add_(out)

    def segments(self, live: Tensor) -> tuple[Tensor, Tensor]:
        """Segment ``[B,N]`` of each live token (R for the others) and the number of tokens in each, ``[B,R]``."""
        total = live.sum(-1, keepdim=True)
        place = live.cumsum(-1) - 1
        segment = (place * self.num_landmarks // total.clamp(min=1)).masked_fill(~live, self.num_landmarks)
        count = total.new_zeros(live.shape[0], self.num_landmarks + 1).scatter_add_(1, segment, live.long())
        return segment, count[:, : self.num_landmarks]

    def means(self, x: Tensor, segment: Tensor, count: Tensor) -> Tensor:
        """Landmarks ``[B,H,R,D]`` of ``x [B,H,N,D]``; segments without a token give zeros."""
        sums = add_rows(x, segment[:, None].expand(-1, x.shape[1], -1), self.num_landmarks + 1)
        return sums[:, :, : self.num_landmarks] / count[:, None, :, None].clamp(min=1).to(x.dtype)


def pseudo_inverse(a: Tensor, iterations: int) -> Tensor:
    """Moore-Penrose inverse of row-stochastic matrices ``[..., R, R]`` by the iteration of Xiong et al.

    Rows and columns of zeros, as of landmarks that do not exist, stay zeros.
    """
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    norm = a.sum(-2).amax(-1)[..., None, None]  # largest column sum; the row sums are 1
    z = a.mT / norm.clamp(min=torch.finfo(a.dtype).tiny)
    for _ in range(iterations):
        az = a @ z
        z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
    return z
