"""Linear attention whose sums decay: a gated recurrence, computed chunk by chunk in linear time."""

import torch
from torch import Tensor

from cosformer.ops.normaliser import NORMALISERS
from cosformer.ops.state import LinearState

CHUNK = 128  # rows worked on at once: pairs cost N CHUNK; 128 measured fastest of 32, 64, 128, 256 at 128 features


def gated_attention(
    fq: Tensor, fk: Tensor, v: Tensor, log_keep: Tensor, state: LinearState | None, *, normaliser: str, eps: float
) -> tuple[Tensor, LinearState]:
    """``S_t = g_t S_(t-1) + fk_t v_t^T``, ``z_t = g_t z_(t-1) + fk_t``; row t is ``fq_t S_t / fq_t.z_t``.

    fq, fk [B,H,N,F], v [B,H,N,E], log_keep = log g [B,H,N], at most 0 -> (out [B,H,N,E], state after the N tokens).
    Time and memory are linear in N. In closed form key j weighs ``g_(j+1) ... g_t fq_t.fk_j`` in row t: exponentials of
    sums of logarithms, never above one, so nothing overflows, however long the sequence.
    """
    n, width = fq.shape[2], v.shape[-1]
    values = torch.cat((v, torch.ones_like(v[..., :1])), dim=-1)  # the last column gathers the row sums
    if state is None:
        sums = values.new_zeros(*fk.shape[:2], fk.shape[-1], width + 1)
    else:
        sums = torch.cat((state.kv, state.z[..., None]), dim=-1)
    later = torch.ones(min(n, CHUNK), min(n, CHUNK), dtype=torch.bool, device=fq.device).triu(1)

    out = []
    for q, k, x, log_g in zip(*(t.split(CHUNK, dim=2) for t in (fq, fk, values, log_keep)), strict=True):
        rows = q.shape[2]
        reach = log_g.cumsum(-1)  # log of g_1 ... g_t within the chunk
        decay = (reach[..., :, None] - reach[..., None, :]).masked_fill(later[:rows, :rows], -torch.inf).exp()
        out.append((q @ k.mT * decay) @ x + (q * reach.exp()[..., None]) @ sums)
        rest = (reach[..., -1:] - reach).exp()  # how much of each token is left after the chunk
        sums = sums * reach[..., -1, None, None].exp() + (k * rest[..., None]).mT @ x

    num, den = torch.cat(out, dim=2).split((width, 1), dim=-1)
    position = torch.tensor(n, device="cpu") if state is None else state.position + n
    after = LinearState(sums[..., :width], sums[..., width], position, 0)
    return num / NORMALISERS[normaliser].divisor(den, eps), after
