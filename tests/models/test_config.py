"""Values that do not go together are refused when the config is made."""

import pytest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "softmaxx"}, r"unknown attention 'softmaxx'; known: .*cosformer.*softmax"),
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
    ],
)
def test_refused(config, changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_max_len_is_max_position_embeddings(config):
    assert config(max_len=128).max_position_embeddings == 128
    assert config(num_labels=7).num_labels == 7
