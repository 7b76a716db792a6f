"""Models on pieces of a sequence, over two and four processes, against one process with the whole."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cosformer.hf import (
    CosformerConfig,
    CosformerForCausalLM,
    CosformerForMaskedLM,
    CosformerForSequenceClassification,
)
from ranks import GROUPS, PAIRS, Ranks, results

LENGTH, UPDATES = 48, 10
CONVOLVED = " with convolution and gate"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Ranks(4, tmp_path_factory.mktemp("ranks")) as started:
        yield started


def model_of(kind: str, **fields: Any) -> Any:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 50,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    decoder = kind != "masked"
    config = CosformerConfig(**sizes | {"max_position_embeddings": 64, "is_decoder": decoder} | fields)
    config.hidden_dropout_prob = 0.0
    model = (CosformerForCausalLM if decoder else CosformerForMaskedLM)(config)
    for name, parameter in model.named_parameters():
        if "convolution" in name:  # which starts as the identity
            torch.nn.init.normal_(parameter, std=0.5)
    return model


def batch_of(kind: str) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 50, (1 if kind == "packed" else 2, LENGTH), generator=draw)
    labels = ids.clone()
    batch = {"input_ids": ids, "labels": labels}
    if kind == "masked":
        labels[torch.rand(labels.shape, generator=draw) > 0.2] = -100
    if kind in ("masked", "padded"):  # counted positions, of which some stand on other ranks
        batch["attention_mask"] = torch.ones_like(ids)
        batch["attention_mask"][1, :20] = 0
        labels[1, :20] = -100
    if kind == "packed":
        batch["cu_seq_lens_q"] = torch.tensor([0, 3, 30, 48])
    return batch


def trained(kind: str, fields: dict[str, Any], lengths: tuple[int, ...], copies: int = 1) -> tuple[list[float], Tensor]:
    """The losses of ten updates and the last weights. With ``copies`` 2 every other rank pair has half of the rows."""
    import torch.distributed as dist

    kind, *_ = kind.split(CONVOLVED)
    model = model_of(kind, **fields).double()
    if kind == "checkpointed":
        model.gradient_checkpointing_enable()
    # plain steps: Adam makes large ones of gradients that are rounding alone
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    shards = len(lengths)
    group, rank, row = None, 0, slice(None)
    if shards > 1:
        group, rank = GROUPS[shards], dist.get_rank()
        if copies == 2:
            group = PAIRS[rank // 2]
            row, rank = slice(rank // 2, rank // 2 + 1), rank % 2
    ends = [0, *itertools.accumulate(lengths)]
    mine = slice(ends[rank], ends[rank + 1])
    losses = []
    piece: dict[str, Any] = {k: x if k.startswith("cu_") else x[row, mine] for k, x in batch_of(kind).items()}
    if group is not None:
        piece["sequence_group"] = group
    for _ in range(UPDATES):
        loss = model(**piece).loss
        loss.backward()
        loss = loss.detach()
        if group is not None:
            for x in (loss, *(p.grad for p in model.parameters())):
                dist.all_reduce(x, group=GROUPS[shards * copies])
                x /= copies  # the copies have as many tokens each
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()])


KINDS = {
    "plain": {},
    "learned positions": {"position_embedding_type": "learned"},
    "padded": {},
    "masked": {},
    "packed": {},
    "checkpointed": {},
    "grouped": {"num_key_value_heads": 2},
}
_BOTH = {"short_convolution": 4, "output_gate": True}
KINDS |= {kind + CONVOLVED: KINDS[kind] | _BOTH for kind in ("padded", "masked", "packed", "checkpointed")}
_DECAYS = {"attention": "multiscale", **_BOTH}
KINDS |= {f"{kind}{CONVOLVED} and decays": _DECAYS for kind in ("padded", "masked", "packed")}
SHARDS = {"two": (24, 24), "uneven": (5, 43), "four": (12, 12, 12, 12), "an empty one": (20, 0, 1, 27)}


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("kind", KINDS)
def test_ten_updates_on_pieces_are_those_on_the_whole(ranks: Ranks, kind: str, shards: str) -> None:
    """In float64: rows that see almost nothing have gradients of few digits in float32."""
    assert_trained_alike(ranks, kind, SHARDS[shards], 1)


def test_two_by_two(ranks: Ranks) -> None:
    """Two copies of the model with a row each, each on two pieces."""
    assert_trained_alike(ranks, "plain", (24, 24), 2)


def assert_trained_alike(ranks: Ranks, kind: str, lengths: tuple[int, ...], copies: int) -> None:
    losses, weights = trained(kind, KINDS[kind], (LENGTH,))
    for found, last in results(ranks(trained, kind, KINDS[kind], lengths, copies, ranks=copies * len(lengths))):
        assert found == pytest.approx(losses, abs=1e-5)
        assert float((last - weights).abs().max()) < 1e-10
    assert losses[-1] < losses[0] - 0.1  # it has learned something, so a wrong gradient would show


def logits(kind: str, attention: str, lengths: tuple[int, ...]) -> Tensor:
    """In a child or at home: the logits of this rank's shard, in float64."""
    import torch.distributed as dist

    batch: dict[str, Any] = batch_of(kind)
    batch.pop("labels")
    if len(lengths) > 1:
        rank, ends = dist.get_rank(), [0, *itertools.accumulate(lengths)]
        batch = {k: x if k.startswith("cu_") else x[:, ends[rank] : ends[rank + 1]] for k, x in batch.items()}
        batch["sequence_group"] = GROUPS[len(lengths)]
    with torch.no_grad():
        return model_of(kind, attention=attention, **_BOTH).double().eval()(**batch).logits


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("kind", ["plain", "padded", "masked", "packed"])
@pytest.mark.parametrize("attention", ["cosformer", "multiscale"])
def test_logits_with_convolution_and_gate_are_those_of_the_whole(
    ranks: Ranks, attention: str, kind: str, shards: str
) -> None:
    lengths, whole = SHARDS[shards], logits(kind, attention, (LENGTH,))
    found = torch.cat(results(ranks(logits, kind, attention, lengths, ranks=len(lengths))), 1)
    keep = batch_of(kind).get("attention_mask", torch.ones(whole.shape[:2])).bool()
    assert float((found - whole)[keep].abs().max()) < 1e-12


