"""One-token steps of one kind: what they share is packed once, so that a step costs little more than its arithmetic."""

import struct

import torch
from torch import Tensor

from cosformer.ops.native import memory
from cosformer.ops.native.library import CALL, DTYPES, NORMALISERS, check, loaded
from cosformer.ops.problem import usable_eps

# call_t of cosformer.h in two parts: shapes, switches, eps, strides; then threads, positions and pointers, and zeros
_SHARED = struct.Struct("13qd10q")
_OWN = struct.Struct(f"14q{CALL.size - _SHARED.size - 14 * 8}x")


class Steps:
    """Causal cosFormer steps of contiguous ``q [B,H,1,D]``, ``k [B,Hk,1,D]``, ``v [B,Hk,1,E]`` behind a contiguous state.

    :meth:`take` says whether a call is such a step; the step itself checks nothing.
    """

    __slots__ = ("_dtype", "_empty_like", "_eps", "_out_like_q", "_run", "_shared", "_state", "_token", "max_len")

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, z: Tensor, max_len: int, eps: float) -> None:
        b, h, _, d = q.shape
        hk, e = v.shape[1], v.shape[3]
        dtype, normaliser = DTYPES[v.dtype], NORMALISERS["clamp"]
        strides = (h * d, d, d, hk * d, d, d, hk * e, e, e)
        floor = usable_eps(eps, v.dtype)
        self._shared = _SHARED.pack(
            b, h, hk, 1, 1, d, e, dtype, True, True, normaliser, max_len, max_len, floor, *strides, 1
        )
        self.max_len, self._eps, self._dtype = max_len, eps, v.dtype
        self._token, self._state = (q.shape, k.shape, v.shape), (kv.shape, z.shape)
        self._run = loaded().step
        self._out_like_q = d == e
        self._empty_like = memory.empty_like if 8 * b * hk * d * e >= memory.HUGE_PAGE else torch.empty_like

    @staticmethod
    def fit(q: Tensor, v: Tensor) -> bool:
        """Whether such steps are taken: the output has the shape of q or of v (cheap to allocate), no dimension of one
        channel (whose stride, and with it a sign kept in the view of an imaginary part, ``is_contiguous`` overlooks)."""
        (_, h, _, d), (_, hk, _, e) = q.shape, v.shape
        return min(d, e) > 1 and (d == e or h == hk)

    def take(self, q: Tensor, k: Tensor, v: Tensor, max_len: int | None, eps: float) -> bool:
        """Whether this is a token of such a step."""
        dtype, (q_shape, k_shape, v_shape) = self._dtype, self._token
        return (
            q.dtype is dtype and k.dtype is dtype and v.dtype is dtype
            and q.shape == q_shape and k.shape == k_shape and v.shape == v_shape
            and max_len == self.max_len and eps == self._eps
        )  # fmt: skip

    def go_on_from(self, kv: Tensor, z: Tensor) -> bool:
        """Whether this is the state of such a step."""
        return (kv.shape, z.shape) == self._state and kv.dtype is torch.float32 and z.dtype is torch.float32

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, z: Tensor, kv_at: int, z_at: int, first: int
    ) -> tuple[Tensor, Tensor, Tensor, int, int]:
        """``out [B,H,1,E]`` of the token at position ``first``, the new state, and the addresses of its two tensors.

        ``kv_at``, ``z_at``: the addresses of the state's two.
        """
        out, kv_next, z_next = torch.empty_like(q if self._out_like_q else v), self._empty_like(kv), torch.empty_like(z)
        kv_to, z_to = kv_next.data_ptr(), z_next.data_ptr()
        own = _OWN.pack(
            torch.get_num_threads(),
            first,
            first,
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            kv_at,
            z_at,
            0,
            0,
            out.data_ptr(),
            0,
            kv_to,
            z_to,
        )
        check(self._run(self._shared + own))
        return out, kv_next, z_next, kv_to, z_to
