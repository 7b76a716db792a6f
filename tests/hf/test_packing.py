"""Packed sequences in stock models under ``attn_implementation="cosformer"``."""

from typing import Any

import pytest
import torch
from transformers import DataCollatorWithFlattening

import cosformer.hf  # noqa: F401
from hf.families import DECODERS, TEXT, build, ids, relative
from versions import needs

LENGTHS = (7, 12, 3, 9)
MODELS = {name: DECODERS[name] for name in ("llama", "qwen2", "qwen3", "gpt2", "opt")}
MODELS["bert"] = ("BertConfig", "BertForMaskedLM", TEXT)
MODELS["roberta"] = ("RobertaConfig", "RobertaForMaskedLM", {**TEXT, "pad_token_id": 1})
starts_late = needs("transformers", "5.15", "the collator's position_ids_start")


def batches(kind: str, **options: Any) -> tuple[dict, list[dict]]:
    """The collator's batch and the same sequences one by one."""
    rows = [{"input_ids": row.tolist()} for row in ids(1, sum(LENGTHS))[0].split(LENGTHS)]
    if kind == "roberta":  # its positions begin behind that of padding
        options["position_ids_start"] = 2
    packed = DataCollatorWithFlattening(**options)(rows)
    single = []
    for row in rows:
        x = torch.tensor([row["input_ids"]])
        labels = x.clone()
        labels[0, 0] = -100  # as the collator marks the beginning
        single.append({"input_ids": x, "labels": labels})
    return packed, single


def gradient(model) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("told", [{"return_flash_attn_kwargs": True}, {}], ids=["cu_seq_lens", "position_ids"])
@pytest.mark.parametrize(
    ("name", "attention"),
    [
        *(pytest.param(name, "cosformer", marks=starts_late if name == "roberta" else ()) for name in MODELS),
        ("llama", "multiscale"),
        ("bert", "multiscale"),
    ],
)
def test_loss_and_gradients_equal_separate_sequences(name, attention, told):
    model = build(MODELS[name], attention=attention, dtype=torch.float64)
    packed, single = batches(name, **told)
    counts = [int((row["labels"] != -100).sum()) for row in single]
    expected = sum(model(**row).loss * n for row, n in zip(single, counts, strict=True)) / sum(counts)
    expected.backward()
    wanted = gradient(model)
    model.zero_grad()
    out = model(**packed)
    out.loss.backward()
    assert relative(out.loss.detach(), expected.detach()) < 1e-6
    assert relative(gradient(model), wanted) < 1e-6
    assert getattr(out, "past_key_values", None) is None
    mixed = model(packed["input_ids"], labels=packed["labels"]).loss
    assert relative(mixed.detach(), expected.detach()) > 1e-4  # to mix them would be noticed


def test_refusals():
    model = build(DECODERS["llama"])
    x, restart = ids(1, 6), torch.tensor([[0, 1, 2, 0, 1, 2]])
    with pytest.raises(ValueError, match="use_cache=False"):
        model(x, position_ids=restart, use_cache=True)
    with pytest.raises(ValueError, match="one row, and the batch has 2"):
        model(ids(2, 6), position_ids=restart.expand(2, -1))
    bounds = torch.tensor([0, 3, 6])
    with pytest.raises(ValueError, match="need position_ids"):
        model(x, cu_seq_lens_q=bounds, cu_seq_lens_k=bounds)
    with pytest.raises(ValueError, match="with a padding mask"):
        model(x, cu_seq_lens_q=bounds, position_ids=restart, attention_mask=torch.tensor([[0, 1, 1, 1, 1, 1]]))
    with pytest.raises(ValueError, match="neither one sequence nor packed"):
        model(x, position_ids=torch.tensor([[0, 1, 2, 1, 2, 3]]))
    model.set_attn_implementation("sdpa")  # the model's own attention, the model's own business
    assert model(x, position_ids=torch.tensor([[0, 1, 2, 1, 2, 3]]), use_cache=False).logits.shape == (1, 6, 60)