def refused(attention: str, length: int, arguments: dict[str, Any]) -> Tensor:
    """In a child: a call that something is wrong with."""
    import torch.distributed as dist

    arguments = dict(arguments)
    model = model_of("causal", attention=attention)
    if arguments.pop("classify", False):
        model = CosformerForSequenceClassification(CosformerConfig(pooling="mean"))
    if arguments.pop("short_mask", False) and dist.get_rank() == 1:
        arguments["attention_mask"] = torch.ones(2, length - 1)
    rows = 1 + dist.get_rank() if arguments.pop("rows", False) else 2
    return model(torch.ones(rows, length, dtype=torch.long), sequence_group=GROUPS[2], **arguments).logits


MISTAKES = {
    "softmax": (("softmax", 8), {}, "Softmax does not support sequences sharded"),
    "too long": (("cosformer", 40), {}, "sequence of 80 tokens exceeds max_len=64"),
    "a cache": (("cosformer", 8), {"use_cache": True}, "sequence_group does not go with use_cache"),
    "a head that pools": (("cosformer", 8), {"classify": True}, "needs the whole sequence on every process"),
    "a mask of another piece": (
        ("cosformer", 8),
        {"short_mask": True},
        "attention_mask has shape|rank 1 of the group rejected|attention_mask differs",
    ),
    "other rows": (("cosformer", 8), {"rows": True}, "batch differs between the ranks"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_done_is_refused_on_every_rank(ranks: Ranks, name: str) -> None:
    place, arguments, message = MISTAKES[name]
    for error in ranks(refused, *place, arguments, ranks=2, timeout=60):
        assert isinstance(error, ValueError), error
        with pytest.raises(ValueError, match=message):
            raise error
