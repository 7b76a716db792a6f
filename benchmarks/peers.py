"""``python -m benchmarks peers``: each attention against the independent package of the same method, in one run."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from cosformer import terminal
from cosformer.attention import build_attention
from cosformer.bench.measure import compared, interleaved
from cosformer.bench.tables import SPREAD
from cosformer.extras import MissingExtra, require
from cosformer.ops.operator import cosformer_attention, linear_attention
from cosformer.report.measurements import Measurement, Results, cell
from cosformer.report.table import Table

HEADS, HEAD_DIM, WIDTH, LENGTH = 8, 64, 512, 4096
Action = Callable[[], Any]


def measurements(*, repeats: int = 7, threads: int = 2) -> Iterator[Measurement]:
    """Time of ours over time of the package's. Where the package brings projections, ours has them too."""
    for attention, mode, package, variant, pair in PAIRS:
        terminal.status(f"{attention} over {package}")
        place: dict[str, Any] = {"attention": attention, "mode": mode, "length": LENGTH, "baseline": package}
        m = Measurement(kind="forward", **place, variant=variant, unit="times the package's", better="lower")
        try:
            with torch.no_grad():
                ours, theirs = pair()
                times = interleaved({"ours": ours, "theirs": theirs}, repeats=repeats)
            yield compared(m, times["ours"], times["theirs"])
        except MissingExtra as error:
            yield replace(m, note=f"not run: {error}")


def _build(name: str, *, causal: bool = False, **options: Any) -> Any:
    sizes = {"num_heads": HEADS, "head_dim": HEAD_DIM, "max_len": LENGTH}
    return build_attention(name, causal=causal, **sizes, **options).eval()


def _heads() -> Iterator[Tensor]:
    return (torch.randn(1, HEADS, LENGTH, HEAD_DIM) for _ in range(3))


def _projected(attention: Any) -> Callable[[Tensor], Tensor]:
    """``attention`` between projections without bias, as the packages that take a sequence of vectors have them."""
    q, k, v, o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def call(x: Tensor) -> Tensor:
        parts = (f(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for f in (q, k, v))
        return o(attention(*parts).transpose(1, 2).flatten(2))

    return call


def _vectors() -> Tensor:
    return torch.randn(1, LENGTH, WIDTH)


def _linformer() -> tuple[Action, Action]:
    package = require("oracles", "linformer")
    theirs = package.LinformerSelfAttention(WIDTH, LENGTH, k=256, heads=HEADS).eval()
    ours, x = _projected(_build("linformer", rank=256)), _vectors()
    return lambda: ours(x), lambda: theirs(x)


def _nystrom() -> tuple[Action, Action]:
    package = require("oracles", "nystrom_attention")
    theirs = package.NystromAttention(WIDTH, HEAD_DIM, HEADS, num_landmarks=64, residual_conv_kernel=33).eval()
    ours, x = _projected(_build("nystrom", num_landmarks=64, conv_kernel=33)), _vectors()
    return lambda: ours(x), lambda: theirs(x)


def _performer() -> tuple[Action, Action]:
    package = require("oracles", "performer_pytorch.performer_pytorch")
    theirs, ours = package.FastAttention(HEAD_DIM), _build("performer")
    q, k, v = _heads()
    return lambda: ours(q, k, v), lambda: theirs(q, k, v)


def _local(causal: bool) -> tuple[Action, Action]:
    package = require("oracles", "local_attention")
    theirs = package.LocalAttention(window_size=128, causal=causal, exact_windowsize=True, use_rotary_pos_emb=False)
    ours = _build("local", causal=causal, window=128)
    q, k, v = _heads()
    return lambda: ours(q, k, v), lambda: theirs(q, k, v)


def _reformer(causal: bool) -> tuple[Action, Action]:
    package = require("oracles", "reformer_pytorch.reformer_pytorch")
    theirs = package.LSHAttention(bucket_size=64, n_hashes=2, causal=causal, allow_duplicate_attention=True).eval()
    ours = _build("reformer", causal=causal, num_hashes=2, allow_duplicates=True)
    q, k, v = _heads()
    return lambda: ours(q, k, v), lambda: theirs(q[0], v[0])


def _linear() -> tuple[Action, Action]:
    """Plain causal linear attention of given features; ours divides by the row sums, the package's product does not."""
    package = require("peers", "fast_transformers.causal_product")
    q, k, v = _heads()
    q, k = q.relu(), k.relu()
    return lambda: linear_attention(q, k, v, causal=True), lambda: package.causal_dot_product(q, k, v)


def _cosformer(copies: int = 1) -> tuple[Action, Action]:
    """cosFormer's scores as a product of features, which the package gets ready made: 2D cosines and sines.

    With ``copies=2`` it also gets the values twice: 128 channels throughout, the call whose time is quoted for 128
    features (four times that for 64). With the values once it takes half of that, and a seventh of a half would be less
    than the matrix products alone need.
    """
    package = require("peers", "fast_transformers.causal_product")
    q, k, v = _heads()
    angle = torch.pi / 2 * torch.arange(LENGTH)[:, None] / LENGTH
    fq, fk = (torch.cat([x.relu() * angle.cos(), x.relu() * angle.sin()], dim=-1) for x in (q, k))
    values = torch.cat([v] * copies, dim=-1)
    ours = lambda: cosformer_attention(q, k, v, causal=True, max_len=LENGTH)  # noqa: E731
    return ours, lambda: package.causal_dot_product(fq, fk, values)[..., :HEAD_DIM]


def _clustered() -> tuple[Action, Action]:
    package, masking = (require("peers", f"fast_transformers.{name}") for name in ("attention", "masking"))
    theirs = package.ImprovedClusteredAttention(100, iterations=10, bits=32, topk=32, attention_dropout=0.0).eval()
    full, lengths = masking.FullMask(LENGTH), masking.LengthMask(torch.tensor([LENGTH]))
    ours = _build("clustered", num_clusters=100, topk=32, bits=32, iterations=10)
    q, k, v = _heads()
    inside = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    return lambda: ours(q, k, v), lambda: theirs(*inside, full, lengths, lengths)


def _without_projections(module: Any) -> Any:
    for name in ("query", "key", "value"):
        setattr(module, name, nn.Identity())
    return module.eval()


def _longformer() -> tuple[Action, Action]:
    require("oracles", "transformers")
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    sizes: dict[str, Any] = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "attention_window": [512]}
    theirs = _without_projections(LongformerSelfAttention(LongformerConfig(**sizes), 0))
    none = torch.zeros(1, LENGTH, dtype=torch.bool)
    masks: dict[str, Any] = {"is_index_masked": none, "is_index_global_attn": none, "is_global_attn": False}
    ours, x, zeros = _build("longformer", window=512), _vectors(), torch.zeros(1, LENGTH)
    q, k, v = _heads()
    return lambda: ours(q, k, v), lambda: theirs(x, attention_mask=zeros, **masks)


