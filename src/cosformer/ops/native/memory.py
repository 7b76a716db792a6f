"""Memory for large results, used again.

Fresh memory costs a page fault every few kilobytes, which takes longer than the arithmetic that fills it, and the C
library gives large blocks back to the system as soon as they are freed. Here the storages of large results are
remembered, at most ``KEPT`` bytes of them; one that nobody else holds any more serves the next result of its size. They
are ordinary storages of torch, which may be resized, shared with other processes, or outlive this table. ``release``
forgets them all.
"""

import ctypes
import math
import sys
from collections import deque

import torch
from torch import Tensor, UntypedStorage

from cosformer.ops.native.library import find

LARGE = 256 << 10  # bytes; smaller results come from torch
HUGE_PAGE = 2 << 20
KEPT = 256 << 20
_LOOKED_AT = 8  # storages of a size that a call looks at: a user may hold very many
_MADV_HUGEPAGE = 14

# by size; only single operations on deques, which threads cannot split
_remembered: dict[int, deque[UntypedStorage]] = {}


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A contiguous tensor with arbitrary contents, as ``torch.empty``."""
    if math.prod(shape) * dtype.itemsize < LARGE:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return _new(shape, torch.empty(shape, device="meta").stride(), dtype)


def empty_like(x: Tensor) -> Tensor:
    """A tensor with the shape, dtype and strides of ``torch.empty_like(x)``."""
    if x.numel() * x.element_size() < LARGE:
        return torch.empty_like(x)
    return _new(x.shape, torch.empty_like(x, device="meta").stride(), x.dtype)


def empty_state_like(x: Tensor) -> Tensor:
    """:func:`empty_like` for one token's call: the C library's heap gives less than two megabytes faster than this."""
    return torch.empty_like(x) if x.nbytes < HUGE_PAGE else empty_like(x)


def release() -> None:
    """Release cached storage that nobody holds, and the kernels' scratch memory."""
    _remembered.clear()
    library, _ = find()
    if library is not None:
        library.release()


def remembered() -> int:
    """Bytes of the storages that may serve again, in use now or not."""
    return sum(size * len(storages) for size, storages in list(_remembered.items()))


def _new(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    bytes_ = math.prod(shape) * dtype.itemsize
    unit = HUGE_PAGE if bytes_ >= HUGE_PAGE else LARGE // 4  # few different sizes, so that storages fit the next result
    size = -(-bytes_ // unit) * unit
    storage = _idle(size) or _fresh(size)
    tensor = torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, strides)
    _remembered.setdefault(size, deque()).append(storage)  # after the tensor holds it: now nobody else takes it
    return tensor


def _idle(size: int) -> UntypedStorage | None:
    """A storage of this size that nobody holds, out of the table."""
    storages = _remembered.get(size, deque())
    for _ in range(min(len(storages), _LOOKED_AT)):
        try:
            storage, holders = _pop(storages)  # from here on no other thread sees it
        except IndexError:
            return None
        if storage.nbytes() != size or storage.is_shared():
            continue  # its user has resized it, or another process may read it
        if holders == _ALONE:
            return storage
        storages.append(storage)
    return None


def _fresh(size: int) -> UntypedStorage:
    if remembered() + size > KEPT:
        _remembered.clear()  # sizes no longer asked for must not hold the place
    storage = UntypedStorage(size, device="cpu")
    if size >= HUGE_PAGE and sys.platform == "linux":
        first = -(-storage.data_ptr() // HUGE_PAGE) * HUGE_PAGE
        inside = (storage.data_ptr() + size - first) // HUGE_PAGE * HUGE_PAGE
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(inside), _MADV_HUGEPAGE)
    return storage


def _pop(storages: deque[UntypedStorage]) -> tuple[UntypedStorage, int]:
    """The first storage and the number of its references, from tensors and from Python.

    The storage comes out of the deque here, not as an argument: whether a caller holds a reference to its arguments
    differs once torch.compile has installed its frame evaluation.
    """
    storage = storages.popleft()
    return storage, torch._C._storage_Use_Count(storage._cdata) + sys.getrefcount(storage)  # pyright: ignore


_ALONE = _pop(deque([UntypedStorage(0, device="cpu")]))[1]
