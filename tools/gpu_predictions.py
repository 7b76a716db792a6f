"""What the Triton kernels can take at the least on a GPU, from bytes and operations, for docs/how-to/gpu.md. Not run.

The GPUs' figures are their vendors', for bfloat16; those of softmax attention are what FlashAttention's authors report
for forward passes. Nothing of it was measured by us.
"""

from typing import NamedTuple

from cosformer.bench.gpu import HEADS, work
from cosformer.report.table import Table

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


def seconds(gpu: Gpu, n: int, d: int) -> float:
    """The slower of memory and products, and the launches."""
    w = work(n, d)
    return (
        max(w.bytes / (OF_BANDWIDTH * gpu.bandwidth), w.operations / (OF_PRODUCTS * gpu.products)) + LAUNCHES * LAUNCH
    )


def softmax_seconds(gpu: Gpu, n: int, d: int) -> float:
    """FlashAttention, causal, forward."""
    return 4 * HEADS * n * n * d / 2 / gpu.softmax[d] + LAUNCH


def crossover(gpu: Gpu, d: int) -> int:
    """The least multiple of 64 tokens at which the predicted time is below softmax attention's."""
    n = 64
    while seconds(gpu, n, d) >= softmax_seconds(gpu, n, d):
        n += 64
    return n


def predictions() -> str:
    """The table of the how-to page, in Markdown."""
    rows = []
    for name, gpu in GPUS.items():
        for d in gpu.softmax:
            for n in (4_096, 8_192, 16_384, 32_768, 65_536):
                w = work(n, d)
                times = [f"{1e3 * x:.3f}" for x in (seconds(gpu, n, d), softmax_seconds(gpu, n, d))]
                rows.append([name, f"{d}", f"{n:,}", f"{w.operations / 1e9:.1f}", f"{w.bytes / 1e6:.0f}", *times])
    header = ["GPU", "channels", "tokens", "GFLOP", "MB", "cosFormer, ms", "FlashAttention, ms"]
    found = [f"{name}, {d} channels: {crossover(gpu, d):,}" for name, gpu in GPUS.items() for d in gpu.softmax]
    said = f"Predicted crossover in tokens, one sequence of {HEADS} heads: {'; '.join(found)}."
    return f"{Table('', header, rows).markdown}\n\n{said}"
