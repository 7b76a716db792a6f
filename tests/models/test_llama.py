"""The modern block: checkpoints of Llama's family in our classes."""

import pytest
import torch
import transformers

from cosformer.attention import ATTENTIONS, attention_class
from cosformer.models.causal_lm import CosformerForCausalLM

SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.5}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}
FAMILIES = {
    "llama": ("Llama", {}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama 3": ("Llama", {"rope_parameters": LLAMA3, "head_dim": 16}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
}


def stock(family: str, path) -> transformers.PreTrainedModel:
    name, more = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**SIZES | more)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():  # norms and biases too: at their first values they hide mistakes
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(path)
    return model


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_gives_the_stock_logits_and_then_takes_any_attention(family, ids, relative, tmp_path):
    theirs, x = stock(family, tmp_path), ids(2, 40)
    mask = torch.ones_like(x)
    mask[1, 30:] = 0
    ours = CosformerForCausalLM.from_pretrained(tmp_path).eval()
    expected = theirs(x, attention_mask=mask).logits
    assert ours.config.attention == "softmax"
    assert relative(ours(x, attention_mask=mask).logits[mask.bool()], expected[mask.bool()]) < 1e-5
    ours.save_pretrained(tmp_path / "ours")
    again = CosformerForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert torch.equal(again(x).logits, ours(x).logits)
    hybrid = CosformerForCausalLM.from_pretrained(tmp_path, attention=["cosformer", "softmax"]).eval()
    assert all(torch.equal(a, b) for a, b in zip(hybrid.parameters(), ours.parameters(), strict=True))
    whole = hybrid(x, use_cache=False).logits
    cache = hybrid(x[:, :9]).past_key_values
    steps = [hybrid(token, past_key_values=cache).logits for token in x[:, 9:].split(1, 1)]
    assert relative(torch.cat(steps, 1), whole[:, 9:]) < 1e-4
    assert relative(whole, expected) > 1e-2


CAUSAL = [name for name in ATTENTIONS if attention_class(name).traits.causal]


@torch.no_grad()
@pytest.mark.parametrize("attention", CAUSAL)
def test_other_attentions_of_the_zoo(attention, ids, tmp_path):
    stock("llama", tmp_path)
    model = CosformerForCausalLM.from_pretrained(tmp_path, attention=attention, max_len=128).eval()
    assert model.config.max_position_embeddings == 128
    assert model(ids(2, 20)).logits.isfinite().all()
    torch.manual_seed(0)
    own = CosformerForCausalLM(model.config).model.layers[1].attention.attention
    for name, buffer in own.named_buffers():  # what the checkpoint does not have starts as in a new model
        assert torch.equal(model.model.layers[1].attention.attention.get_buffer(name), buffer), name


@torch.no_grad()
def test_generation_is_the_stock_models(ids, tmp_path):
    theirs = stock("qwen3", tmp_path)
    ours = CosformerForCausalLM.from_pretrained(tmp_path).eval()
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert torch.equal(ours.generate(ids(2, 7), **options), theirs.generate(ids(2, 7), **options))


def test_sliding_windows_are_refused(tmp_path):
    transformers.MistralConfig(**SIZES, sliding_window=8).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="sliding windows"):
        CosformerForCausalLM.from_pretrained(tmp_path)
