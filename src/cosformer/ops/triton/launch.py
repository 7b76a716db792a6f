"""Launches of the Triton kernels: forward in three, backward in seven, a decoding step in one."""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from cosformer.ops.angles import cached_angles
from cosformer.ops.spec import AttentionSpec, Call, new_output
from cosformer.ops.triton import kernels
from cosformer.ops.triton.plan import (
    COMPILER,
    DECAY_COLUMNS,
    SCAN_BLOCK,
    SIZES,
    STEP_BLOCK,
    WIDEST,
    Cut,
    Sizes,
    cut,
    padded,
    product_kind,
    segment_length,
)


class _Call(NamedTuple):
    """What all launches of one call share."""

    p: AttentionSpec
    batch: int
    heads: int
    key_heads: int
    rows: int
    keys: int
    d: int
    e: int
    kind: str
    decay: Tensor | None  # the rates, float32 [Hk, D]
    mask: Tensor  # uint8 [B, S], or one unused byte
    has_mask: bool
    q_table: Tensor
    k_table: Tensor
    q_cut: Cut
    k_cut: Cut

    @property
    def features(self) -> int:
        return self.d * (2 if self.p.q_len else 1)

    @property
    def width(self) -> int:
        return padded(max(self.d, self.e))

    @property
    def lead(self) -> int:
        """Keys before the first causal query."""
        return self.keys - self.rows if self.p.causal else 0

    @property
    def rates(self) -> Tensor:
        return self.mask if self.decay is None else self.decay

    def columns(self, sizes: Sizes) -> int:
        """Keys (or rows) of one step of a loop over pairs."""
        return sizes.columns if self.decay is None else DECAY_COLUMNS

    @property
    def product(self) -> dict[str, Any]:
        dot = tl.bfloat16 if self.kind == "bf16" else tl.float32
        return {"DOT": dot, "PRECISION": "tf32" if self.kind == "tf32" else "ieee"}


