"""Real-valued input: forecasts from the state, in the readings' units, through the Auto classes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTimeSeriesPrediction

from cosformer.hf import CosformerConfig, CosformerForForecasting, CosformerForSequenceClassification, CosformerModel


def config(**changes: Any) -> CosformerConfig:
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 1,
    }
    values = {"num_input_channels": 3, "max_position_embeddings": 40, "position_embedding_type": "sinusoidal"}
    return CosformerConfig(**sizes | values | {"is_decoder": True} | changes)


def forecaster(**changes: Any) -> CosformerForForecasting:
    torch.manual_seed(0)
    model = CosformerForForecasting(config(**changes)).eval()
    torch.nn.init.normal_(model.change.weight, std=0.3)
    return model


def test_an_untrained_model_forecasts_the_last_value() -> None:
    x = torch.randn(2, 9, 3)
    model = CosformerForForecasting(config(channel_mean=[1.0, 2.0, 3.0], channel_scale=[2.0, 0.1, 1.0])).eval()
    torch.testing.assert_close(model(x).logits, x)


@pytest.mark.parametrize("attention", ["cosformer", "softmax", "sparse"])
def test_forecasts_from_the_state_are_those_of_the_whole_series(attention: str) -> None:
    model, x = forecaster(attention=attention), torch.randn(2, 20, 3)
    whole = x
    for _ in range(5):
        whole = torch.cat((whole, model(whole, use_cache=False).logits[:, -1:]), dim=1)
    torch.testing.assert_close(model.forecast(x, 5), whole[:, 20:], rtol=1e-4, atol=1e-5)


def test_left_padding_changes_nothing() -> None:
    model, x = forecaster(), torch.randn(1, 12, 3)
    padded = torch.cat((torch.full((1, 5, 3), 7.0), x), dim=1)
    mask = torch.tensor([[0] * 5 + [1] * 12])
    # what a mask changes is the order of sums alone; the angles count places, so the last position's neighbours stay
    # near
    torch.testing.assert_close(model.forecast(padded, 4, mask), model.forecast(x, 4), rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="pad shorter series on the left"):
        model.forecast(x, 2, torch.tensor([[1] * 11 + [0]]))
    with pytest.raises(ValueError, match=r"12 readings and 30 steps exceed max_len=40 .* give the last 11 readings"):
        model.forecast(x, 30)


def test_units_do_not_matter() -> None:
    x, plain = torch.randn(2, 10, 3), forecaster()
    shift, scale = torch.tensor([5.0, -3.0, 100.0]), torch.tensor([10.0, 0.01, 2.0])
    scaled = forecaster(channel_mean=shift.tolist(), channel_scale=scale.tolist())
    torch.testing.assert_close(scaled(x * scale + shift).logits, plain(x).logits * scale + shift, rtol=1e-4, atol=1e-4)
    losses = [plain(x, labels=x).loss, scaled(x * scale + shift, labels=x * scale + shift).loss]
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)


def test_labels_that_are_not_numbers_do_not_count() -> None:
    model, x = forecaster(), torch.randn(1, 6, 3)
    labels = x.clone()
    labels[:, 4:] = float("nan")
    torch.testing.assert_close(model(x, labels=labels).loss, model(x[:, :4], labels=x[:, :4]).loss)
    model(x, labels=labels).loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_auto_classes_load_what_was_saved(tmp_path: Path) -> None:
    model, x = forecaster(channel_scale=[2.0, 1.0, 1.0]), torch.randn(1, 8, 3)
    model.save_pretrained(tmp_path / "a")
    loaded = AutoModelForTimeSeriesPrediction.from_pretrained(tmp_path / "a")
    assert isinstance(loaded, CosformerForForecasting) and torch.equal(loaded.forecast(x, 3), model.forecast(x, 3))
    encoder = CosformerForSequenceClassification(config(is_decoder=False, pooling="mean")).eval()
    encoder.save_pretrained(tmp_path / "b")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "b")
    assert torch.equal(again(input_values=x).logits, encoder(input_values=x).logits)


def test_what_does_not_fit_is_refused() -> None:
    x = torch.randn(1, 8, 3)
    with pytest.raises(ValueError, match=r"expected \[batch, steps, 3\]"):
        forecaster()(x[..., :2])
    with pytest.raises(ValueError, match="input_values need num_input_channels in the config"):
        CosformerModel(config(num_input_channels=None))(input_values=x)
    with pytest.raises(ValueError, match="forecasting needs num_input_channels and is_decoder=True"):
        CosformerForForecasting(config(is_decoder=False))
    for changes, said in (({"channel_mean": [1.0]}, "has 1 values"), ({"channel_scale": [1.0, 0.0, 1.0]}, "above 0")):
        with pytest.raises(ValueError, match=said):
            config(**changes)
