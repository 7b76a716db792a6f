"""Products of many rows with a small matrix, in C: float32 on the CPU, sizes in multiples of 16."""

import torch
from torch import Tensor

from cosformer.ops.native.library import PRODUCT, check, loaded


def times(x: Tensor, w: Tensor, bias: Tensor | None = None, *, transposed: bool) -> Tensor:
    """``x [..., K]`` times ``w`` (``[N,K]`` if ``transposed``, else ``[K,N]``), plus ``bias [N]`` -> ``[..., N]``."""
    # of its final shape at once: a view of rows could not be changed in place by those who get it from an autograd function
    y = torch.empty((*x.shape[:-1], w.shape[0 if transposed else 1]), dtype=torch.float32, device="cpu")
    x, w = _rows(x), _rows(w)
    bias = None if bias is None else bias.contiguous().resolve_neg()
    check(loaded().product(_call(x, w, bias, y.view(-1, y.shape[-1]), transposed)))
    return y


def outer(y: Tensor, x: Tensor) -> Tensor:
    """The rows of ``y [..., N]`` transposed times those of ``x [..., K]`` -> ``[N,K]``: the gradient of a weight from that of its product."""
    y, x = _rows(y), _rows(x)
    w = torch.empty((y.shape[1], x.shape[1]), dtype=torch.float32, device="cpu")
    check(loaded().outer(_call(x, w, None, y, True)))
    return w


def _rows(x: Tensor) -> Tensor:
    """``[..., C]`` as ``[M,C]`` with contiguous rows: a view where it can be, else a copy."""
    x = x.reshape(-1, x.shape[-1])
    if x.is_neg():  # the view of an imaginary part: memory holds the other sign
        x = x.resolve_neg()
    return x if x.stride(1) == 1 else x.contiguous()


def _call(x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, transposed: bool) -> bytes:
    """The product record of cosformer.h."""
    at = 0 if bias is None else bias.data_ptr()
    m, k, n, threads = *x.shape, y.shape[1], torch.get_num_threads()
    return PRODUCT.pack(
        threads,
        m,
        n,
        k,
        transposed,
        x.data_ptr(),
        x.stride(0),
        w.data_ptr(),
        w.stride(0),
        at,
        y.data_ptr(),
        y.stride(0),
    )
