"""A sequence in pieces over processes: the rows, the gradients and the mistakes of one process, and what is sent."""

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cosformer import cosformer_attention
from cosformer.ops import parallel
from ranks import GROUPS, Ranks, results
from versions import traces

LIMITS = {torch.float32: 1e-6, torch.float64: 1e-12}  # of the largest entry

# name -> options of the call; "mask" and "packed" stand for tensors
CASES: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "non-causal": {},
    "causal masked": {"causal": True, "mask": True},
    "non-causal masked": {"mask": True},
    "causal packed": {"causal": True, "packed": (0, 5, 150, 150, 156, 300, 340)},
    "non-causal packed": {"packed": (0, 5, 150, 150, 156, 300, 340)},
    "causal packed, one over all": {"causal": True, "packed": (0, 340)},
    "causal grouped": {"causal": True, "key_heads": 1},
    "non-causal grouped": {"key_heads": 1, "mask": True},
    "causal decay": {"causal": True, "decay": True, "mask": True},
    "non-causal decay": {"decay": True, "mask": True, "key_heads": 1},
    "causal packed decay": {"causal": True, "decay": True, "packed": (0, 5, 150, 150, 156, 300, 340)},
    "non-causal packed decay": {"decay": True, "packed": (0, 5, 150, 150, 156, 300, 340)},
}
PIECES = [(170, 170), (1, 339), (85, 85, 85, 85), (200, 0, 33, 107), (0, 0, 340, 0), (340,), (0, 340)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Ranks(4, tmp_path_factory.mktemp("ranks")) as started:
        yield started


def tensors(case: dict[str, Any], dtype: torch.dtype) -> tuple[list[Tensor], dict[str, Any]]:
    """q, k, v, the gradient of the output, and the arguments of the call on the whole sequence."""
    n, options = 340, dict(case)
    batch, heads, key_heads = 1 if "packed" in case else 2, 2, options.pop("key_heads", 2)
    draw = torch.Generator().manual_seed(7)
    shapes = [(batch, heads, n, 16), (batch, key_heads, n, 16), (batch, key_heads, n, 5), (batch, heads, n, 5)]
    found = [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for shape in shapes]
    if options.pop("mask", False):
        options["key_mask"] = torch.rand(batch, n, generator=draw) > 0.3
        options["key_mask"][0, :90] = False  # a whole piece that may not be attended, and rows that see nothing
    if options.pop("decay", False):
        options["decay"] = torch.logspace(-3, 0, key_heads * 16, dtype=dtype).view(key_heads, 16)
        options["decay"][0, :3] = 0
    if "packed" in options:
        options["cu_seqlens"] = torch.tensor(options.pop("packed"))
    return found, {"max_len": 400} | options


def run(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Any) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = cosformer_attention(*leaves, **options)
    out.backward(g)
    return [out.detach(), *(x.grad for x in leaves)]  # pyright: ignore[reportReturnType]


def on_piece(case: dict[str, Any], dtype: torch.dtype, lengths: tuple[int, ...]) -> list[Tensor]:
    """In a child: its part of the call."""
    import torch.distributed as dist

    whole, options = tensors(case, dtype)
    ends = [0, *itertools.accumulate(lengths)]
    mine = slice(ends[dist.get_rank()], ends[dist.get_rank() + 1])
    if "key_mask" in options:
        options["key_mask"] = options["key_mask"][:, mine]
    return run(*(x[:, :, mine] for x in whole), **options, group=GROUPS[len(lengths)])


@pytest.mark.parametrize("lengths", PIECES, ids=str)
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_pieces_give_the_rows_and_gradients_of_the_whole(ranks: Ranks, name: str, dtype, lengths) -> None:
    whole, options = tensors(CASES[name], dtype)
    if "decay" in options:
        options["decay"] = options["decay"].double()
    # float64, because the whole in float32 has rounding errors of its own: of the gradients with decay, half of the
    # limit
    expected = run(*(x.double() for x in whole), **options)
    found = results(ranks(on_piece, CASES[name], dtype, lengths, ranks=len(lengths)))
    for pieces, one in zip(zip(*found, strict=True), expected, strict=True):
        assert float((torch.cat(pieces, 2) - one).abs().max() / one.abs().max()) < LIMITS[dtype]


class Sent(TorchDispatchMode):
    """Counts collectives, and the bytes that each rank gets from them, by the dtype that is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[torch.dtype, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        helpers = ("wait_tensor", "_wrap_tensor_autograd")  # they send nothing
        if func.namespace in ("c10d", "_c10d_functional") and func._overloadpacket.__name__ not in helpers:
            got = result if isinstance(result, Tensor) else torch.stack(args[0][0])
            self.found.append((got.dtype, got.nbytes))
        return result


def sent(n: int, causal: bool) -> tuple[list[Any], list[Any]]:
    """In a child: what is sent forward and backward by a call with ``n`` tokens a piece."""
    q, k, v = (torch.randn(1, 4, n, 16, requires_grad=True) for _ in range(3))
    with Sent() as forward:
        out = cosformer_attention(q, k, v, causal=causal, max_len=100_000, group=GROUPS[2])
    with Sent() as backward:
        out.sum().backward()
    return forward.found, backward.found


@pytest.mark.parametrize("causal", [False, True])
def test_what_is_sent_does_not_depend_on_the_length(ranks: Ranks, causal: bool) -> None:
    """One exchange of a few integers, one of states, and one of their gradients."""
    short, long = (results(ranks(sent, n, causal, ranks=2)) for n in (64, 4096))
    assert short == long
    states = 2 * 4 * (2 * 16) * (16 + 1) * 4  # ranks, heads, features, channels and the sum of keys, float32
    for forward, backward in short:
        (kind, integers), *rest = forward
        assert kind == torch.int64 and integers == 2 * (1 + len(parallel._FACTS)) * 8
        assert rest == backward == [(torch.float32, states)]


# name -> what rank 1 of two does otherwise, and what every rank says
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "max_len": ({"max_len": 99}, "max_len differs between the ranks of the group: 100 on rank 0, 99 on rank 1"),
    "dtype": ({"dtype": torch.float64}, "dtype differs .* torch.float32 on rank 0, torch.float64 on rank 1"),
    "heads": ({"heads": 4, "key_heads": 2}, "heads differs .* 2 on rank 0, 4 on rank 1"),
    "causal": ({"causal": False}, "causal differs"),
    "gradients": ({"gradients": False}, "gradients differs"),
    "batch": ({"batch": 2}, "batch differs .* 1 on rank 0, 2 on rank 1"),
    "key heads": ({"key_heads": 1}, "key_heads differs .* 2 on rank 0, 1 on rank 1"),
    "channels": ({"channels": 6}, "channels differs .* 8 on rank 0, 6 on rank 1"),
    "value channels": ({"value_channels": 5}, "value_channels differs .* 8 on rank 0, 5 on rank 1"),
    "eps": ({"eps": 1e-3}, "eps differs .* 1e-06 on rank 0, 0.001 on rank 1"),
    "autocast": ({"autocast": torch.bfloat16}, "autocast differs .* off on rank 0, torch.bfloat16 on rank 1"),
    "decay": ({"decay": 0.5}, "decay differs .* pass the same rates on every rank"),
    "mask of another piece": ({"mask": 31}, r"key_mask has shape \(1, 31\)|rank 1 of the group rejected its arguments"),
    "no max_len": ({"max_len": None}, "without max_len|rank 1 of the group rejected"),
    "offset": ({"q_offset": 3}, "does not go with q_offset|rank 1 of the group rejected"),
    "no tensor": ({"q": None}, "NoneType|rank 1 of the group rejected"),
    "together too long": ({"n": 80}, "the shards have 110 tokens in total, which exceeds max_len=100"),
    "unequal bounds": ({"cu": (0, 5, 60)}, "cu_seqlens differs"),
    "wrong bounds": ({"both": {"cu": (0, 5, 61)}}, "cu_seqlens must rise from 0 to N=60"),
}


def mistaken(different: dict[str, Any]) -> Tensor:
    """In a child: a call that is right on rank 0 and has ``different`` on rank 1."""
    import torch.distributed as dist

    usual = {
        "batch": 1,
        "channels": 8,
        "n": 30,
        "max_len": 100,
        "heads": 2,
        "dtype": torch.float32,
        "causal": True,
        "gradients": True,
    }
    given = usual | different.get("both", different if dist.get_rank() == 1 else {})
    if "cu" in different or "both" in different:
        given.setdefault("cu", (0, 60))
    b, h, n, d, dtype = (given.pop(name) for name in ("batch", "heads", "n", "channels", "dtype"))
    hk, e, gradients = given.pop("key_heads", h), given.pop("value_channels", d), given.pop("gradients")
    x, k, v = (
        torch.randn(b, heads, n, c, dtype=dtype, requires_grad=gradients) for heads, c in ((h, d), (hk, d), (hk, e))
    )
    if "decay" in given:
        given["decay"] = torch.full((hk, d), given.pop("decay"))
    if "mask" in given:
        given["key_mask"] = torch.ones(1, given.pop("mask"), dtype=torch.bool)
    if "cu" in given:
        given["cu_seqlens"] = torch.tensor(given.pop("cu"))
    autocast = given.pop("autocast", None)
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        return cosformer_attention(given.pop("q", x), k, v, **given, group=GROUPS[2]).detach()


def test_every_fact_has_its_mistake() -> None:
    for fact in parallel._FACTS[3:]:
        assert any(f"{fact} differs" in message for _, message in MISTAKES.values()), fact


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_one_rank_is_an_error_on_all(ranks: Ranks, name: str) -> None:
    different, message = MISTAKES[name]
    for error in ranks(mistaken, different, ranks=2, timeout=30):
        assert isinstance(error, Exception), "a rank went on alone"
        with pytest.raises(type(error), match=message):
            raise error
    results(ranks(mistaken, {}, ranks=2, timeout=30))  # the group is as good as before


def test_no_group_is_refused() -> None:
    x = torch.randn(1, 1, 3, 4)
    with pytest.raises(ValueError, match="pass a process group"):
        cosformer_attention(x, x, x, max_len=3, group="world")


def crossed(lengths: tuple[tuple[int, int], ...] | None) -> list[Tensor]:
    """Queries and keys of different lengths, on the whole or on this rank's piece."""
    import torch.distributed as dist

    draw = torch.Generator().manual_seed(3)
    q, k, v, g = (torch.randn(1, 2, n, 8, generator=draw, dtype=torch.float64) for n in (50, 70, 70, 50))
    if lengths is None:
        return run(q, k, v, g, max_len=80)
    ends = [[0, *itertools.accumulate(each)] for each in zip(*lengths, strict=True)]
    rows, keys = (slice(*each[dist.get_rank() : dist.get_rank() + 2]) for each in ends)
    return run(q[:, :, rows], k[:, :, keys], v[:, :, keys], g[:, :, rows], max_len=80, group=GROUPS[len(lengths)])


def test_queries_and_keys_may_be_cut_differently(ranks: Ranks) -> None:
    found = results(ranks(crossed, ((10, 70), (40, 0)), ranks=2))
    for pieces, one in zip(zip(*found, strict=True), crossed(None), strict=True):
        assert torch.allclose(torch.cat(pieces, 2), one, rtol=0, atol=1e-12)


def compiled() -> tuple[float, bool]:
    """In a child: how far a compiled call is from the plain one, and whether a graph of it held the collective."""
    graphs: list[str] = []

    def keep(graph: Any, example: Any) -> Any:
        graphs.append(graph.print_readable(print_output=False))
        return graph.forward

    def call(x: Tensor) -> Tensor:
        return cosformer_attention(x, x, x, causal=True, max_len=300, group=GROUPS[2])

    x = torch.randn(1, 2, 100, 8)
    difference = (torch.compile(call, backend=keep)(x) - call(x)).abs().max()
    return float(difference), any("all_gather" in graph for graph in graphs)


@traces
def test_a_compiler_sees_the_collective(ranks: Ranks) -> None:
    for difference, seen in results(ranks(compiled, ranks=2, timeout=300)):
        assert difference < 1e-6 and seen


def dying(rank: int) -> Tensor:
    """In a child: the last of the group is gone before it answers."""
    import os

    import torch.distributed as dist

    if dist.get_rank() == rank:
        os._exit(1)
    return mistaken({})


def test_a_dead_rank_is_an_error_within_a_minute(tmp_path) -> None:
    with Ranks(2, tmp_path) as pair:
        pair.ends[0].send_bytes(pickle.dumps((dying, (1,))))
        pair.ends[1].send_bytes(pickle.dumps((dying, (1,))))
        assert isinstance(pair._receive(0, 60), RuntimeError)
