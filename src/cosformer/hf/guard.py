"""Checks of stock transformers models before ``attn_implementation="cosformer"`` or ``"multiscale"`` runs in them.

transformers accepts any registered name for any model, even if the model's attention ignores it. The guard raises an
error for such models, and detects packed sequences before the model's own code drops the arguments that describe them.
"""

import functools
import inspect
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from cosformer.hf.attention import MULTISCALE, NAME, NO_CROSS_ATTENTION
from cosformer.models.packing import ARGUMENTS, find_bounds

WORKING = (
    "it works in BERT, RoBERTa, XLM-R, DistilBERT, ELECTRA, ALBERT, ModernBERT, ViT, CLIP, Wav2Vec2, GPT-2, "
    "OPT, Llama, Qwen2, Qwen3"
)
WORKING += ", Mistral (without window), Gemma, Phi-3, GPT-NeoX, BART, Whisper"
# transformers' own test of the source says yes to these: they have no attention at all
_WITHOUT_ATTENTION = {"mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm", "fnet"}


def guard_stock_models() -> None:
    """Wrap transformers' check of ``attn_implementation`` for our names only; idempotent."""
    check = PreTrainedModel.get_correct_attn_implementation
    if hasattr(check, "cosformer_guard"):
        return

    @functools.wraps(check)
    def guarded(self: Any, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
        if requested_attention in (NAME, MULTISCALE):
            _check_model(self, requested_attention)
        return check(self, requested_attention, *args, **kwargs)

    guarded.cosformer_guard = True  # pyright: ignore
    PreTrainedModel.get_correct_attn_implementation = guarded
    # a field that any config may be given, so that from_pretrained(..., cosformer_max_len=...) knows it
    PreTrainedConfig.cosformer_max_len = None  # pyright: ignore[reportAttributeAccessIssue]


def _check_model(model: PreTrainedModel, attention: str) -> None:
    kind = model.config.model_type
    if kind in _WITHOUT_ATTENTION:
        raise ValueError(
            f"attn_implementation={attention!r}: {type(model).__name__} has no attention to replace; {WORKING}"
        )
    stock = next(c for c in type(model).__mro__ if c.__module__.startswith("transformers."))
    if not stock._can_set_attn_implementation():
        raise ValueError(
            f"attn_implementation={attention!r}: the attention of {type(model).__name__} does not go through "
            f"transformers' attention interface, so it cannot be replaced; {WORKING}"
        )
    config: Any = model.config
    if attention == MULTISCALE and (config.is_encoder_decoder or getattr(config, "add_cross_attention", False)):
        raise ValueError(
            f"attn_implementation={attention!r}: {type(model).__name__} crosses two sequences; {NO_CROSS_ATTENTION}"
        )
    if not any(hook is _find_packing for hook in model._forward_pre_hooks.values()):
        model.register_forward_pre_hook(_find_packing, with_kwargs=True)


def _find_packing(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pass packed sequences to every layer as ``cu_seq_lens_q``, in whichever form the caller described them."""
    if model.config._attn_implementation not in (NAME, MULTISCALE):
        return None
    names = list(inspect.signature(model.forward).parameters)
    given = dict(zip(names, args, strict=False)) | kwargs
    asked = any(given.get(name) is not None for name in ARGUMENTS)
    positions, mask, past = (given.get(name) for name in ("position_ids", "attention_mask", "past_key_values"))
    first = next((x for x in (given.get("input_ids"), given.get("inputs_embeds")) if x is not None), None)
    if first is None or not (asked or (isinstance(positions, torch.Tensor) and positions.dim() == 2)):
        return None
    if torch.compiler.is_compiling() and mask is not None and not asked:
        return None  # values are not known while tracing; with a mask it is padding
    seen = 0 if past is None else past.get_seq_length()
    if seen or (mask is not None and not (mask.dim() == 2 and bool(mask.all()))):
        if asked:
            raise ValueError("packed sequences cannot be combined with a padding mask or past_key_values; omit those")
        return None
    bounds = find_bounds(given, positions, *first.shape[:2])
    if bounds is None:
        return None
    if model.config.is_encoder_decoder:
        raise ValueError("packed sequences are not supported in encoder-decoders; pad the sequences instead")
    if given.get("use_cache") or past is not None:
        raise ValueError("packed sequences cannot be cached; call with use_cache=False")
    if "position_ids" in names and positions is None:
        raise ValueError(
            "packed sequences need position_ids that restart at 0 in each sequence, as DataCollatorWithFlattening "
            "makes them"
        )
    given |= {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    given.pop("seq_idx", None)
    if "use_cache" in names:
        given["use_cache"] = False
    if "attention_mask" in names:  # a mask of ones: transformers then leaves the packing to us
        given["attention_mask"] = torch.ones(first.shape[:2], dtype=torch.long, device=first.device)
    return (), given
