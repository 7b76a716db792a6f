"""The least time that the Triton kernels can take on a GPU, from bytes and operations: predicted, not run.

Figures of the vendors for bfloat16; of softmax attention what FlashAttention's authors report for forward passes. Nothing here
was measured by us.
"""

from collections.abc import Iterator
from typing import NamedTuple

from cosformer.ops.triton.plan import SIZES, padded, segment_length

BYTES = 2  # bfloat16
LAUNCH = 4e-6  # seconds a kernel takes to start
LAUNCHES = 3
# shares of the peaks that kernels of this kind reach elsewhere: an assumption
OF_BANDWIDTH, OF_PRODUCTS = 0.7, 0.35


class Gpu(NamedTuple):
    products: float  # operations a second in bfloat16 products
    bandwidth: float  # bytes a second
    softmax: dict[int, float]  # operations a second that FlashAttention reaches, by channels, causal forward


GPUS = {
    "A100": Gpu(312e12, 1.94e12, {64: 175e12, 128: 205e12}),
    "H100": Gpu(989e12, 3.35e12, {64: 300e12, 128: 350e12}),
}


class Work(NamedTuple):
    operations: float
    bytes: float

    def seconds(self, gpu: Gpu) -> float:
        """The slower of memory and products, and the launches."""
        memory, products = self.bytes / (OF_BANDWIDTH * gpu.bandwidth), self.operations / (OF_PRODUCTS * gpu.products)
        return max(memory, products) + LAUNCHES * LAUNCH


def work(batch: int, heads: int, n: int, d: int) -> Work:
    """A causal forward pass with D = E: sums over segments, running sums, rows."""
    segment, rows = segment_length(padded(d)), SIZES["attend_rows"]["bf16", padded(d)].rows
    positions = batch * heads * n
    state = positions / segment * 2 * d * d  # numbers in the sums of all segments
    # forming and reading the state, and half a segment of pairs for each row
    operations = positions * (4 * d * d + 4 * d * d + 4 * d * (segment + rows) / 2)
    # keys and values twice, queries and results once; sums written and read in float32, then written and read in bfloat16
    moved = positions * 6 * d * BYTES + state * (4 + 4 + BYTES + BYTES)
    return Work(operations, moved)


def softmax_seconds(gpu: Gpu, batch: int, heads: int, n: int, d: int) -> float:
    """FlashAttention, causal, forward."""
    return 4 * batch * heads * n * n * d / 2 / gpu.softmax[d] + LAUNCH


class Prediction(NamedTuple):
    gpu: str
    channels: int
    length: int
    gigaflop: float
    megabytes: float
    milliseconds: float
    softmax_milliseconds: float


def predictions(batch: int = 1, heads: int = 16) -> Iterator[Prediction]:
    for name, gpu in GPUS.items():
        for d in gpu.softmax:
            for n in (4_096, 8_192, 16_384, 32_768, 65_536):
                w = work(batch, heads, n, d)
                times = 1e3 * w.seconds(gpu), 1e3 * softmax_seconds(gpu, batch, heads, n, d)
                yield Prediction(name, d, n, w.operations / 1e9, w.bytes / 1e6, *times)


def crossover(gpu: Gpu, d: int, batch: int = 1, heads: int = 16) -> int:
    """The least multiple of 64 tokens at which the predicted time is below softmax attention's."""
    n = 64
    while work(batch, heads, n, d).seconds(gpu) >= softmax_seconds(gpu, batch, heads, n, d):
        n += 64
    return n


def markdown() -> str:
    """The table of the how-to page."""
    lines = [
        "| GPU | channels | tokens | GFLOP | MB | cosFormer, ms | FlashAttention, ms |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for p in predictions():
        times = f"{p.milliseconds:.3f} | {p.softmax_milliseconds:.3f}"
        lines.append(f"| {p.gpu} | {p.channels} | {p.length:,} | {p.gigaflop:.1f} | {p.megabytes:.0f} | {times} |")
    found = [f"{name}, {d} channels: {crossover(gpu, d):,}" for name, gpu in GPUS.items() for d in gpu.softmax]
    return "\n".join([*lines, "", f"Predicted crossover in tokens, one sequence of 16 heads: {'; '.join(found)}."])
