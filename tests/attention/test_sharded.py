"""The zoo on pieces of a sequence over processes: as on the whole, or refused with a sentence."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cosformer import CosformerAttention
from cosformer.attention import ATTENTIONS, build_attention
from ranks import GROUPS, Ranks, results

SHARDED = (
    "cosformer",
    "relu",
    "leaky_relu",
    "identity",
    "uniform",
    "linear",
    "performer",
    "rfa_gaussian",
    "rfa_arccos",
)
SHARDED += ("spe", "multiscale")
N, FIRST = 90, 33  # tokens, and how many of them are rank 0's


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Ranks(2, tmp_path_factory.mktemp("ranks")) as started:
        yield started


def attend(name: str, causal: bool, training: bool, sharded: bool) -> list[Tensor]:
    """The rows of the whole, or in a child those of its piece; their gradients of q, k and v."""
    torch.manual_seed(0)
    q, k, v, g = (torch.randn(2, 2, N, 8, dtype=torch.float64) for _ in range(4))
    mask = torch.rand(2, N) > 0.2
    attention: Any = build_attention(name, num_heads=2, head_dim=8, max_len=100, causal=causal).double().train(training)
    mine = slice(None)
    if sharded:
        mine = slice(0, FIRST) if torch.distributed.get_rank() == 0 else slice(FIRST, N)
    leaves = [x[:, :, mine].clone().requires_grad_() for x in (q, k, v)]
    torch.manual_seed(5 + 100 * (sharded and torch.distributed.get_rank()))
    if sharded:
        out = attention.sharded(*leaves, GROUPS[2], mask[:, mine])
    else:
        torch.manual_seed(int(torch.randint(2**31, ())))  # the number that the ranks agree on
        out = attention(*leaves, mask)
    out.backward(g[:, :, mine])
    return [out.detach(), *(x.grad if x.grad is not None else torch.zeros_like(x) for x in leaves)]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SHARDED)
def test_pieces_give_what_the_whole_gives(ranks: Ranks, name: str, causal: bool, training: bool) -> None:
    found = results(ranks(attend, name, causal, training, True, ranks=2))
    for pieces, one in zip(zip(*found, strict=True), attend(name, causal, training, False), strict=True):
        error = (torch.cat(pieces, 2) - one).abs().max()
        assert float(error) <= 1e-10 * float(one.abs().max()), name


def module_rows(sharded: bool) -> Tensor:
    """``CosformerAttention`` on the whole, or in a child on its piece."""
    torch.manual_seed(0)
    module = CosformerAttention(16, 2, causal=True, max_len=N, batch_first=True).double()
    x, padding = torch.randn(2, N, 16, dtype=torch.float64), torch.rand(2, N) > 0.8
    if not sharded:
        return module(x, x, x, key_padding_mask=padding)[0].detach()
    mine = slice(0, FIRST) if torch.distributed.get_rank() == 0 else slice(FIRST, N)
    x, padding = x[:, mine], padding[:, mine]
    with pytest.raises(ValueError, match="no rank has the keys of all"):
        module(x, x, x, need_weights=True, group=GROUPS[2])
    return module(x, x, x, key_padding_mask=padding, group=GROUPS[2])[0].detach()


def test_the_module_takes_a_group(ranks: Ranks) -> None:
    pieces = results(ranks(module_rows, True, ranks=2))
    assert torch.allclose(torch.cat(pieces, 1), module_rows(False), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in ATTENTIONS if name not in SHARDED])
def test_the_others_refuse_with_a_sentence(name: str) -> None:
    causal = name.startswith("rfa_gate")
    attention = build_attention(name, num_heads=2, head_dim=8, max_len=16, causal=causal)
    x = torch.randn(1, 2, 16, 8)
    with pytest.raises(ValueError, match=r"does not support sequences sharded over several processes.*; use cosformer"):
        attention.sharded(x, x, x, None)
