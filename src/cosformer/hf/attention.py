"""Attention for stock transformers models: what ``attn_implementation="cosformer"`` and ``"multiscale"`` run.

A stock model passes queries, keys and values and keeps everything else. Arguments without a linear form raise an error;
none is ignored silently.
"""

import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from cosformer.attention.multiscale import decay_rates
from cosformer.attention.recorded_state import extend_state
from cosformer.models.state_cache import StateLayer
from cosformer.ops.operator import cosformer_attention, linear_attention
from cosformer.ops.spec import accumulator

NAME = "cosformer"
MULTISCALE = "multiscale"
NO_CROSS_ATTENTION = (
    "decays need a distance between query and key, which cross-attention does not have; use "
    "attn_implementation='cosformer', or keep the model's own attention"
)

# arguments that change the scores in a way without linear form -> what to do instead
_NO_LINEAR_FORM = {
    "position_bias": "models with a learned bias on the scores, such as T5, cannot run it",
    "sliding_window": "set the config's sliding_window to None, or keep the model's own attention",
    "softcap": "set the config's attn_logit_softcapping to None, or keep the model's own attention",
    "s_aux": "models with attention sinks cannot run it",
    "cache": "continuous batching keeps paged keys; use generate()",
    "output_attentions": "there is no attention matrix; leave it out",
}
# tensors that come along and mean nothing for the scores
_HARMLESS = {"position_ids", "cache_position", "num_items_in_batch", "position_embeddings", "encoder_hidden_states"}
_HARMLESS |= {"token_type_ids", "encoder_attention_mask", "cu_seq_lens_q", "cu_seq_lens_k"}
_LENGTHS = ("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions")
_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop", "attn_dropout")

_previous = threading.local()  # the self-attention that ran just before, whose cross-attention may come next
_told: set[str] = set()


def cosformer_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    decays: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """``query [B,H,N,D]``, ``key`` and ``value [B,Hk,S,.]``, mask ``[B,S]`` from :func:`cosformer_mask` ->
    ``[B,N,H,E]``.

    ``scaling`` multiplies every score alike and cancels in the normalisation. ``decays``: multi-scale decays take the
    place of the cosine.
    """
    refuse_arguments(kwargs)
    if dropout:
        mention_dropout(module, dropout)
    causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
    if causal is None:
        raise ValueError(f"{type(module).__name__} does not say whether it is causal; cosformer attention cannot guess")
    layer = getattr(key, "cosformer_layer", None)
    max_len = max_len_of(getattr(module, "config", None))
    if decays and max_len is None:
        raise ValueError(
            "this model's config states no longest sequence, which sets the slowest decay: set config.cosformer_max_len"
        )
    check_mask(attention_mask, key, query, layer, max_len)
    bounds = kwargs.get("cu_seq_lens_q")
    if bounds is not None and max_len is None:
        max_len = int(bounds.diff().max())  # of the row, as for one sequence alone it is that sequence
    attend = partial(_decayed_attention if decays else cosformer_attention, causal=causal, max_len=max_len)
    if bounds is not None:
        return _packed(attend, query, key, value, attention_mask, layer, bounds), None
    if layer is not None:
        offset = layer.get_seq_length()
        out = _with_state(attend, query, key, value, attention_mask, causal, layer)
    else:
        before = None if causal else _self_attention_before(module, query)
        if decays and not causal and (before is not None or key.shape[2] != query.shape[2]):
            raise ValueError(f"{type(module).__name__}: {NO_CROSS_ATTENTION}")
        offset = key.shape[2] - query.shape[2] if causal else _cross_offset(module, query, key, before)
        out = attend(query, key, value, q_offset=offset, key_mask=attention_mask)
    _previous.call = (_identify(module, query), offset) if causal else None
    return out.transpose(1, 2).contiguous(), None


