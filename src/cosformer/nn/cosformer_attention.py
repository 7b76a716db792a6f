"""Multi-head cosFormer attention with projections: a drop-in for ``torch.nn.MultiheadAttention``."""

from typing import Any

import torch
from torch import Tensor, nn

from cosformer.ops.checks import check_whole
from cosformer.ops.dense import dense_scores, hide
from cosformer.ops.operator import cosformer_attention
from cosformer.ops.spec import AttentionSpec
from cosformer.ops.state import LinearState


class CosformerAttention(nn.Module):
    """cosFormer attention between projections, called like ``nn.MultiheadAttention``.

    Tensors are ``[length, batch, channels]``, with ``batch_first`` ``[batch, length, channels]``, without batch
    ``[length, channels]``. ``kdim`` and ``vdim`` are the channels of key and value where they differ from
    ``embed_dim``. ``max_len`` is the paper's M: the longest length, fixed for trained weights. None takes the longer
    length of each call, as the authors' module does, and goes with neither padding nor :meth:`extend`. There is no
    attention dropout: a linear form has no matrix to drop from.
    """

    # torch's encoder layer takes its fused softmax path only where there is a packed projection: this keeps ours in use
    in_proj_bias = None
    in_proj_weight = None
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        causal: bool = False,
        max_len: int | None = None,
        eps: float = 1e-6,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim={embed_dim} does not split over num_heads={num_heads}; it must be a multiple")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.batch_first, self.causal, self.eps = batch_first, causal, eps
        self.max_len: int | None = None
        if max_len is not None:
            self.set_max_len(max_len)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.k_proj = nn.Linear(self.kdim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.v_proj = nn.Linear(self.vdim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform weights, zero biases, as ``nn.MultiheadAttention`` starts."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, causal={self.causal}, max_len={self.max_len}"

    def set_max_len(self, max_len: int) -> None:
        """Change the length that the quarter turn is spread over; weights stay as they are.

        Two tokens d apart are then weighted by ``cos(pi/2 * d/max_len)`` with the new max_len. A larger one flattens
        the preference for near tokens and admits longer input: the change is smooth, d/max_len halves when max_len
        doubles, and a model usually needs some further training at the new length. A smaller one sharpens it and
        refuses longer input.
        """
        check_whole("max_len", max_len, 1)
        self.max_len = max_len

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        group: Any = None,
    ) -> tuple[Tensor, Tensor | None]:
        """``(output, weights)``, as ``nn.MultiheadAttention`` returns them; weights are None unless ``need_weights``.

        ``key_padding_mask [B,S]``: bool, True = padding, or float, 0 = keep and -inf = padding. ``attn_mask``: the
        causal mask or None; ``is_causal=True`` asserts that it is causal, without checking. Weights are ``[B,N,S]``, or
        ``[B,H,N,S]`` with ``average_attn_weights=False``, and cost O(N S) memory. ``group``: a process group whose
        ranks hold a shard of the sequence each, as in :func:`cosformer_attention`.
        """
        if group is not None and need_weights:
            raise ValueError(
                "need_weights=True with a group: no rank has the keys of all; call with need_weights=False"
            )
        batched = query.dim() == 3
        if not batched:
            query, key, value = (x.unsqueeze(0 if self.batch_first else 1) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        q, k, v = self._heads(query, key, value)
        masked = is_causal or self._is_causal_mask(attn_mask, q.shape[2], k.shape[2])
        causal = self.causal or masked
        key_mask = None if key_padding_mask is None else _keep(key_padding_mask)
        options: dict[str, Any] = {"causal": causal, "max_len": self.max_len, "key_mask": key_mask, "eps": self.eps}
        out = cosformer_attention(q, k, v, **options, group=group)
        weights = self._weights(q, k, key_mask, causal) if need_weights else None
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        out = self._merge(out)
        if not batched:
            out = out.squeeze(0 if self.batch_first else 1)
            weights = None if weights is None else weights.squeeze(0)
        return out, weights

    def extend(
        self, x: Tensor, state: LinearState | None = None, key_padding_mask: Tensor | None = None
    ) -> tuple[Tensor, LinearState]:
        """Self-attention of the next tokens ``x`` of a stream: ``(output, state)``; causal, at a cost per token that is
        constant.

        ``key_padding_mask`` as in :meth:`forward`, for these tokens (prompts padded on the left).
        """
        if not self.causal:
            raise ValueError("extend needs causal attention; build the module with causal=True")
        q, k, v = self._heads(x, x, x)
        key_mask = None if key_padding_mask is None else _keep(key_padding_mask)
        out, new_state = cosformer_attention(
            q, k, v, causal=True, max_len=self.max_len, key_mask=key_mask, state=state, return_state=True, eps=self.eps
        )
        return self._merge(out), new_state

    def _heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project and split: ``[B, H, length, head_dim]`` each."""
        dims = (("query", query, self.embed_dim), ("key", key, self.kdim), ("value", value, self.vdim))
        for name, x, channels in dims:
            if x.dim() != 3 or x.shape[-1] != channels:
                layout = "[batch, length, channels]" if self.batch_first else "[length, batch, channels]"
                raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {layout} with {channels} channels")
        projected = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        if not self.batch_first:
            projected = tuple(x.transpose(0, 1) for x in projected)
        q, k, v = (x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for x in projected)
        return q, k, v

    def _merge(self, out: Tensor) -> Tensor:
        out = out.transpose(1, 2).flatten(2)
        return self.out_proj(out if self.batch_first else out.transpose(0, 1))

    def _is_causal_mask(self, mask: Tensor | None, n: int, s: int) -> bool:
        """Whether ``mask`` is the causal one; any other mask raises."""
        if mask is None:
            return False
        causal = torch.ones(n, s, dtype=torch.bool, device=mask.device).triu(1)
        expected = causal if mask.dtype == torch.bool else torch.where(causal, float("-inf"), 0.0)
        # a meta mask has no values to look at
        if mask.shape[-2:] != (n, s) or not (mask.is_meta or bool((mask == expected).all())):
            raise ValueError(
                f"attn_mask of shape {tuple(mask.shape)} is not the causal mask: a linear form has no matrix to mask "
                "pair by pair; pass None or the causal mask, and padding as key_padding_mask"
            )
        return True

    def _weights(self, q: Tensor, k: Tensor, key_mask: Tensor | None, causal: bool) -> Tensor:
        max_len = self.max_len or max(q.shape[2], k.shape[2])
        scores = dense_scores(q, hide(k, key_mask), AttentionSpec.cosine(max_len, causal=causal, eps=self.eps))
        return scores / scores.sum(-1, keepdim=True).clamp_min(self.eps)


def _keep(mask: Tensor) -> Tensor:
    """torch's padding mask -> True = may be attended."""
    if mask.dtype == torch.bool:
        return ~mask
    known = not torch.compiler.is_compiling() and not mask.is_meta
    if known and not bool(((mask == 0) | (mask == float("-inf"))).all()):
        raise ValueError("a float key_padding_mask may hold 0 (keep) and -inf (padding) only; use a bool mask")
    return mask == 0
