"""The Triton kernels: sums over segments, running sums over those, rows, their gradients, and the one-token step.

A sequence is cut into segments. Tiles of rows see the keys of their own segment in pairs and those of the other
segments as a sum: [k' cos | k' sin]^T v, and the same without v. The backward pass is the same computation with other
operands. With a the divisor of a row, q~ = q'/a and beta = dL/d(row sum) * a,

    dq_i = 1/a_i sum_j w_ij (g_i.v_j + beta_i) k'_j        dk_j = sum_i w_ij (g_i.v_j + beta_i) q~_i
    dv_j = sum_i w_ij (q~_i.k'_j) g_i                       w_ij = cos(angle_i - angle_j)

so everything that is rounded to 16 bits on its way into a product stays of the size of the inputs, whatever the length.

With DECAY the weight of a pair has a factor exp(-rate (i - j)) for each channel, RATES ``[Hk, D]``. It is split into a
factor of the row and one of the key at a reference point between them: the last key of a tile that lies before the
rows, the first row of one that lies behind the keys, both factors then being at most 1, and the middle of a tile that
reaches both sides of the diagonal. Such a tile has 16 tokens, so that rates up to 4 give factors from exp(-32) to
exp(32), and the pairs beyond the diagonal are selected away: multiplied by zero, what overflowed would be NaN. A sum
over keys is decayed up to the last token of its segment (a state: of the call), a sum over rows up to the token before
its segment.

Every tensor is read by its own strides, the last one being 1. Tables of 32-bit integers, made by `plan.py`:
SEGMENTS, rows of (start, end, position of the start, sequence), and TILES, rows of (slot of the sum it sees, start,
end, position of the start, first row of the tile), where start and end are those of the tile's segment or sequence.
Loaded values become float32 before anything is compared: a comparison of bfloat16 is not the same everywhere.
"""

# pyright: reportUnreachable=false

import triton
import triton.language as tl


@triton.jit
def _tile(pointer, row, stride, ok, column, width):
    """Rows of a matrix as float32, ``[rows, columns]``, zero where not ``ok`` and past ``width``."""
    inside = ok[:, None] & (column < width)[None, :]
    return tl.load(pointer + row.to(tl.int64)[:, None] * stride + column[None, :], mask=inside, other=0.0).to(
        tl.float32
    )


@triton.jit
def _features(x, RELU: tl.constexpr):
    return tl.maximum(x, 0.0) if RELU else x


@triton.jit
def _visible(MASK, t, ok, HAS_MASK: tl.constexpr):
    """``ok`` without the keys that the mask hides."""
    return ok & (tl.load(MASK + t, mask=ok, other=0) != 0) if HAS_MASK else ok


@triton.jit
def _angle(TABLE, position, ok, ANGLES: tl.constexpr):
    if ANGLES:
        cos = tl.load(TABLE + 2 * position, mask=ok, other=0.0)
        sin = tl.load(TABLE + 2 * position + 1, mask=ok, other=0.0)
    else:
        cos = tl.full(position.shape, 1.0, tl.float32)
        sin = tl.zeros(position.shape, tl.float32)
    return cos, sin


@triton.jit
def _pair_weight(TABLE, position, j, cos, sin, t, ok, ANGLES: tl.constexpr):
    """Of keys j, whose angles are known, and rows t that may not come before them: ``[keys, rows]``."""
    weight = tl.where(j[:, None] <= t[None, :], 1.0, 0.0)
    if ANGLES:
        row_cos, row_sin = _angle(TABLE, position + t, ok, ANGLES)
        weight *= cos[:, None] * row_cos[None, :] + sin[:, None] * row_sin[None, :]
    return weight


@triton.jit
def _decay(rate, distance):
    """exp(-rate distance) of tokens and channels, ``[tokens, channels]``."""
    return tl.exp(-rate[None, :] * distance.to(tl.float32)[:, None])


@triton.jit
def _expm1(x):
    """exp(x) - 1 for x <= 0. A state is scaled again and again, and the rounding of exp(-1e-6) would add up."""
    series = x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6)))))
    return tl.where(x > -0.25, series, tl.exp(x) - 1)


