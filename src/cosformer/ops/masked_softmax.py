"""Softmax over the allowed entries of a row; a row that has none gives zeros, and finite gradients."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.ops.dispatch import writes_onnx


def masked_softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """``scores [..., S]``, bool ``allowed`` that broadcasts to them -> weights ``[..., S]``, float32 or better."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return scores.softmax(-1).masked_fill(~allowed, 0)


def allowed_attention(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, **options: Any) -> Tensor:
    """torch's softmax attention over the allowed keys, bool ``allowed [..., N, S]``."""
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, **options)
    # the softmax of an ONNX file makes something of a row without a key
    return out.masked_fill(~allowed.any(-1, keepdim=True), 0) if writes_onnx() else out


def partial_attention(scores: Tensor, allowed: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax attention over part of the keys: out ``[..., N, E]`` and log-sum-exp ``[..., N, 1]``, for `merge_parts`.

    ``scores [..., N, S]`` of float32 or better (overwritten: they are the largest tensor of the attentions that sort),
    bool ``allowed`` that broadcasts to them, ``v [..., S, E]``. The log-sum-exp of a row without a key is the lowest
    finite number.
    """
    low = torch.finfo(scores.dtype).min
    scores = scores.masked_fill_(~allowed, low)
    largest = scores.detach().amax(-1, keepdim=True)
    scores = scores.sub_(largest).exp_()
    total = scores.sum(-1, keepdim=True)
    out = (scores.to(v.dtype) @ v) / total.to(v.dtype)
    none = largest == low
    return out.masked_fill(none, 0), (largest + total.log()).masked_fill(none, low)


def merge_parts(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """One softmax over the keys of all parts, each (out ``[..., E]``, log-sum-exp ``[..., 1]``)."""
    outs, totals = zip(*parts, strict=True)
    share = torch.stack(totals).softmax(0)
    return (share.to(outs[0].dtype) * torch.stack(outs)).sum(0)