def _bigbird() -> tuple[Action, Action]:
    require("oracles", "transformers")
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    config = BigBirdConfig(hidden_size=WIDTH, num_attention_heads=HEADS)
    theirs = _without_projections(BigBirdBlockSparseAttention(config, seed=0))
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, LENGTH), 64)
    ours, x = _build("bigbird"), _vectors()
    q, k, v = _heads()
    return lambda: ours(q, k, v), lambda: theirs(x, band, rows, columns, blocked, blocked)


# attention, mode, package, what else tells a pair apart, (ours, theirs) ready to be timed
PAIRS: list[tuple[str, str, str, str, Callable[[], tuple[Action, Action]]]] = [
    ("linformer", "non-causal", "linformer", "", _linformer),
    ("nystrom", "non-causal", "nystrom-attention", "", _nystrom),
    ("performer", "non-causal", "performer-pytorch", "", _performer),
    ("local", "non-causal", "local-attention", "", lambda: _local(False)),
    ("local", "causal", "local-attention", "", lambda: _local(True)),
    ("reformer", "non-causal", "reformer-pytorch", "", lambda: _reformer(False)),
    ("reformer", "causal", "reformer-pytorch", "", lambda: _reformer(True)),
    ("linear", "causal", "pytorch-fast-transformers", "", _linear),
    ("cosformer", "causal", "pytorch-fast-transformers", "", _cosformer),
    ("cosformer", "causal", "pytorch-fast-transformers", "128 channels in theirs", lambda: _cosformer(2)),
    ("clustered", "non-causal", "pytorch-fast-transformers", "", _clustered),
    ("longformer", "non-causal", "transformers", "", _longformer),
    ("bigbird", "non-causal", "transformers", "", _bigbird),
]


def tables(results: Results) -> list[Table]:
    rows = []
    for m in results.measurements:
        name = ", ".join(part for part in (m.attention, m.mode.replace("non-causal", ""), m.variant) if part)
        rows.append([name, m.baseline, cell(m)])
    title = f"Forward pass at 4,096 tokens: time of ours over the package's ({SPREAD}); below 1 ours is faster."
    return [Table(title, ["attention", "package", "measured"], rows)]
