"""Stock models whose attention cannot be replaced are refused by name, and what stock models take as arguments."""

import copy
import pickle

import pytest
import torch
import transformers

import cosformer.hf  # noqa: F401
from cosformer.hf import StateCache
from hf.families import DECODERS, build, ids
from versions import rewinds

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32, "vocab_size": 60}
REFUSED = {
    "DebertaModel": SMALL,
    "DebertaV2Model": SMALL,
    "XLNetModel": {"d_model": 32, "n_layer": 1, "n_head": 4, "d_inner": 32, "vocab_size": 60},
    "FunnelModel": {"d_model": 32, "block_sizes": [1], "n_head": 4, "d_head": 8, "d_inner": 32, "vocab_size": 60},
    "GPTJForCausalLM": {"n_embd": 32, "n_layer": 1, "n_head": 4, "rotary_dim": 4, "vocab_size": 60},
    "GPTNeoForCausalLM": {"hidden_size": 32, "num_layers": 1, "num_heads": 4, "attention_types": [[["global"], 1]]},
    "FalconForCausalLM": {**SMALL, "alibi": False},
    "BloomForCausalLM": {"hidden_size": 32, "n_layer": 1, "n_head": 4, "vocab_size": 60},
    "MPNetModel": SMALL,
    "MptForCausalLM": {"d_model": 32, "n_layers": 1, "n_heads": 4, "vocab_size": 60},
    "LongformerModel": {**SMALL, "attention_window": 4},
    "MambaForCausalLM": {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 60},
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name, tmp_path):
    made = getattr(transformers, name)
    config = made.config_class(**REFUSED[name])
    with pytest.raises(ValueError, match=rf"{name}.*it works in BERT.*Llama"):
        made._from_config(config, attn_implementation="cosformer")
    model = made(made.config_class(**REFUSED[name]))  # with its own attention nothing changes
    assert model.config._attn_implementation != "cosformer"
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=name):
        made.from_pretrained(tmp_path, attn_implementation="cosformer")


def test_the_longest_length_is_an_argument(tmp_path):
    build(DECODERS["gpt2"]).save_pretrained(tmp_path)
    kind = transformers.GPT2LMHeadModel
    model = kind.from_pretrained(tmp_path, attn_implementation="cosformer", cosformer_max_len=500)
    assert model.config.cosformer_max_len == 500
    other = kind.from_pretrained(tmp_path, attn_implementation="cosformer")
    assert other.config.cosformer_max_len is None
    assert (model(ids(1, 9)).logits - other(ids(1, 9)).logits).abs().max() > 1e-4


def test_guarded_models_are_copied_and_pickled():
    model = build(DECODERS["llama"])
    with torch.no_grad():
        expected = model(ids(1, 7)).logits
        for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(again(ids(1, 7)).logits, expected)


@rewinds
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_assisted_decoding_with_states(name):
    model, helper = build(DECODERS[name]), build(DECODERS[name], num_hidden_layers=1)
    options = {"do_sample": False, "max_new_tokens": 16, "eos_token_id": None, "pad_token_id": 0}
    greedy = model.generate(ids(1, 6), **options)
    for how in ({"assistant_model": helper}, {"prompt_lookup_num_tokens": 3}):
        assert torch.equal(model.generate(ids(1, 6), past_key_values=StateCache(), **how, **options), greedy)
