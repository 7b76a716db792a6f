"""A long text read in pieces."""

import torch

from cosformer.hf import CosformerConfig, CosformerForCausalLM
from cosformer.lab.bench import reading

SIZES = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def model(max_len: int) -> CosformerForCausalLM:
    torch.manual_seed(0)
    positions = {"position_embedding_type": "sinusoidal", "max_position_embeddings": max_len}
    return CosformerForCausalLM(CosformerConfig(**SIZES, **positions, is_decoder=True)).eval()


def test_the_state_stays_and_keys_and_values_would_grow(monkeypatch):
    monkeypatch.setattr(reading, "PIECE", 16)
    longer = reading.lengthened(model(32), 200)
    assert longer.config.max_position_embeddings == 200
    seen = []
    longer.model.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    ids = torch.randint(0, 32, (200,))
    first, second = reading.read(longer, ids, (40, 200))
    assert torch.equal(torch.cat(seen, 1)[0], ids) and max(piece.shape[1] for piece in seen) == 16
    assert first.state == second.state > 0
    # two layers of two heads of eight channels, keys and values, four bytes each
    assert (first.key_value, second.key_value) == (40 * 2 * 2 * 2 * 8 * 4, 200 * 2 * 2 * 2 * 8 * 4)


def test_the_weights_are_the_same_and_within_their_length_so_is_the_answer_to_the_same_max_len():
    short = model(32)
    same = reading.lengthened(short, 32)
    ids = torch.randint(0, 32, (1, 20))
    assert torch.equal(short(ids).logits, same(ids).logits)