def forward(given: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``out [B,H,N,E]``, row sums ``den [B,H,N]``, and the state ``kv [B,Hk,F,E]``, ``z [B,Hk,F]`` after the keys."""
    q, k, v, kv, z, key_mask, cu_seqlens, decay, p = given
    q, k, v = _readable(q), _readable(k), _readable(v)
    call = _describe(q, k, v, key_mask, cu_seqlens, p, decay)
    out, den = new_output(q, v), q.new_empty(q.shape[:3], dtype=torch.float32)
    before, z_before, kv_next, z_next = _key_sums(call, k, v, kv, z)
    sizes = SIZES["attend_rows"][call.kind, call.width]
    tiles, count = call.q_cut.tiles(sizes.rows, all_keys=False)
    if count:
        _start("attend_rows", (count, call.batch * call.heads, triton.cdiv(call.e, sizes.block)),
            q, k, v, call.mask, call.q_table, call.rates, tiles, before, z_before, out, den,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
            call.rows, call.keys, call.lead, call.k_cut.slots, p.eps,
            H=call.heads, HK=call.key_heads, D=call.d, E=call.e,
            BM=sizes.rows, BN=call.columns(sizes), BD=call.width, BE=sizes.block,
            RELU=p.relu, ANGLES=p.q_len > 0, DECAY=decay is not None, PAIRS=p.causal, HAS_MASK=call.has_mask,
            NORMALISER=p.normaliser, **call.product, num_warps=sizes.warps, num_stages=sizes.stages,
        )  # fmt: skip
    if cu_seqlens is not None:  # packed sequences leave no state behind
        kv_next, z_next = torch.zeros_like(kv_next), torch.zeros_like(z_next)
    return out, den, kv_next, z_next


def backward(
    given: Call,
    g_out: Tensor,
    g_kv: Tensor,
    g_z: Tensor,
    out: Tensor,
    den: Tensor,
    kv_next: Tensor,
    z_next: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and of the incoming state (where none came in: of a state of zeros).

    Rows are not computed again: ``out`` and ``den`` may be those of a sum of two calls.
    """
    q, k, v, kv, z, key_mask, cu_seqlens, decay, p = given
    q, k, v, g, out = (_readable(x) for x in (q, k, v, g_out, out))
    call = _describe(q, k, v, key_mask, cu_seqlens, p, decay)
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    scale, beta = (torch.empty_like(den) for _ in range(2))
    if call.rows:
        _start("row_gradients", (triton.cdiv(call.rows, 32), call.batch * call.heads),
            g, out, den, scale, beta, *g.stride()[:3], *out.stride()[:3], call.rows, p.eps,
            H=call.heads, E=call.e, BM=32, BE=padded(call.e), NORMALISER=p.normaliser, num_warps=4,
        )  # fmt: skip
    before, z_before, _, _ = _key_sums(call, k, v, kv, z)
    _query_gradients(call, (q, k, v, g, scale, beta), before, z_before, dq)
    del before, z_before
    after, z_after, dkv, dz = _row_sums(call, q, g, scale, beta, g_kv, g_z)
    _key_gradients(call, (q, k, v, g, scale, beta), after, z_after, dk, dv)
    if cu_seqlens is not None:
        dkv, dz = torch.zeros_like(dkv), torch.zeros_like(dz)
    return dq, dk, dv, dkv, dz


def step(given: Call) -> tuple[Tensor, Tensor, Tensor]:
    """One token: ``q [B,H,1,D]``, ``k [B,Hk,1,D]``, ``v [B,Hk,1,E]`` -> ``out [B,H,1,E]`` and the new state."""
    q, k, v, kv, z, key_mask, _, decay, p = given
    q, k, v = _readable(q), _readable(k), _readable(v)
    (batch, heads, _, d), key_heads, e = q.shape, k.shape[1], v.shape[3]
    features = d * (2 if p.q_len else 1)
    out = q.new_empty(batch, heads, 1, e)
    kv_next = q.new_empty(batch, key_heads, features, e, dtype=torch.float32)
    z_next = q.new_empty(batch, key_heads, features, dtype=torch.float32)
    has_first = kv is not None and z is not None
    kv0, z0 = (kv.contiguous(), z.contiguous()) if has_first else (kv_next, z_next)  # pyright: ignore
    q_angle, k_angle = _angle(p.q_first, p.q_len), _angle(p.k_first, p.k_len)
    mask = out if key_mask is None else key_mask.contiguous().view(torch.uint8)
    _start("one_step", (batch * key_heads, triton.cdiv(e, STEP_BLOCK)),
        q, k, v, kv0, z0, mask, mask if decay is None else decay.contiguous(), out, kv_next, z_next,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2],
        math.cos(q_angle), math.sin(q_angle), math.cos(k_angle), math.sin(k_angle), p.eps,
        HK=key_heads, GROUPS=heads // key_heads, D=d, E=e, BD=padded(d), BE=STEP_BLOCK,
        RELU=p.relu, ANGLES=p.q_len > 0, DECAY=decay is not None, HAS_FIRST=has_first, HAS_MASK=key_mask is not None,
        NORMALISER=p.normaliser, num_warps=4,
    )  # fmt: skip
    return out, kv_next, z_next