@triton.jit
def _divisor(den, eps, NORMALISER: tl.constexpr):
    if NORMALISER == "clamp":
        a = tl.maximum(den, eps)
    elif NORMALISER == "add":
        a = den + eps
    elif NORMALISER == "signed":
        a = tl.where(den < 0, tl.minimum(den, -eps), tl.maximum(den, eps))
    else:
        a = tl.full(den.shape, 1.0, tl.float32)
    return a


@triton.jit
def _slope(den, eps, NORMALISER: tl.constexpr):
    """d divisor / d row sum."""
    if NORMALISER == "clamp":
        d = tl.where(den > eps, 1.0, 0.0)
    elif NORMALISER == "add":
        d = tl.full(den.shape, 1.0, tl.float32)
    elif NORMALISER == "signed":
        d = tl.where(tl.abs(den) > eps, 1.0, 0.0)
    else:
        d = tl.zeros(den.shape, tl.float32)
    return d


@triton.jit
def _store(pointer, row, stride, ok, column, width, value):
    """Write a tile in the tensor's dtype."""
    inside = ok[:, None] & (column < width)[None, :]
    tl.store(
        pointer + row.to(tl.int64)[:, None] * stride + column[None, :], value.to(pointer.dtype.element_ty), mask=inside
    )


@triton.jit
def segment_sums(
    X, Y, SCALE, BETA, MASK, TABLE, RATES, SEGMENTS, SUMS,
    sx_b, sx_h, sx_n, sy_b, sy_h, sy_n, length, lead, segments,
    HK: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BT: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    RELU: tl.constexpr, ANGLES: tl.constexpr, DECAY: tl.constexpr, ROWS: tl.constexpr, HAS_MASK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``SUMS [B*Hk, segments, F*E + F]``: sums of x' y^T and of x' over each segment, x' at its angles.

    Keys: x = k, y = v. ROWS: x = q, y = g, over the GROUPS heads that share a key head; x' is scaled by SCALE, the sum
    of x' weighted by BETA, and row t - lead belongs to position t.
    """
    segment, head, block = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    start, end = tl.load(SEGMENTS + segment * 4), tl.load(SEGMENTS + segment * 4 + 1)
    position = tl.load(SEGMENTS + segment * 4 + 2) - start
    d, e = tl.arange(0, BD), block * BE + tl.arange(0, BE)
    cos_sum, sin_sum = tl.zeros([BD, BE], tl.float32), tl.zeros([BD, BE], tl.float32)
    cos_z, sin_z = tl.zeros([BD], tl.float32), tl.zeros([BD], tl.float32)
    if DECAY:
        rate = tl.load(RATES + (head % HK) * D + d, mask=d < D, other=0.0)
    for group in range(GROUPS):
        h = (head % HK) * GROUPS + group
        x_head = X + (head // HK) * sx_b + h * sx_h
        y_head = Y + (head // HK) * sy_b + h * sy_h
        row = ((head // HK) * HK * GROUPS + h) * length
        for t0 in range(start, end, BT):
            t = t0 + tl.arange(0, BT)
            ok = (t < end) & (t >= lead)
            ok = _visible(MASK + (head // HK) * length, t, ok, HAS_MASK)
            x = _features(_tile(x_head, t - lead, sx_n, ok, d, D), RELU)
            y = _tile(y_head, t - lead, sy_n, ok, e, E).to(DOT)
            cos, sin = _angle(TABLE, position + t, ok, ANGLES)
            if DECAY:  # at least 0: past the end the factor would be infinite
                x *= _decay(rate, tl.maximum(t - start + 1 if ROWS else end - 1 - t, 0))
            if ROWS:
                x *= tl.load(SCALE + row + t - lead, mask=ok, other=0.0)[:, None]
                beta = tl.load(BETA + row + t - lead, mask=ok, other=0.0)
            else:
                beta = tl.full([BT], 1.0, tl.float32)
            part = x * cos[:, None]
            cos_z += tl.sum(part * beta[:, None], 0)
            cos_sum = tl.dot(tl.trans(part).to(DOT), y, cos_sum, input_precision=PRECISION)
            if ANGLES:
                part = x * sin[:, None]
                sin_z += tl.sum(part * beta[:, None], 0)
                sin_sum = tl.dot(tl.trans(part).to(DOT), y, sin_sum, input_precision=PRECISION)
    F: tl.constexpr = 2 * D if ANGLES else D
    SUMS += (head * segments + segment) * (F * E + F)
    inside = (d < D)[:, None] & (e < E)[None, :]
    at = d[:, None] * E + e[None, :]
    tl.store(SUMS + at, cos_sum, mask=inside)
    if ANGLES:
        tl.store(SUMS + D * E + at, sin_sum, mask=inside)
    if block == 0:
        tl.store(SUMS + F * E + d, cos_z, mask=d < D)
        if ANGLES:
            tl.store(SUMS + F * E + D + d, sin_z, mask=d < D)


@triton.jit
def running_sums(
    SUMS, KV0, Z0, RATES, SEGMENTS, KV, Z, KV1, Z1, segments, slots,
    HK: tl.constexpr, D: tl.constexpr, FE: tl.constexpr, F: tl.constexpr, BLOCK: tl.constexpr,
    HAS_FIRST: tl.constexpr, CAUSAL: tl.constexpr, REVERSE: tl.constexpr, DECAY: tl.constexpr,
):  # fmt: skip
    """From the sums of segments to what the tiles of each see, and the state at the end.

    CAUSAL: slot s holds the sum of the segments before s in its sequence (REVERSE: after it). Otherwise slot s holds
    the whole sum of sequence s. Eight segments at a time, so that their loads overlap.
    """
    head, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_kv, in_z = i < FE, (i >= FE) & (i < FE + F)
    carried = tl.zeros([BLOCK], tl.float32)
    if HAS_FIRST:
        carried = tl.load(KV0 + head * FE + i, mask=in_kv, other=0.0)
        carried += tl.load(Z0 + head * F + i - FE, mask=in_z, other=0.0)
    own = tl.load(SEGMENTS + (segments - 1 if REVERSE else 0) * 4 + 3)  # the sequence whose sum is carried
    if DECAY:
        feature = tl.where(in_kv, i // (FE // F), i - FE)
        rate = tl.load(RATES + (head % HK) * D + feature % D, mask=in_kv | in_z, other=0.0)
        # the token up to which the carried sum has decayed
        place = tl.load(SEGMENTS + (segments - 1) * 4 + 1) if REVERSE else tl.load(SEGMENTS)
    r = tl.arange(0, 8)
    for j in range(0, segments, 8):
        s = segments - 1 - (j + r) if REVERSE else j + r
        real = j + r < segments
        sequence = tl.load(SEGMENTS + s * 4 + 3, mask=real, other=-1)
        x = tl.load(SUMS + (head * segments + s)[:, None] * (FE + F) + i[None, :],
                    mask=real[:, None] & (in_kv | in_z)[None, :], other=0.0)  # fmt: skip
        same = sequence[:, None] == sequence[None, :]
        before = same & (r[:, None] > r[None, :]) if CAUSAL else same & (r[:, None] >= r[None, :])
        if DECAY:
            # where a segment's tokens read, and up to where its own sum has decayed
            reads = tl.load(SEGMENTS + s * 4 + (1 if REVERSE else 0), mask=real, other=0)
            ends_at = tl.load(SEGMENTS + s * 4 + (0 if REVERSE else 1), mask=real, other=0)
            gap = tl.abs(reads[:, None] - ends_at[None, :]).to(tl.float32)
            moved = x[None, :, :] * tl.exp(-rate[None, None, :] * gap[:, :, None])
            sums = tl.sum(tl.where(before[:, :, None], moved, 0.0), 1)
            lost = _expm1(-rate[None, :] * tl.abs(reads - place).to(tl.float32)[:, None])  # pyright: ignore
            sums += tl.where((sequence == own)[:, None], carried[None, :] + lost * carried[None, :], 0.0)
        else:
            sums = tl.sum(tl.where(before[:, :, None], x[None, :, :], 0.0), 1)
            sums += tl.where((sequence == own)[:, None], carried[None, :], 0.0)
        if CAUSAL:
            slot, ends = s, real
        else:
            slot = sequence
            ends = real & (tl.load(SEGMENTS + (s + 1) * 4 + 3, mask=s + 1 < segments, other=-1) != sequence)
        at = (head * slots + slot)[:, None]
        tl.store(KV + at * FE + i[None, :], sums.to(KV.dtype.element_ty), mask=ends[:, None] & in_kv[None, :])
        tl.store(Z + at * F + i[None, :] - FE, sums, mask=ends[:, None] & in_z[None, :])
        final = r == tl.minimum(segments - j, 8) - 1
        last = tl.max(tl.where(final, sequence, -1), 0)
        if DECAY:
            now = tl.sum(tl.where(final, ends_at, 0), 0)
            gap = tl.abs(now - ends_at).to(tl.float32)  # pyright: ignore
            x *= tl.exp(-rate[None, :] * gap[:, None])
            carried += _expm1(-rate * tl.abs(now - place).to(tl.float32)) * carried  # pyright: ignore
            place = now
        carried = tl.where(last == own, carried, 0.0) + tl.sum(tl.where((sequence == last)[:, None], x, 0.0), 0)
        own = last
    tl.store(KV1 + head * FE + i, carried, mask=in_kv)
    tl.store(Z1 + head * F + i - FE, carried, mask=in_z)


@triton.jit
def attend_rows(
    Q, K, V, MASK, TABLE, RATES, TILES, KV, Z, OUT, DEN,
    sq_b, sq_h, sq_n, sk_b, sk_h, sk_n, sv_b, sv_h, sv_n, so_b, so_h, so_n, rows, keys, lead, slots, eps,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    RELU: tl.constexpr, ANGLES: tl.constexpr, DECAY: tl.constexpr, PAIRS: tl.constexpr, HAS_MASK: tl.constexpr,
    NORMALISER: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of rows: OUT and the row sums DEN. PAIRS: the keys of its segment one by one, up to each row's own."""
    tile, head, block = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    slot, start, end = tl.load(TILES + tile * 5), tl.load(TILES + tile * 5 + 1), tl.load(TILES + tile * 5 + 2)
    position, row0 = tl.load(TILES + tile * 5 + 3) - start, tl.load(TILES + tile * 5 + 4)
    b, key_head = head // H, (head % H) // (H // HK)
    d, e = tl.arange(0, BD), block * BE + tl.arange(0, BE)
    i = row0 + tl.arange(0, BM)
    ok = i < end
    q = _features(_tile(Q + b * sq_b + (head % H) * sq_h, i - lead, sq_n, ok, d, D), RELU)
    cos, sin = _angle(TABLE, position + i, ok, ANGLES)
    F: tl.constexpr = 2 * D if ANGLES else D
    KV += ((b * HK + key_head) * slots + slot) * F * E
    Z += ((b * HK + key_head) * slots + slot) * F
    real = d < D
    reading = q  # of the sum before the segment
    if DECAY:
        rate = tl.load(RATES + key_head * D + d, mask=real, other=0.0)
        reading = q * _decay(rate, i - start + 1)
    den = cos * tl.sum(reading * tl.load(Z + d, mask=real, other=0.0)[None, :], 1)
    if ANGLES:
        den += sin * tl.sum(reading * tl.load(Z + D + d, mask=real, other=0.0)[None, :], 1)
    q, reading = q.to(DOT), reading.to(DOT)
    num = tl.dot(reading, _tile(KV, d, E, real, e, E).to(DOT), input_precision=PRECISION) * cos[:, None]
    if ANGLES:
        num += tl.dot(reading, _tile(KV + D * E, d, E, real, e, E).to(DOT), input_precision=PRECISION) * sin[:, None]
    if PAIRS:
        K += b * sk_b + key_head * sk_h
        V += b * sv_b + key_head * sv_h
        for t0 in range(start, tl.minimum(row0 + BM, end), BN):
            t = t0 + tl.arange(0, BN)
            seen = _visible(MASK + b * keys, t, t < end, HAS_MASK)
            k = _features(_tile(K, t, sk_n, seen, d, D), RELU)
            k_cos, k_sin = _angle(TABLE, position + t, seen, ANGLES)
            rows_at = q
            if DECAY:
                point = tl.where(t0 + BN <= row0, t0 + BN - 1, t0 + BN // 2)
                k *= _decay(rate, point - t)
                rows_at = q * _decay(rate, tl.maximum(i - point, -(BN // 2)))
            score = tl.dot(rows_at, tl.trans(k.to(DOT)), input_precision=PRECISION)
            if ANGLES:
                score *= cos[:, None] * k_cos[None, :] + sin[:, None] * k_sin[None, :]
            score = tl.where(i[:, None] >= t[None, :], score, 0.0)
            den += tl.sum(score, 1)
            num = tl.dot(score.to(DOT), _tile(V, t, sv_n, seen, e, E).to(DOT), num, input_precision=PRECISION)
    out = num / _divisor(den, eps, NORMALISER)[:, None]
    _store(OUT + b * so_b + (head % H) * so_h, i - lead, so_n, ok, e, E, out)
    if block == 0:
        tl.store(DEN + head * rows + i - lead, den, mask=ok)


@triton.jit
def row_gradients(
    G, OUT, DEN, SCALE, BETA, sg_b, sg_h, sg_n, so_b, so_h, so_n, rows, eps,
    H: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BE: tl.constexpr, NORMALISER: tl.constexpr,
):  # fmt: skip
    """SCALE = 1/a and BETA = a dL/d(row sum) of each row."""
    head, i = tl.program_id(1).to(tl.int64), tl.program_id(0) * BM + tl.arange(0, BM)
    ok, e = i < rows, tl.arange(0, BE)
    g = _tile(G + (head // H) * sg_b + (head % H) * sg_h, i, sg_n, ok, e, E)
    out = _tile(OUT + (head // H) * so_b + (head % H) * so_h, i, so_n, ok, e, E)
    den = tl.load(DEN + head * rows + i, mask=ok, other=1.0)
    tl.store(SCALE + head * rows + i, 1.0 / _divisor(den, eps, NORMALISER), mask=ok)
    beta = tl.sum(-g * out, 1) * _slope(den, eps, NORMALISER)
    tl.store(BETA + head * rows + i, beta, mask=ok)


@triton.jit
def query_gradients(
    Q, K, V, G, SCALE, BETA, MASK, TABLE, RATES, TILES, KV, Z, DQ,
    sq_b, sq_h, sq_n, sk_b, sk_h, sk_n, sv_b, sv_h, sv_n, sg_b, sg_h, sg_n, sd_b, sd_h, sd_n, rows, keys, lead, slots,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    RELU: tl.constexpr, ANGLES: tl.constexpr, DECAY: tl.constexpr, PAIRS: tl.constexpr, HAS_MASK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq of one tile of rows, BD of its channels; KV and Z are the sums that the forward pass saw."""
    tile, head, block = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    slot, start, end = tl.load(TILES + tile * 5), tl.load(TILES + tile * 5 + 1), tl.load(TILES + tile * 5 + 2)
    position, row0 = tl.load(TILES + tile * 5 + 3) - start, tl.load(TILES + tile * 5 + 4)
    b, key_head = head // H, (head % H) // (H // HK)
    d, e = block * BD + tl.arange(0, BD), tl.arange(0, BE)
    i = row0 + tl.arange(0, BM)
    ok = i < end
    g = _tile(G + b * sg_b + (head % H) * sg_h, i - lead, sg_n, ok, e, E).to(DOT)
    beta = tl.load(BETA + head * rows + i - lead, mask=ok, other=0.0)
    cos, sin = _angle(TABLE, position + i, ok, ANGLES)
    F: tl.constexpr = 2 * D if ANGLES else D
    KV += ((b * HK + key_head) * slots + slot) * F * E
    Z += ((b * HK + key_head) * slots + slot) * F
    real = d < D
    kv = tl.trans(_tile(KV, d, E, real, e, E)).to(DOT)
    part = tl.dot(g, kv, input_precision=PRECISION)
    dq = cos[:, None] * (part + beta[:, None] * tl.load(Z + d, mask=real, other=0.0)[None, :])
    if ANGLES:
        kv = tl.trans(_tile(KV + D * E, d, E, real, e, E)).to(DOT)
        part = tl.dot(g, kv, input_precision=PRECISION)
        dq += sin[:, None] * (part + beta[:, None] * tl.load(Z + D + d, mask=real, other=0.0)[None, :])
    if DECAY:
        rate = tl.load(RATES + key_head * D + d, mask=real, other=0.0)
        dq *= _decay(rate, i - start + 1)
    if PAIRS:
        K += b * sk_b + key_head * sk_h
        V += b * sv_b + key_head * sv_h
        for t0 in range(start, tl.minimum(row0 + BM, end), BN):
            t = t0 + tl.arange(0, BN)
            seen = _visible(MASK + b * keys, t, t < end, HAS_MASK)
            v = _tile(V, t, sv_n, seen, e, E).to(DOT)
            pair = tl.dot(g, tl.trans(v), input_precision=PRECISION) + beta[:, None]
            if ANGLES:
                k_cos, k_sin = _angle(TABLE, position + t, seen, ANGLES)
                pair *= cos[:, None] * k_cos[None, :] + sin[:, None] * k_sin[None, :]
            pair = tl.where(i[:, None] >= t[None, :], pair, 0.0)
            k = _features(_tile(K, t, sk_n, seen, d, D), RELU)
            if DECAY:
                point = tl.where(t0 + BN <= row0, t0 + BN - 1, t0 + BN // 2)
                k = (k * _decay(rate, point - t)).to(DOT)
                part = tl.dot(pair.to(DOT), k, input_precision=PRECISION)
                dq += part * _decay(rate, tl.maximum(i - point, -(BN // 2)))
            else:
                k = k.to(DOT)
                dq = tl.dot(pair.to(DOT), k, dq, input_precision=PRECISION)
    dq *= tl.load(SCALE + head * rows + i - lead, mask=ok, other=0.0)[:, None]
    if RELU:
        q = _tile(Q + b * sq_b + (head % H) * sq_h, i - lead, sq_n, ok, d, D)
        dq = tl.where(q > 0, dq, 0.0)
    _store(DQ + b * sd_b + (head % H) * sd_h, i - lead, sd_n, ok, d, D, dq)


@triton.jit
def key_gradients(
    Q, K, V, G, SCALE, BETA, MASK, TABLE, RATES, TILES, KV, Z, DK, DV,
    sq_b, sq_h, sq_n, sk_b, sk_h, sk_n, sv_b, sv_h, sv_n, sg_b, sg_h, sg_n,
    sx_b, sx_h, sx_n, sy_b, sy_h, sy_n, rows, keys, lead, slots,
    HK: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BX: tl.constexpr,
    RELU: tl.constexpr, ANGLES: tl.constexpr, DECAY: tl.constexpr, PAIRS: tl.constexpr, HAS_MASK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv of one tile of keys, BX channels of each; KV and Z are the sums over the rows that see it."""
    tile, head, block = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    slot, start, end = tl.load(TILES + tile * 5), tl.load(TILES + tile * 5 + 1), tl.load(TILES + tile * 5 + 2)
    position, row0 = tl.load(TILES + tile * 5 + 3) - start, tl.load(TILES + tile * 5 + 4)
    b, hk = head // HK, head % HK
    c, x = tl.arange(0, BD), block * BX + tl.arange(0, BX)
    j = row0 + tl.arange(0, BN)
    ok = j < end
    seen = _visible(MASK + b * keys, j, ok, HAS_MASK)
    cos, sin = _angle(TABLE, position + j, ok, ANGLES)
    F: tl.constexpr = 2 * D if ANGLES else D
    KV += (head * slots + slot) * F * E
    Z += (head * slots + slot) * F
    # dv, then dk: their sums would not fit into the registers together
    k = _features(_tile(K + b * sk_b + hk * sk_h, j, sk_n, seen, c, D), RELU)
    reading = k  # of the sum behind the segment
    if DECAY:
        rate = tl.load(RATES + hk * D + c, mask=c < D, other=0.0)
        reading = k * _decay(rate, tl.maximum(end - 1 - j, 0))
    k, reading = k.to(DOT), reading.to(DOT)
    dv = cos[:, None] * tl.dot(reading, _tile(KV, c, E, c < D, x, E).to(DOT), input_precision=PRECISION)
    if ANGLES:
        dv += sin[:, None] * tl.dot(reading, _tile(KV + D * E, c, E, c < D, x, E).to(DOT), input_precision=PRECISION)
    if PAIRS:
        for group in range(GROUPS):
            h = hk * GROUPS + group
            q_head, g_head = Q + b * sq_b + h * sq_h, G + b * sg_b + h * sg_h
            row = (b * HK * GROUPS + h) * rows
            for t0 in range(row0, end, BM):
                t = t0 + tl.arange(0, BM)
                live = (t < end) & (t >= lead)
                scale = tl.load(SCALE + row + t - lead, mask=live, other=0.0)
                q = _features(_tile(q_head, t - lead, sq_n, live, c, D), RELU) * scale[:, None]
                keys_at = k
                if DECAY:
                    point = tl.where(t0 >= row0 + BN, t0, t0 + BM // 2)
                    q *= _decay(rate, t - point)
                    keys_at = k * _decay(rate, tl.maximum(point - j, -(BM // 2)))
                score = tl.dot(keys_at, tl.trans(q.to(DOT)), input_precision=PRECISION)
                score *= _pair_weight(TABLE, position, j, cos, sin, t, live, ANGLES)
                if DECAY:  # beyond the diagonal it may have been infinite
                    score = tl.where(j[:, None] <= t[None, :], score, 0.0)
                g = _tile(g_head, t - lead, sg_n, live, x, E).to(DOT)
                dv = tl.dot(score.to(DOT), g, dv, input_precision=PRECISION)
    # a masked k is zero, so dv is too, except where a gradient is not finite: 0 * inf is NaN
    _store(DV + b * sy_b + hk * sy_h, j, sy_n, ok, x, E, tl.where(seen[:, None], dv, 0.0))
    v = _tile(V + b * sv_b + hk * sv_h, j, sv_n, seen, c, E).to(DOT)
    part = tl.dot(v, tl.trans(_tile(KV, x, E, x < D, c, E)).to(DOT), input_precision=PRECISION)
    dk = cos[:, None] * (part + tl.load(Z + x, mask=x < D, other=0.0)[None, :])
    if ANGLES:
        part = tl.dot(v, tl.trans(_tile(KV + D * E, x, E, x < D, c, E)).to(DOT), input_precision=PRECISION)
        dk += sin[:, None] * (part + tl.load(Z + D + x, mask=x < D, other=0.0)[None, :])
    if DECAY:
        rate = tl.load(RATES + hk * D + x, mask=x < D, other=0.0)
        dk *= _decay(rate, tl.maximum(end - 1 - j, 0))
    if PAIRS:
        for group in range(GROUPS):
            h = hk * GROUPS + group
            q_head, g_head = Q + b * sq_b + h * sq_h, G + b * sg_b + h * sg_h
            row = (b * HK * GROUPS + h) * rows
            for t0 in range(row0, end, BM):
                t = t0 + tl.arange(0, BM)
                live = (t < end) & (t >= lead)
                g = _tile(g_head, t - lead, sg_n, live, c, E).to(DOT)
                beta = tl.load(BETA + row + t - lead, mask=live, other=0.0)
                pair = tl.dot(v, tl.trans(g), input_precision=PRECISION) + beta[None, :]
                pair *= _pair_weight(TABLE, position, j, cos, sin, t, live, ANGLES)
                scale = tl.load(SCALE + row + t - lead, mask=live, other=0.0)
                q = _features(_tile(q_head, t - lead, sq_n, live, x, D), RELU) * scale[:, None]
                if DECAY:
                    point = tl.where(t0 >= row0 + BN, t0, t0 + BM // 2)
                    q = (q * _decay(rate, t - point)).to(DOT)
                    part = tl.dot(pair.to(DOT), q, input_precision=PRECISION)
                    dk += part * _decay(rate, tl.maximum(point - j, -(BM // 2)))
                else:
                    q = q.to(DOT)
                    dk = tl.dot(pair.to(DOT), q, dk, input_precision=PRECISION)
    if RELU:
        dk = tl.where(_tile(K + b * sk_b + hk * sk_h, j, sk_n, seen, x, D) > 0, dk, 0.0)
    _store(DK + b * sx_b + hk * sx_h, j, sx_n, ok, x, D, tl.where(seen[:, None], dk, 0.0))


@triton.jit
def _advance(state, lost, new, DECAY: tl.constexpr):
    """Adds lost and new terms first, so that the one rounding of the sum with the state varies from step to step."""
    return state + (lost * state + new) if DECAY else new + state


@triton.jit
def one_step(
    Q, K, V, KV0, Z0, MASK, RATES, OUT, KV1, Z1,
    sq_b, sq_h, sk_b, sk_h, sv_b, sv_h, q_cos, q_sin, k_cos, k_sin, eps,
    HK: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    RELU: tl.constexpr, ANGLES: tl.constexpr, DECAY: tl.constexpr, HAS_FIRST: tl.constexpr, HAS_MASK: tl.constexpr,
    NORMALISER: tl.constexpr,
):  # fmt: skip
    """One token: the state moves on by one key, and the query heads of that key head read it."""
    head, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, hk = head // HK, head % HK
    d, e = tl.arange(0, BD), block * BE + tl.arange(0, BE)
    real, column = d < D, e < E
    k = _features(tl.load(K + b * sk_b + hk * sk_h + d, mask=real, other=0.0).to(tl.float32), RELU)
    v = tl.load(V + b * sv_b + hk * sv_h + e, mask=column, other=0.0).to(tl.float32)
    if HAS_MASK:
        seen = tl.load(MASK + b) != 0
        k, v = tl.where(seen, k, 0.0), tl.where(seen, v, 0.0)
    F: tl.constexpr = 2 * D if ANGLES else D
    inside = real[:, None] & column[None, :]
    at = head * F * E + d[:, None] * E + e[None, :]
    kv = k_cos * k[:, None] * v[None, :]
    z = k_cos * k
    lost = tl.zeros([BD], tl.float32)  # of the state, by its decay
    if DECAY:
        lost = _expm1(-tl.load(RATES + hk * D + d, mask=real, other=0.0))
    if HAS_FIRST:
        kv = _advance(tl.load(KV0 + at, mask=inside, other=0.0), lost[:, None], kv, DECAY)
        z = _advance(tl.load(Z0 + head * F + d, mask=real, other=0.0), lost, z, DECAY)
    tl.store(KV1 + at, kv, mask=inside)
    if block == 0:
        tl.store(Z1 + head * F + d, z, mask=real)
    if ANGLES:
        kv_sin = k_sin * k[:, None] * v[None, :]
        z_sin = k_sin * k
        if HAS_FIRST:
            kv_sin = _advance(tl.load(KV0 + at + D * E, mask=inside, other=0.0), lost[:, None], kv_sin, DECAY)
            z_sin = _advance(tl.load(Z0 + head * F + D + d, mask=real, other=0.0), lost, z_sin, DECAY)
        tl.store(KV1 + at + D * E, kv_sin, mask=inside)
        if block == 0:
            tl.store(Z1 + head * F + D + d, z_sin, mask=real)
        # what every query of this position reads
        kv, z = q_cos * kv + q_sin * kv_sin, q_cos * z + q_sin * z_sin
    for group in range(GROUPS):
        h = hk * GROUPS + group
        q = _features(tl.load(Q + b * sq_b + h * sq_h + d, mask=real, other=0.0).to(tl.float32), RELU)
        den = tl.sum(q * z, 0)
        num = tl.sum(q[:, None] * kv, 0)
        out = num / _divisor(tl.full([BE], 0.0, tl.float32) + den, eps, NORMALISER)
        kind = OUT.dtype.element_ty
        tl.store(OUT + (b * HK * GROUPS + h) * E + e, out.to(kind), mask=column)


# constants decide at compile time whether a name is needed
# pyright: reportPossiblyUnboundVariable=false
