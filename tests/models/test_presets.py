"""The paper's hosts: sizes, parameter counts, and RoBERTa itself."""

import json

import pytest
import torch
from transformers import RobertaConfig, RobertaForMaskedLM, RobertaForSequenceClassification

from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.models.classification import CosformerForPairClassification, CosformerForSequenceClassification
from cosformer.models.masked_lm import CosformerForMaskedLM
from cosformer.models.presets import PRESETS, preset
from cosformer.models.roberta import config_from_roberta, from_roberta

CLASSES = {
    "roberta_base": CosformerForMaskedLM,
    "adaptive_lm": CosformerForCausalLM,
    "lra_retrieval": CosformerForPairClassification,
}


def linear(a: int, b: int, bias: bool = True) -> int:
    return a * b + b * bias


def block(width: int, qkv: int, inner: int, bias: bool) -> int:
    attention = 3 * linear(width, qkv, bias) + linear(qkv, width, bias)
    return attention + linear(width, inner) + linear(inner, width) + 4 * width


# body and head, counted by hand from the published sizes
LRA = {
    "lra_listops": 17 * 512 + 512 + 4 * block(512, 512, 1024, False) + 2 * 512 + linear(512, 1024) + linear(1024, 10),
    "lra_text": 257 * 256 + 256 + 4 * block(256, 256, 1024, False) + 2 * 256 + linear(256, 1024) + linear(1024, 2),
    "lra_retrieval": 257 * 128
    + 4 * block(128, 128, 512, False)
    + 2 * 128
    + linear(2 * 128, 512)  # [a, b]: 1,087,618 parameters, as the benchmark's own model has
    + linear(512, 256)
    + linear(256, 2),
    "lra_image": 256 * 128
    + 128
    + 1025 * 128
    + block(128, 64, 128, False)
    + 2 * 128
    + linear(128, 128)
    + linear(128, 10),
    "lra_pathfinder": 256 * 32 + 4 * block(32, 16, 32, False) + 2 * 32 + linear(32, 32) + linear(32, 2),
}
BANDS = 20_000 * 1024 + 40_000 * 256 + 207_744 * 64 + 1024 * 1024 + 1024 * 256 + 1024 * 64 + 2 * 1024
COUNTS = {"roberta_base": 124_697_433, "adaptive_lm": BANDS + 16 * block(1024, 1024, 4096, True), **LRA}


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("attention", ["cosformer", "softmax"])
def test_parameter_counts(name, attention):
    with torch.device("meta"):
        model = CLASSES.get(name, CosformerForSequenceClassification)(preset(name, attention=attention))
    assert sum(p.numel() for p in model.parameters()) == COUNTS[name]
    config = model.config
    layers = model.model.layers
    assert len(layers) == config.num_hidden_layers
    for layer in layers:
        qkv = config.num_attention_heads * config.head_dim
        expected = block(config.hidden_size, qkv, config.intermediate_size, config.attention_bias)
        assert sum(p.numel() for p in layer.parameters()) == expected


def test_adaptive_lm_has_247_million():
    assert 246.5e6 < COUNTS["adaptive_lm"] < 247.5e6


def test_presets_run_and_survive_json(tmp_path):
    for name in PRESETS:
        config = preset(name, num_hidden_layers=1, attention="cosformer")
        assert json.loads(config.to_json_string())["model_type"] == "cosformer"
        if name.startswith("lra"):
            model = CLASSES.get(name, CosformerForSequenceClassification)(config).eval()
            x = torch.randint(1, config.vocab_size, (2, 20))
            arguments = (x, x) if name == "lra_retrieval" else (x,)
            assert model(*arguments).logits.shape == (2, config.num_labels)
    assert preset("lra_listops").num_labels == 10
    with pytest.raises(ValueError, match="known: adaptive_lm"):
        preset("lra")


@pytest.fixture
def roberta_config():
    return RobertaConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=34, type_vocab_size=1, layer_norm_eps=1e-5, initializer_range=0.2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (RobertaForMaskedLM, CosformerForMaskedLM),
        (RobertaForSequenceClassification, CosformerForSequenceClassification),
    ],
)
def test_roberta_weights_give_robertas_logits(theirs, ours, roberta_config):
    original = theirs(roberta_config).eval()
    model = ours(config_from_roberta(roberta_config, attention="softmax")).eval()
    result = model.load_state_dict(from_roberta(original.state_dict()))
    assert not result.missing_keys
    assert not result.unexpected_keys
    x = torch.randint(3, 60, (2, 20))
    mask = torch.ones_like(x)
    x[1, 12:], mask[1, 12:] = 1, 0
    a, b = original(x, attention_mask=mask).logits, model(x, attention_mask=mask).logits
    real = mask.bool() if a.dim() == 3 else slice(None)
    torch.testing.assert_close(b[real], a[real], rtol=0, atol=1e-5)


def test_roberta_base_has_robertas_shapes():
    with torch.device("meta"):
        theirs = RobertaForMaskedLM(RobertaConfig(max_position_embeddings=514, type_vocab_size=1, vocab_size=50_265))
        ours = CosformerForMaskedLM(preset("roberta_base", attention="softmax"))
    renamed = from_roberta(theirs.state_dict())
    assert {k: v.shape for k, v in renamed.items()} == {k: v.shape for k, v in ours.state_dict().items()}
    with pytest.raises(ValueError, match="not a name"):
        from_roberta({"bert.x": torch.ones(1)})
