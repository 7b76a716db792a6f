"""A sequence through a model window by window: the loss and the gradients of the whole, in the memory of a window."""

from typing import Any

import pytest
import torch
from torch import Tensor

from cosformer.hf import CosformerConfig, CosformerForCausalLM
from cosformer.models.windows import backward_in_windows, losses_in_windows

BOTH = {"short_convolution": 4, "output_gate": True}


def model_of(**fields: Any) -> CosformerForCausalLM:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 40,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    dropout = {"hidden_dropout_prob": 0.0, "position_embedding_type": "sinusoidal"}
    config = CosformerConfig(**sizes | dropout | {"max_position_embeddings": 4096, "is_decoder": True} | fields)
    model = CosformerForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "convolution" in name or "gate" in name:  # at first the one changes nothing, the other nearly all to zero
            torch.nn.init.normal_(parameter, std=0.5)
    return model.double().train()


def gradients(model: torch.nn.Module) -> Tensor:
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return found


@pytest.mark.parametrize("window", [1, 16, 50, 99, 100, 500])
@pytest.mark.parametrize("attention", ["cosformer", "linear", "rotary_linear"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("fields", [{}, BOTH], ids=["plain", "convolution and gate"])
def test_pieces_give_the_loss_and_gradients_of_the_whole(
    attention: str, window: int, padded: bool, fields: dict[str, Any]
) -> None:
    model = model_of(attention=attention, **fields)
    ids = torch.randint(0, 40, (2, 100))
    batch = {"input_ids": ids, "labels": ids.clone()}
    if padded:
        batch["attention_mask"] = torch.ones_like(ids)
        batch["attention_mask"][1, :30] = 0
        batch["labels"][1, :31] = -100
    one = model(**batch).loss
    one.backward()
    expected = gradients(model)
    found = backward_in_windows(model, batch, window=window)
    # transformers computes the loss in float32
    assert float(found) == pytest.approx(float(one.detach()), abs=1e-6)
    assert float((gradients(model) - expected).abs().max() / expected.abs().max()) < 1e-6
    losses = model.eval()(**batch, reduction="none", use_cache=False).loss
    assert torch.allclose(losses_in_windows(model, batch, window=window), losses, rtol=0, atol=1e-6)


@pytest.mark.parametrize("fields", [{}, BOTH], ids=["plain", "convolution and gate"])
def test_truncated_gradients_stop_at_the_borders(fields: dict[str, Any]) -> None:
    """The loss is that of the whole; the gradients are those of windows that start from states without history."""
    model = model_of(**fields)
    ids = torch.randint(0, 40, (1, 60))
    batch = {"input_ids": ids, "labels": ids}
    whole = model(**batch).loss
    whole.backward()
    full = gradients(model)
    found = backward_in_windows(model, batch, window=20, truncated=True)
    truncated = gradients(model)
    assert float(found) == pytest.approx(float(whole.detach()), abs=1e-6)
    assert float((truncated - full).abs().max()) > 1e-4
    past, shifted = None, torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    for start in (0, 20, 40):
        if past is not None:
            for i in range(2):
                past[i] = past[i].detach()
        part = slice(start, start + 20)
        out = model(
            ids[:, part], past_key_values=past, use_cache=True, shift_labels=shifted[:, part], num_items_in_batch=59
        )
        out.loss.backward()
        past = out.past_key_values
    assert torch.allclose(gradients(model), truncated, rtol=0, atol=1e-7)


def test_dropout_draws_the_same_numbers_when_a_piece_is_computed_again() -> None:
    """A frozen draw per window: the gradients agree with finite differences of the loss under the same seed."""
    model = model_of(hidden_dropout_prob=0.3)
    ids = torch.randint(0, 40, (1, 60))
    batch = {"input_ids": ids, "labels": ids}

    def loss() -> float:
        torch.manual_seed(3)
        return float(backward_in_windows(model, batch, window=20))

    loss()
    weight: Any = model.model.layers[0].attention.value.weight
    place = divmod(int(weight.grad.abs().argmax()), weight.shape[1])
    slope, step = float(weight.grad[place]), 0.05  # the loss is rounded to float32: 4e-7, of differences of 1e-4
    weight.data[place] += step
    above = loss()
    weight.data[place] -= 2 * step
    below = loss()
    assert slope == pytest.approx((above - below) / (2 * step), rel=1e-2)


def test_what_cannot_go_in_pieces_is_refused() -> None:
    ids = torch.randint(0, 40, (1, 20))
    with pytest.raises(ValueError, match="keeps every key instead of sums"):
        backward_in_windows(model_of(attention="softmax"), {"input_ids": ids, "labels": ids}, window=10)
    with pytest.raises(ValueError, match="keeps every key instead of sums"):
        backward_in_windows(model_of(attention="softmax", **BOTH), {"input_ids": ids, "labels": ids}, window=10)
    with pytest.raises(ValueError, match="window=0; it must be at least 1"):
        backward_in_windows(model_of(), {"input_ids": ids, "labels": ids}, window=0)
    with pytest.raises(ValueError, match="not token_type_ids"):
        backward_in_windows(model_of(), {"input_ids": ids, "labels": ids, "token_type_ids": ids}, window=10)
