"""Weights in bfloat16 and int8: the same functions up to rounding, of our models and of others."""

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from cosformer.hf import CosformerConfig, CosformerForCausalLM
from cosformer.hf.convert import with_attention
from cosformer.hf.linearized import find_layers
from cosformer.hf.weights import ROWS, Int8Linear, shrink_weights

SIZES = {
    "vocab_size": 50,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
}


def own(**fields):
    torch.manual_seed(0)
    return CosformerForCausalLM(CosformerConfig(**SIZES, is_decoder=True, **fields)).eval()


def bytes_of(model) -> int:
    return sum(x.nbytes for x in {id(x): x for x in (*model.parameters(), *model.buffers())}.values())


@pytest.mark.parametrize("rows", [1, ROWS, ROWS + 1])
def test_an_int8_map_is_that_of_its_rounded_weights(rows):
    torch.manual_seed(0)
    linear = torch.nn.Linear(96, 32)
    made = Int8Linear(linear)
    assert (
        made.weight.float() * made.scale.float()[:, None] - linear.weight
    ).abs().max() < linear.weight.abs().max() / 200
    x = torch.randn(2, rows, 96).bfloat16()[:, :rows]
    exact = x.double() @ (made.weight.double() * made.scale.double()[:, None]).T + made.bias.double()
    torch.testing.assert_close(made(x).double(), exact, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("kind", ["bf16", "int8"])
@pytest.mark.parametrize("attention", ["cosformer", ["local", "multiscale"]])
def test_our_models_predict_nearly_the_same(kind, attention):
    model = own(attention=attention, short_convolution=2, output_gate=True)
    small = shrink_weights(copy.deepcopy(model), kind)
    ids = torch.randint(50, (2, 40))
    with torch.no_grad():
        expected, found = model(ids).logits, small(ids).logits
        assert found.dtype == torch.bfloat16
        assert (found.float() - expected).square().mean() < 2e-4 * expected.square().mean()
        out = small.generate(ids[:, :5], max_new_tokens=20, do_sample=False, eos_token_id=None)
    assert out.shape == (2, 25)
    assert bytes_of(small) < (0.55 if kind == "bf16" else 0.45) * bytes_of(model)


@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_linearized_models_predict_nearly_the_same(kind):
    torch.manual_seed(0)
    original = LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=64, eos_token_id=None))
    found = find_layers(original)
    learned = {name: getattr(found[0], name) for name in ("num_heads", "num_key_heads", "head_dim", "causal")}
    learned |= {"attention": None, "layers": [x.name for x in found], "kept": [], "features": 64, "max_len": 64}
    learned |= {"window": 8, "sinks": 2, "options": {}}
    model = with_attention(original, attention="learned", learned=learned).eval()
    small = shrink_weights(copy.deepcopy(model), kind)
    ids = torch.randint(50, (2, 40))
    with torch.no_grad():
        expected, found = model(ids).logits, small(ids).logits
        assert (found.float() - expected).square().mean() < 2e-4 * expected.square().mean()
        assert small.generate(ids[:, :5], max_new_tokens=20, do_sample=False).shape == (2, 25)


def test_what_has_no_linear_maps_is_refused():
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=2)).transformer
    with pytest.raises(ValueError, match=r"GPT2Model has no torch\.nn\.Linear"):
        shrink_weights(gpt2, "int8")
    with pytest.raises(ValueError, match="weights='int4'; known: bf16, int8"):
        shrink_weights(gpt2, "int4")