def _decayed_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, max_len: int, q_offset: int = 0, state: Any = None, **options: Any
) -> Any:
    """The mechanism ``multiscale`` with its defaults; causal queries are the last ones, so ``q_offset`` says nothing
    new."""
    if state is not None:
        decay = state.decay
    else:
        rates = decay_rates(num_heads=q.shape[1], head_dim=q.shape[3], causal=causal, slowest=1 / max_len)
        decay = rates[:: q.shape[1] // k.shape[1]].to(q.device, accumulator(v.dtype))
    return linear_attention(q, k, v, causal=causal, relu=True, decay=decay, state=state, **options)


def cosformer_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Tensor | None:
    """The padding mask as bool ``[B, kv_length]``, None if nothing is masked; any other pattern raises."""
    if mask_function not in (causal_mask_function, bidirectional_mask_function):
        raise ValueError(
            "this model asks for more than a causal or padding mask (a sliding window, chunks or a custom pattern), "
            "which linear attention cannot honour; keep the model's own attention (under torch.compile "
            "pass an attention_mask: without one packed sequences cannot be ruled out)"
        )
    if (
        kv_offset
        or not isinstance(q_offset, int | torch.SymInt)
        or (mask_function is causal_mask_function and q_offset + q_length != kv_length)
    ):
        raise ValueError(
            "linear attention works with a growing cache (the default DynamicCache) or a cosformer "
            "StateCache, not with a static or sliding one"
        )
    if attention_mask is None:
        # a cached step always gets a mask, so that keys that do not match it are noticed
        return torch.ones(batch_size, kv_length, dtype=torch.bool, device=device) if q_offset else None
    if attention_mask.shape[-1] != kv_length:
        raise ValueError(
            f"attention_mask covers {attention_mask.shape[-1]} positions and there are {kv_length} keys; it must cover "
            "the tokens seen before and the new ones"
        )
    if not q_offset and not torch.compiler.is_compiling() and bool(attention_mask.all()):
        return None
    return attention_mask.bool()


def max_len_of(config: Any) -> int | None:
    """The paper's M for a stock config: ``cosformer_max_len``, else its maximum length; None if it has none."""
    chosen = getattr(config, "cosformer_max_len", None)
    if chosen is not None:
        return chosen
    lengths = [x for x in (getattr(config, name, None) for name in _LENGTHS) if isinstance(x, int) and x > 0]
    return max(lengths) if lengths else None


def _with_state(
    attend: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    layer: StateLayer,
) -> Tensor:
    if not causal:
        raise ValueError(
            "a StateCache serves causal self-attention; for an encoder-decoder pass"
            " EncoderDecoderCache(StateCache(), DynamicCache())"
        )

    def extend(q: Tensor, k: Tensor, v: Tensor, state: Any, key_mask: Tensor | None) -> tuple[Tensor, Any]:
        return attend(q, k, v, key_mask=key_mask, state=state, return_state=True)

    new = None if mask is None else mask[:, -query.shape[2] :]
    out, layer.state = extend_state(extend, query, key, value, layer.state, new)
    layer.pending = False
    return out


def _packed(
    attend: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    layer: StateLayer | None,
    bounds: Tensor,
) -> Tensor:
    if mask is not None or layer is not None or key.shape[2] != query.shape[2]:
        raise ValueError("packed sequences go with neither a padding mask nor a cache; call with use_cache=False")
    return attend(query, key, value, cu_seqlens=bounds).transpose(1, 2).contiguous()


def check_mask(mask: Tensor | None, key: Tensor, query: Tensor, layer: StateLayer | None, max_len: int | None) -> None:
    if mask is None:
        return
    keys = key.shape[2] + (0 if layer is None else layer.get_seq_length())
    if mask.dim() != 2 or mask.shape != (key.shape[0], keys):
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} for {keys} keys: linear attention takes a padding mask [batch,"
            " keys]; a mask per query has no linear form"
        )
    if max_len is None:
        raise ValueError(
            "this model's config states no longest sequence, which a padded batch needs: set config.cosformer_max_len "
            "to the longest number of positions you will use"
        )


def _self_attention_before(module: nn.Module, query: Tensor) -> int | None:
    """Position of the first query in the causal self-attention of the same layer, if that ran just before: then this
    is its cross-attention."""
    before = getattr(_previous, "call", None)
    return before[1] if before is not None and before[0] == _identify(module, query) else None


def _cross_offset(module: nn.Module, query: Tensor, key: Tensor, before: int | None) -> int:
    """Position of the first query of a bidirectional or cross-attention.

    A decoder with a cache passes only the newest query to its cross-attention. Its position is taken from the
    self-attention of the same layer, which always runs just before.
    """
    if before is not None:
        return before
    if query.shape[2] == 1 and key.shape[2] > 1:
        raise ValueError(
            f"{type(module).__name__} passed a single query of unknown position; cosformer attention needs its position"
        )
    return 0


def _identify(module: nn.Module, query: Tensor) -> tuple[Any, ...]:
    """The layer and the number of its queries: self-attention and cross-attention of a layer have them in common."""
    return id(getattr(module, "config", None)), getattr(module, "layer_idx", None), query.shape[2]


def refuse_arguments(kwargs: dict[str, Any]) -> None:
    for name, way_out in _NO_LINEAR_FORM.items():
        if kwargs.get(name) is not None and kwargs[name] is not False:
            raise ValueError(f"linear attention has no form of {name}; {way_out}")
    for name, given in kwargs.items():
        if isinstance(given, Tensor) and name not in _HARMLESS:
            raise ValueError(f"linear attention does not know the tensor argument {name}; it may change scores")


def mention_dropout(module: nn.Module, dropout: float) -> None:
    config = getattr(module, "config", None)
    fields = [name for name in _DROPOUTS if getattr(config, name, None)] or ["attention dropout"]
    text = (
        f"attention dropout has no linear form: cosformer attention runs without config.{fields[0]}={dropout};"
        " set it to 0 to be rid of this message"
    )
    if text not in _told:
        _told.add(text)
        warnings.warn(text, stacklevel=3)
