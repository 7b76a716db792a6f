"""Partitions a call for the Triton kernels: tile sizes, and the tables of segments and tiles they read."""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

WIDEST = 256  # channels of a head


class Sizes(NamedTuple):
    """What one kernel works on at once, and how many warps work on it."""

    rows: int  # of a tile; positions of a step in `segment_sums`
    columns: int  # keys (rows, for the gradients of keys) of one step of its loop
    block: int  # channels of the output of one program
    warps: int
    stages: int


# kernel -> (kind of product, padded channels) -> sizes. Products: "bf16"; "tf32", of float32 or float16 input; "ieee",
# exact float32, which holds whole rows of both operands in registers, and not at 256 channels. Chosen for no or few
# spilled registers on sm_80 and sm_90: see docs/how-to/gpu.md.
SIZES: dict[str, dict[tuple[str, int], Sizes]] = {
    "segment_sums": {
        ("bf16", 64): Sizes(32, 0, 64, 4, 2),
        ("bf16", 128): Sizes(32, 0, 64, 8, 2),
        ("bf16", 256): Sizes(32, 0, 32, 8, 2),
        ("tf32", 64): Sizes(32, 0, 64, 4, 2),
        ("tf32", 128): Sizes(32, 0, 64, 8, 2),
        ("tf32", 256): Sizes(32, 0, 32, 8, 2),
        ("ieee", 64): Sizes(32, 0, 32, 4, 1),
        ("ieee", 128): Sizes(32, 0, 32, 8, 1),
    },
    "attend_rows": {
        ("bf16", 64): Sizes(64, 64, 64, 4, 2),
        ("bf16", 128): Sizes(64, 64, 64, 8, 2),
        ("bf16", 256): Sizes(64, 32, 64, 8, 1),
        ("tf32", 64): Sizes(64, 32, 64, 4, 2),
        ("tf32", 128): Sizes(32, 32, 32, 4, 1),
        ("tf32", 256): Sizes(32, 32, 32, 8, 1),
        ("ieee", 64): Sizes(16, 32, 32, 4, 1),
        ("ieee", 128): Sizes(32, 32, 32, 8, 1),
    },
    "query_gradients": {
        ("bf16", 64): Sizes(64, 64, 64, 4, 2),
        ("bf16", 128): Sizes(64, 64, 64, 8, 2),
        ("bf16", 256): Sizes(32, 32, 64, 8, 1),
        ("tf32", 64): Sizes(64, 32, 64, 4, 2),
        ("tf32", 128): Sizes(32, 32, 32, 4, 1),
        ("tf32", 256): Sizes(32, 32, 32, 8, 1),
        ("ieee", 64): Sizes(16, 32, 32, 4, 1),
        ("ieee", 128): Sizes(32, 32, 32, 8, 1),
    },
    "key_gradients": {
        ("bf16", 64): Sizes(64, 32, 64, 4, 2),
        ("bf16", 128): Sizes(64, 64, 64, 8, 1),
        ("bf16", 256): Sizes(32, 32, 32, 8, 1),
        ("tf32", 64): Sizes(32, 32, 64, 4, 1),
        ("tf32", 128): Sizes(16, 32, 32, 4, 1),
        ("tf32", 256): Sizes(32, 32, 32, 8, 1),
        ("ieee", 64): Sizes(16, 32, 32, 4, 1),
        ("ieee", 128): Sizes(32, 32, 32, 8, 1),
    },
}
# options of every kernel; said aloud, because Triton 3.9 warns where fused multiply-adds are left to its default
COMPILER = {"enable_fp_fusion": True}
# keys (or rows) of one step of a loop over pairs where sums decay: rates up to 4 times 16 tokens keep factors in range
# (see `kernels.py`), whatever the rates, so that nobody has to read them
DECAY_COLUMNS = 16
SCAN_BLOCK = 128
STEP_BLOCK = 32


def padded(channels: int) -> int:
    """Channels as the kernels see them. Few widths, so that every configuration can be compiled and looked at."""
    return next(width for width in (64, 128, 256) if channels <= width)


def segment_length(width: int) -> int:
    """Positions of a segment: their states then take no more memory than half of the keys and values."""
    return 4 * width


def product_kind(dtype: torch.dtype, *, decays: bool = False) -> str:
    """How matrix products are taken: "bf16", "tf32" or "ieee".

    float16 goes through tf32, which has the same ten bits of mantissa: sums of scores and gradients leave float16's
    range. So does bfloat16 where sums decay: seven bits are too few for a factor of a row and one of a key whose
    product is the weight. float32 follows torch's own switch. AMD has no tf32.
    """
    if dtype == torch.bfloat16 and not decays:
        return "bf16"
    matmul = torch.backends.cuda.matmul
    allowed = matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32  # torch < 2.9
    return "tf32" if (dtype != torch.float32 or allowed) and torch.version.hip is None else "ieee"


class Cut(NamedTuple):
    """The tables of one side of a call (queries or keys), on its device; their meaning is told in `kernels.py`."""

    segments: Tensor
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    slots: int  # sums to tell apart: segments where the call is causal, sequences otherwise

    # first rows of tiles by tile length are made on demand
    bounds: tuple[int, ...]
    length: int
    lead: int
    causal: bool
    device: torch.device

    def tiles(self, rows: int, *, all_keys: bool = True) -> tuple[Tensor, int]:
        """The tiles of ``rows`` positions, and how many. ``all_keys``: also of keys before the first causal query."""
        table = _tiles(self.bounds, self.length, self.lead, self.causal, rows, all_keys, self.device)
        return table, table.shape[0]


def cut(bounds: tuple[int, ...], lead: int, length: int, causal: bool, device: torch.device) -> Cut:
    """Sequences between adjacent ``bounds`` in segments of ``length``, the first ``lead`` positions apart."""
    segments = _segments(bounds, length, lead, device)
    count = segments.shape[0]
    slots = count if causal else len(bounds) - 1
    return Cut(segments, count, slots, bounds, length, lead, causal, device)


def _rows(bounds: tuple[int, ...], length: int, lead: int) -> list[tuple[int, int, int, int]]:
    """(start, end, position of the start, sequence) of every segment."""
    found = []
    for sequence, (first, last) in enumerate(pairwise(bounds)):
        starts = [*range(first, min(lead, last), length), *range(max(first, lead), last, length)]
        found += [(a, b, a - first, sequence) for a, b in pairwise([*starts, last])]
    return found


# packed bounds differ from call to call, plain ones repeat: a few dozen of either are kept
@lru_cache(maxsize=64)
def _segments(bounds: tuple[int, ...], length: int, lead: int, device: torch.device) -> Tensor:
    rows = _rows(bounds, length, lead)
    return torch.tensor(rows, dtype=torch.int32).view(len(rows), 4).to(device)


@lru_cache(maxsize=256)
def _tiles(
    bounds: tuple[int, ...], length: int, lead: int, causal: bool, size: int, all_keys: bool, device: torch.device
) -> Tensor:
    rows = []
    for slot, (start, end, position, sequence) in enumerate(_rows(bounds, length, lead)):
        if all_keys or start >= lead:
            seen = slot if causal else sequence
            rows += [(seen, start, end, position, first) for first in range(start, end, size)]
    return torch.tensor(rows, dtype=torch.int32).view(len(rows), 5).to(device)
