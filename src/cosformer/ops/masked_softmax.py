"""Softmax over the allowed entries of a row; a row that has none gives zeros, and finite gradients."""

import torch
from torch import Tensor


def masked_softmax(scores: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """``scores [..., S]``, bool ``allowed`` that broadcasts to them -> weights ``[..., S]``, log-sum-exp ``[..., 1]``.

    Both are float32 or better. The log-sum-exp of an empty row is the lowest finite number, so that a softmax over
    several log-sum-exps gives such a row no weight beside any other.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    lse = scores.logsumexp(-1, keepdim=True)
    return (scores - lse).exp().masked_fill(~allowed, 0), lse