def _start(kernel: str, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    getattr(kernels, kernel)[grid](*arguments, **constants, **COMPILER)


def _angle(position: Any, length: int) -> float:
    return int(position) * (math.pi / 2 / length) if length else 0.0


def _readable(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _describe(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    p: AttentionSpec,
    decay: Tensor | None,
) -> _Call:
    assert decay is None or p.causal  # without causal, two causal calls make one
    (batch, heads, rows, d), key_heads, keys, e = q.shape, k.shape[1], k.shape[2], v.shape[3]
    device, width, kind = q.device, padded(max(d, e)), product_kind(q.dtype, decays=decay is not None)
    length = segment_length(width)
    if decay is not None and kind == "ieee" and width == WIDEST:  # other calls were asked before, by `why_not`
        raise RuntimeError(
            f"backend 'triton' cannot run here: decays of {q.dtype} need exact float32 products on this GPU, which "
            f"take up to {WIDEST // 2} channels a head, not {max(d, e)}; use backend='batched'"
        )
    if cu_seqlens is not None:
        bounds = tuple(cu_seqlens.tolist())
        q_cut = k_cut = cut(bounds, 0, length, p.causal, device)
        q_table = k_table = _table(0, min(rows, p.k_len), p.k_len, device)
    elif p.causal:
        q_cut = k_cut = cut((0, keys), keys - rows, length, True, device)
        q_table = k_table = _table(int(p.k_first), keys, p.k_len, device)
    else:
        q_cut, k_cut = (cut((0, n), 0, length, False, device) for n in (rows, keys))
        q_table, k_table = _table(int(p.q_first), rows, p.q_len, device), _table(int(p.k_first), keys, p.k_len, device)
    mask = torch.empty(1, dtype=torch.uint8, device=device) if key_mask is None else key_mask.contiguous()
    return _Call(
        p, batch, heads, key_heads, rows, keys, d, e, kind,
        None if decay is None else decay.contiguous(),
        mask.view(torch.uint8), key_mask is not None, q_table, k_table, q_cut, k_cut,
    )  # fmt: skip


def _table(first: int, count: int, length: int, device: torch.device) -> Tensor:
    if not length:
        return torch.empty(2, device=device)
    return cached_angles(first, count, length, torch.float32, device)


def _key_sums(
    call: _Call, k: Tensor, v: Tensor, kv: Tensor | None, z: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sums over keys that rows see, slot by slot, and the state after all keys."""
    sums = _segment_sums(call, k, v, None, None, call.k_cut, call.k_table)
    return _running_sums(call, sums, kv, z, call.k_cut, reverse=False)


def _row_sums(
    call: _Call, q: Tensor, g: Tensor, scale: Tensor, beta: Tensor, g_kv: Tensor, g_z: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sums over rows that keys see, slot by slot, and the gradient of the state before all keys."""
    sums = _segment_sums(call, q, g, scale, beta, call.q_cut, call.q_table)
    return _running_sums(call, sums, g_kv, g_z, call.q_cut, reverse=call.p.causal)


def _segment_sums(
    call: _Call, x: Tensor, y: Tensor, scale: Tensor | None, beta: Tensor | None, where: Cut, table: Tensor
) -> Tensor:
    of_rows = scale is not None
    size = call.features * (call.e + 1)
    sums = x.new_empty(call.batch * call.key_heads, where.count, size, dtype=torch.float32)
    if not where.count:
        return sums
    sizes = SIZES["segment_sums"][call.kind, call.width]
    grid = (where.count, call.batch * call.key_heads, triton.cdiv(call.e, sizes.block))
    _start("segment_sums", grid,
        x, y, scale if of_rows else sums, beta if of_rows else sums, call.mask, table, call.rates, where.segments, sums,
        *x.stride()[:3], *y.stride()[:3], x.shape[2], call.lead if of_rows else 0, where.count,
        HK=call.key_heads, GROUPS=call.heads // call.key_heads if of_rows else 1, D=call.d, E=call.e,
        BT=sizes.rows, BD=call.width, BE=sizes.block,
        RELU=call.p.relu, ANGLES=call.p.q_len > 0, DECAY=call.decay is not None, ROWS=of_rows,
        HAS_MASK=call.has_mask and not of_rows,
        **call.product, num_warps=sizes.warps, num_stages=sizes.stages,
    )  # fmt: skip
    return sums


def _running_sums(
    call: _Call, sums: Tensor, kv: Tensor | None, z: Tensor | None, where: Cut, *, reverse: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    heads, f, e = call.batch * call.key_heads, call.features, call.e
    kv_next = sums.new_empty(call.batch, call.key_heads, f, e)
    z_next = sums.new_empty(call.batch, call.key_heads, f)
    stored = torch.bfloat16 if call.kind == "bf16" else torch.float32
    has_first = kv is not None and z is not None
    kv0, z0 = (kv.contiguous(), z.contiguous()) if has_first else (kv_next, z_next)  # pyright: ignore
    if not where.count:  # nothing to add: all see what came in
        kv_next, z_next = (x.clone() if has_first else x.zero_() for x in (kv0, z0))
        return kv_next.to(stored), z_next, kv_next, z_next
    before, z_before = sums.new_empty(heads, where.slots, f, e, dtype=stored), sums.new_empty(heads, where.slots, f)
    _start("running_sums", (heads, triton.cdiv(f * (e + 1), SCAN_BLOCK)),
        sums, kv0, z0, call.rates, where.segments, before, z_before, kv_next, z_next, where.count, where.slots,
        HK=call.key_heads, D=call.d, FE=f * e, F=f, BLOCK=SCAN_BLOCK,
        HAS_FIRST=has_first, CAUSAL=call.p.causal, REVERSE=reverse, DECAY=call.decay is not None,
        num_warps=4,
    )  # fmt: skip
    return before, z_before, kv_next, z_next


def _query_gradients(call: _Call, given: tuple[Tensor, ...], before: Tensor, z_before: Tensor, dq: Tensor) -> None:
    """``given``: q, k, v, the gradient of the output, and SCALE and BETA of the kernels."""
    q, k, v, g, _, _ = given
    sizes = SIZES["query_gradients"][call.kind, call.width]
    tiles, count = call.q_cut.tiles(sizes.rows, all_keys=False)
    if not count:
        return
    _start("query_gradients", (count, call.batch * call.heads, triton.cdiv(call.d, sizes.block)),
        *given, call.mask, call.q_table, call.rates, tiles, before, z_before, dq,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *g.stride()[:3], *dq.stride()[:3],
        call.rows, call.keys, call.lead, call.k_cut.slots,
        H=call.heads, HK=call.key_heads, D=call.d, E=call.e,
        BM=sizes.rows, BN=call.columns(sizes), BD=sizes.block, BE=call.width,
        RELU=call.p.relu, ANGLES=call.p.q_len > 0, DECAY=call.decay is not None, PAIRS=call.p.causal,
        HAS_MASK=call.has_mask, **call.product, num_warps=sizes.warps, num_stages=sizes.stages,
    )  # fmt: skip


def _key_gradients(
    call: _Call, given: tuple[Tensor, ...], after: Tensor, z_after: Tensor, dk: Tensor, dv: Tensor
) -> None:
    """``given`` as for :func:`_query_gradients`."""
    q, k, v, g, _, _ = given
    sizes = SIZES["key_gradients"][call.kind, call.width]
    tiles, count = call.k_cut.tiles(sizes.rows)
    if not count:
        return
    _start("key_gradients", (count, call.batch * call.key_heads, triton.cdiv(max(call.d, call.e), sizes.block)),
        *given, call.mask, call.k_table, call.rates, tiles, after, z_after, dk, dv,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *g.stride()[:3], *dk.stride()[:3], *dv.stride()[:3],
        call.rows, call.keys, call.lead, call.q_cut.slots,
        HK=call.key_heads, GROUPS=call.heads // call.key_heads, D=call.d, E=call.e,
        BM=call.columns(sizes), BN=sizes.rows, BD=call.width, BX=sizes.block,
        RELU=call.p.relu, ANGLES=call.p.q_len > 0, DECAY=call.decay is not None, PAIRS=call.p.causal,
        HAS_MASK=call.has_mask, **call.product, num_warps=sizes.warps, num_stages=sizes.stages,
    )  # fmt: skip
