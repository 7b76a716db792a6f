"""The matrices that come out are those that the model attends with."""

import pytest
import torch
from torch import nn

from cosformer.attention import ATTENTIONS
from cosformer.models.attention_weights import attention_weights, model_weights
from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.models.classification import CosformerForPairClassification, CosformerForSequenceClassification
from cosformer.models.masked_lm import CosformerForMaskedLM

LINEAR = ("cosformer", "softmax", "relu", "identity", "performer")


@pytest.mark.parametrize("name", LINEAR)
def test_weights_times_values_are_what_the_layer_attended(config, ids, relative, name: str) -> None:
    model = CosformerForMaskedLM(config(attention=name)).eval()
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    for layer in model.model.layers:
        layer.attention.attention.register_forward_hook(lambda _, args, out: seen.append((args[2], out)))
    x = ids(2, 21)
    with torch.no_grad():
        model(x)
    recorded = list(seen)
    weights = attention_weights(model, x)
    assert len(weights) == 2 and all(w.shape == (2, 4, 21, 21) for w in weights)
    for w, (v, out) in zip(weights, recorded, strict=True):
        assert relative(w @ v, out) < 1e-5


@pytest.mark.parametrize("name", ["cosformer", "softmax"])
def test_a_causal_model_looks_back_only_and_its_rows_sum_to_one(config, ids, name: str) -> None:
    model = CosformerForCausalLM(config(attention=name, is_decoder=True)).eval()
    for w in attention_weights(model, ids(1, 16)):
        assert torch.equal(w, w.tril())
        alive = w.sum(-1) > 0.5
        assert alive.any() and torch.allclose(w.sum(-1)[alive], torch.ones(1), atol=1e-5)


@pytest.mark.parametrize("name", [name for name in ATTENTIONS if name not in ("rfa_gate_gaussian", "rfa_gate_arccos")])
def test_every_bidirectional_attention_can_be_watched(config, ids, name: str) -> None:
    model = CosformerForMaskedLM(config(attention=name))
    weights = attention_weights(model, ids(1, 64))
    assert [w.shape for w in weights] == [(1, 4, 64, 64)] * 2 and all(torch.isfinite(w).all() for w in weights)


def test_masked_keys_get_nothing(config, ids) -> None:
    model = CosformerForMaskedLM(config())
    mask = torch.ones(1, 12, dtype=torch.long)
    mask[:, 8:] = 0
    for w in attention_weights(model, ids(1, 12), mask):
        assert not w[..., 8:].any() and w[..., :8].any()


def test_the_own_vector_is_one_position_more(config, ids) -> None:
    kind = CosformerForSequenceClassification
    model = kind(config(cls_token=True, pooling="first", max_position_embeddings=65))
    assert attention_weights(model, ids(1, 12))[0].shape[-2:] == (13, 13)


def test_a_model_of_pairs_is_watched_on_one_text(config, ids) -> None:
    model = CosformerForPairClassification(config())
    assert len(attention_weights(model, ids(1, 12))) == 2


def test_watching_changes_nothing_and_leaves_nothing(config, ids) -> None:
    model = CosformerForCausalLM(config(is_decoder=True)).train()
    x = ids(1, 10)
    attention_weights(model, x)
    assert model.training and not any(m._forward_pre_hooks for m in model.modules())
    model.eval()
    assert torch.equal(model(x).logits, model(x).logits)
    with pytest.raises(ValueError, match="exceeds max_len"):
        attention_weights(model, ids(1, 100))
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_other_modules_are_refused() -> None:
    with pytest.raises(ValueError, match="Linear has no layer of this package"):
        attention_weights(nn.Linear(2, 2), torch.zeros(1, 2, dtype=torch.long))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_stock_model_with_its_own_attention(ids, implementation: str) -> None:
    import transformers

    sizes = {"vocab_size": 50, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
    model = transformers.GPT2LMHeadModel._from_config(
        transformers.GPT2Config(**sizes), attn_implementation=implementation
    ).eval()
    x = ids(1, 9)
    found = model_weights(model, x)
    assert model.config._attn_implementation == implementation
    model.set_attn_implementation("eager")
    expected = model(x, output_attentions=True).attentions
    for w, e in zip(found, expected, strict=True):
        torch.testing.assert_close(w, e, atol=1e-6, rtol=1e-5)


def test_a_stock_model_with_cosformer_attention(ids) -> None:
    import transformers

    import cosformer.hf  # noqa: F401  (registers the attention)

    sizes = {
        "vocab_size": 50,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 32,
    }
    config = transformers.BertConfig(**sizes, max_position_embeddings=32)
    model = transformers.BertModel._from_config(config, attn_implementation="cosformer").eval()
    x = ids(1, 9)
    (found,) = model_weights(model, x)
    own = model.encoder.layer[0].attention.self
    hidden = model.embeddings(x)
    q, k = (f(hidden).unflatten(-1, (4, 8)).transpose(1, 2).relu() for f in (own.query, own.key))
    place = torch.arange(9)
    scores = q @ k.mT * torch.cos(torch.pi / 2 * (place[:, None] - place) / 32)
    torch.testing.assert_close(found, scores / scores.sum(-1, keepdim=True).clamp_min(1e-6), atol=1e-6, rtol=1e-4)
