"""Packed sequences: the stock collator's batches give what separate sequences give."""

import pytest
import torch
from transformers import DataCollatorWithFlattening

from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.models.masked_lm import CosformerForMaskedLM
from cosformer.models.transformer import CosformerModel

LENGTHS = (7, 12, 1, 9)


def rows(ids) -> list[torch.Tensor]:
    return list(ids(1, sum(LENGTHS))[0].split(LENGTHS))


def flattened(pieces: list[torch.Tensor], **options: bool) -> dict:
    return DataCollatorWithFlattening(**options)([{"input_ids": piece.tolist()} for piece in pieces])


def separate(model, pieces) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Loss and gradients of the sequences one by one, weighted by their targets."""
    model.zero_grad()
    total = sum(model(p[None], labels=p[None]).loss * (len(p) - 1) for p in pieces if len(p) > 1)
    loss = total / sum(len(p) - 1 for p in pieces)
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("attention", ["cosformer", "softmax", "performer", ["cosformer", "softmax"]])
@pytest.mark.parametrize(
    "told",
    [{"return_flash_attn_kwargs": True}, {}, {"return_seq_idx": True}],
    ids=["cu_seq_lens", "positions", "seq_idx"],
)
@pytest.mark.parametrize("modern", [False, True], ids=["plain", "modern"])
def test_loss_and_gradients_equal_separate_sequences(attention, told, modern, config, ids, relative):
    more = {"position_embedding_type": "learned"}
    if modern:
        more = {"num_key_value_heads": 2, "norm_type": "rms", "feed_forward_type": "gated", "hidden_act": "silu"}
        more |= {"rotary": {"rope_type": "default", "rope_theta": 10_000.0}, "position_embedding_type": "none"}
    model = (
        CosformerForCausalLM(config(is_decoder=True, attention=attention, initializer_range=0.5, **more))
        .eval()
        .double()
    )
    expected, gradients = separate(model, rows(ids))
    model.zero_grad()
    batch = flattened(rows(ids), **told)
    loss = model(**batch).loss
    loss.backward()
    assert relative(loss.detach(), expected) < 1e-6
    # all gradients in one: some are nothing but rounding, such as that of the keys' bias under softmax
    packed = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert relative(packed, torch.cat([gradient.flatten() for gradient in gradients])) < 1e-6
    # to mix them would be noticed
    mixed = model(batch["input_ids"], labels=batch["labels"]).loss
    assert relative(mixed.detach(), expected) > 1e-4


def test_targets_do_not_cross_over(config, ids, relative):
    model = CosformerForCausalLM(config(is_decoder=True)).eval()
    batch = flattened(rows(ids))
    batch["labels"] = batch["input_ids"].clone()  # of another collator, without a mark between sequences
    assert relative(model(**batch).loss, separate(model, rows(ids))[0]) < 1e-6


@torch.no_grad()
def test_encoders_pack_too(config, ids, relative):
    model = CosformerForMaskedLM(config()).eval()
    batch = flattened(rows(ids), return_flash_attn_kwargs=True)
    batch.pop("labels")
    expected = torch.cat([model(p[None]).logits for p in rows(ids)], 1)
    assert relative(model(**batch).logits, expected) < 1e-5
    batch.pop("position_ids")  # then they are made from the bounds
    assert relative(model(**batch).logits, expected) < 1e-5


def test_refusals(config, ids):
    model = CosformerModel(config(is_decoder=True)).eval()
    x, bounds = ids(1, 6), torch.tensor([0, 2, 6])
    restart = torch.tensor([[0, 1, 0, 1, 2, 3]])
    with pytest.raises(TypeError, match="no argument banana"):
        model(x, banana=3)
    with pytest.raises(ValueError, match="one row, and the batch has 2"):
        model(ids(2, 6), cu_seq_lens_q=bounds)
    with pytest.raises(ValueError, match="from 0 to 6 tokens"):
        model(x, cu_seq_lens_q=bounds[:2])
    with pytest.raises(ValueError, match="must agree"):
        model(x, cu_seq_lens_q=bounds, cu_seq_lens_k=torch.tensor([0, 3, 6]))
    with pytest.raises(ValueError, match="leave no state"):
        model(x, position_ids=restart, use_cache=True)
    with pytest.raises(ValueError, match="neither a padding mask"):
        model(x, cu_seq_lens_q=bounds, attention_mask=torch.tensor([[0, 1, 1, 1, 1, 1]]))
    with pytest.raises(ValueError, match="neither one sequence nor packed"):
        model(x, position_ids=torch.tensor([[0, 1, 2, 1, 2, 3]]))
    assert model(x, position_ids=restart).past_key_values is None
    long = CosformerModel(config(is_decoder=True, max_position_embeddings=4)).eval()
    assert long(x, cu_seq_lens_q=bounds).last_hidden_state.shape == (1, 6, 32)
    with pytest.raises(ValueError, match="5 tokens exceeds max_len=4"):
        long(x, cu_seq_lens_q=torch.tensor([0, 1, 6]))
