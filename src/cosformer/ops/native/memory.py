"""Memory for large results, used again.

Fresh memory costs a page fault every few kilobytes, which takes longer than the arithmetic that fills it, and the C library
gives large blocks back to the system as soon as they are freed. Here the block of a tensor that is gone waits for the next
result of its size. At most ``KEPT`` bytes wait; ``release`` gives them back.
"""

import math
import mmap
import weakref

import torch
from torch import Tensor

LARGE = 256 << 10  # bytes; smaller results come from torch
HUGE_PAGE = 2 << 20
KEPT = 256 << 20

_waiting: dict[int, list[mmap.mmap]] = {}  # by size; only single operations on lists, which threads cannot split


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A contiguous tensor with arbitrary contents, as ``torch.empty``."""
    count = math.prod(shape)
    if count * dtype.itemsize < LARGE:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return _flat(count, dtype).view(shape)


def empty_like(x: Tensor) -> Tensor:
    """A tensor with the shape, dtype and strides of ``torch.empty_like(x)``."""
    if x.numel() * x.element_size() < LARGE:
        return torch.empty_like(x)
    strides = torch.empty_like(x, device="meta").stride()
    return _flat(x.numel(), x.dtype).as_strided(x.shape, strides)


def release() -> None:
    """Give the waiting blocks back to the system."""
    _waiting.clear()


def waiting() -> int:
    """Bytes kept for the next results."""
    return sum(size * len(blocks) for size, blocks in list(_waiting.items()))


def _flat(count: int, dtype: torch.dtype) -> Tensor:
    bytes_ = count * dtype.itemsize
    unit = HUGE_PAGE if bytes_ >= HUGE_PAGE else LARGE // 4  # few different sizes, so that blocks fit the next result
    size = -(-bytes_ // unit) * unit
    try:
        block = _waiting[size].pop()
    except (KeyError, IndexError):
        block = _fresh(size)
    view = memoryview(block)  # lives as long as the storage of the tensor
    weakref.finalize(view, _give_back, size, block).atexit = False
    return torch.frombuffer(view, dtype=dtype, count=count)


def _fresh(size: int) -> mmap.mmap:
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _give_back(size: int, block: mmap.mmap) -> None:
    if waiting() + size > KEPT:
        _waiting.clear()  # blocks of sizes no longer asked for must not hold the place
    if size <= KEPT:
        _waiting.setdefault(size, []).append(block)
