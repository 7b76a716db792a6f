"""Tiny stock models with weights of size 0.5, for the tests of this folder: small ones hide mistakes."""

from typing import Any

import torch
import transformers

TEXT = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT |= {"max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**TEXT, "num_key_value_heads": 2}
HALVES = {"vocab_size": 60, "d_model": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
for _side in ("encoder", "decoder"):
    HALVES |= {f"{_side}_layers": 2, f"{_side}_attention_heads": 4, f"{_side}_ffn_dim": 64}

# name -> (config class, model class, values)
DECODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", GROUPED),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**GROUPED, "head_dim": 16}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**GROUPED, "sliding_window": None}),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {**GROUPED, "head_dim": 16}),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40},
    ),
    "opt": ("OPTConfig", "OPTForCausalLM", {**TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {**GROUPED, "sliding_window": None}),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", TEXT),
}
ENCODER_DECODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bart": ("BartConfig", "BartForConditionalGeneration", {**HALVES, "max_position_embeddings": 40}),
    "whisper": (
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {
            **HALVES,
            "num_mel_bins": 8,
            "max_source_positions": 20,
            "max_target_positions": 40,
            "decoder_start_token_id": 1,
        },
    ),
}
TEXT_ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertModel", TEXT),
    "roberta": ("RobertaConfig", "RobertaModel", {**TEXT, "pad_token_id": 1, "bos_token_id": 0}),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaModel", {**TEXT, "pad_token_id": 1, "bos_token_id": 0}),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertModel",
        {"vocab_size": 60, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 40},
    ),
    "electra": ("ElectraConfig", "ElectraModel", {**TEXT, "embedding_size": 32}),
    "albert": ("AlbertConfig", "AlbertModel", {**TEXT, "embedding_size": 16}),
}


def build(
    kind: tuple[str, str, dict[str, Any]],
    *,
    attention: str = "cosformer",
    dtype: torch.dtype = torch.float32,
    **more: Any,
) -> Any:
    """A model with ``attn_implementation=attention`` whose every weight is normal with deviation 0.5."""
    config_name, model_name, values = kind
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**values | more)
    model = getattr(transformers, model_name)._from_config(config, attn_implementation=attention)
    return randomize(model, dtype)


def randomize(model: torch.nn.Module, dtype: torch.dtype) -> Any:
    """Every weight normal with deviation 0.5, those of norms around 1, in eval mode."""
    model = model.to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = "norm" in name.lower() or ".ln_" in name or "layernorm" in name.lower()
            parameter.normal_(1.0 if norm and name.endswith("weight") else 0.0, 0.5)
    return model.eval()


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(3, 60, shape, generator=torch.Generator().manual_seed(1))


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).abs().max() / b.abs().max()).item()
