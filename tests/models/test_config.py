"""Values that do not go together are refused when the config is made."""

import json

import pytest
import torch

from cosformer.commands.options import docstrings
from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.models.config import CosformerConfig
from cosformer.models.transformer import CosformerModel

CLASS_SETTINGS = ("model_type", "keys_to_ignore_at_inference", "attribute_map")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "softmaxx"}, "unknown attention 'softmaxx'; did you mean 'softmax'"),
        ({"attention": ["softmax"]}, "names 1 layers and num_hidden_layers=2"),
        ({"attention_options": [{}]}, "attention_options has 1 entries"),
        ({"num_attention_heads": 5}, "hidden_size=32 is not a multiple of num_attention_heads=5"),
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"norm": "middle"}, "norm='middle'; known: pre, post"),
        ({"position_embedding_type": "rotary"}, "known: learned, sinusoidal, none"),
        ({"pooling": "max"}, "known: first, mean"),
        ({"pairing": "sum"}, "known: four, concat"),
        ({"initializer": "zero"}, "known: normal, xavier"),
        ({"hidden_act": "swish"}, "unknown activation 'swish'"),
        ({"cls_token": True, "is_decoder": True}, "needs is_decoder=False"),
        ({"position_offset": 2, "position_embedding_type": "none"}, "position_offset=2"),
        ({"adaptive_cutoffs": [30, 20]}, "must rise between 0 and vocab_size=50"),
        ({"adaptive_cutoffs": [20, 50]}, "must rise between 0 and vocab_size=50"),
        ({"adaptive_cutoffs": [20], "tie_word_embeddings": False}, "tie_word_embeddings=True"),
        ({"adaptive_cutoffs": [20], "adaptive_factor": 64}, "leaves nothing for band 1"),
        ({"num_layers": 3}, "no field num_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3 does not divide num_attention_heads=4"),
        ({"norm_type": "batch"}, "known: layer, rms"),
        ({"feed_forward_type": "mixture"}, "known: plain, gated"),
        ({"is_encoder_decoder": True, "is_decoder": True}, "goes with neither is_decoder"),
    ],
)
def test_refused(config, changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_max_len_is_max_position_embeddings(config):
    assert config(max_len=128).max_position_embeddings == 128
    assert config(num_labels=7).num_labels == 7


def test_fields_of_another_version_are_left_out_with_a_warning(config, tmp_path):
    model = CosformerModel(config())
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"field_of_tomorrow": 3}))
    with pytest.warns(UserWarning, match="field_of_tomorrow"):
        again = CosformerModel.from_pretrained(tmp_path)
    assert not hasattr(again.config, "field_of_tomorrow")
    assert torch.equal(again.layers[0].attention.query.weight, model.layers[0].attention.query.weight)


def test_from_a_config_and_a_state_dict(config, ids):
    model = CosformerForCausalLM(config(is_decoder=True)).eval()
    again = CosformerForCausalLM.from_pretrained(None, config=model.config, state_dict=model.state_dict()).eval()
    assert torch.equal(again(ids(1, 5)).logits, model(ids(1, 5)).logits)


def test_attention_matrices_in_the_config_are_refused_too(config, ids):
    made = config()
    made._attn_implementation = "eager"
    made.output_attentions = True
    with pytest.raises(ValueError, match="no attention matrix"):
        CosformerModel(made)(ids(1, 4))


def test_every_field_has_a_docstring():
    fields = [name for name in CosformerConfig.__annotations__ if name not in CLASS_SETTINGS]
    assert sorted(docstrings(CosformerConfig)) == sorted(fields)
