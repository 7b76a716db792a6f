"""The native kernels against a dense float64 definition: outputs, states and gradients."""

import itertools
import re
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cosformer import cosformer_attention
from cosformer.ops import native
from cosformer.ops.native import memory
from cosformer.ops.native.library import MEMBERS, TOKEN_MEMBERS, loaded
from cosformer.ops.spec import AttentionSpec, Call

pytestmark = [
    pytest.mark.skipif(not native.available(), reason=native.describe()),
    pytest.mark.usefixtures("two_threads"),
]


def given(
    n=50,
    s=None,
    d=8,
    e=8,
    b=2,
    h=4,
    hk=2,
    causal=True,
    angles=True,
    state=False,
    mask=False,
    dtype=torch.float32,
    seed=0,
    **kw,
):
    """A random problem; queries are the last n of s positions when causal."""
    torch.manual_seed(seed)
    s = n if s is None else s
    k_first = 3 if state else 0
    length = k_first + max(n, s) + 5 if angles else 0
    q_first = k_first + (s - n if causal else 0)
    features = d * (2 if angles else 1)
    relu = kw.get("relu", True)

    def draw(*shape):
        return (torch.randn(*shape) if relu else torch.rand(*shape)).to(dtype)

    kv = torch.randn(b, hk, features, e) if state else None
    z = torch.rand(b, hk, features) if state else None
    key_mask = torch.rand(b, s) > 0.3 if mask else None
    p = AttentionSpec(
        relu, causal, q_first, k_first, length, length, kw.get("normaliser", "clamp"), kw.get("eps", 1e-6)
    )
    q, k, v = draw(b, h, n, d), draw(b, hk, s, d), torch.randn(b, hk, s, e).to(dtype)
    return Call(q, k, v, kv, z, key_mask, None, None, p)


def turned(x: Tensor, first: int, length: int) -> Tensor:
    if not length:
        return x
    angle = torch.pi / 2 * (first + torch.arange(x.shape[2], dtype=torch.float64)) / length
    return torch.cat([x * angle.cos()[:, None].to(x.dtype), x * angle.sin()[:, None].to(x.dtype)], dim=-1)


def dense(q, k, v, kv, z, key_mask, cu_seqlens, decay, p: AttentionSpec):
    """The definition: every score, in float64."""
    if cu_seqlens is not None:
        bounds = cu_seqlens.tolist()
        spans = [slice(a, b) for a, b in itertools.pairwise(bounds)]
        parts = [dense(q[:, :, s], k[:, :, s], v[:, :, s], None, None, None, None, decay, p) for s in spans]
        return torch.cat([x[0] for x in parts], dim=2), torch.cat([x[1] for x in parts], dim=2), None, None
    if p.relu:
        q, k = q.relu(), k.relu()
    if key_mask is not None:
        k, v = (x.masked_fill(~key_mask[:, None, :, None], 0) for x in (k, v))
    fq, fk = turned(q, p.q_first, p.q_len), turned(k, p.k_first, p.k_len)
    kv = fk.new_zeros(*k.shape[:2], fk.shape[-1], v.shape[-1]) if kv is None else kv
    z = fk.new_zeros(*k.shape[:2], fk.shape[-1]) if z is None else z
    group = q.shape[1] // k.shape[1]
    spread = [x.repeat_interleave(group, dim=1) for x in (fk, v, kv, z)]
    behind, end = fq, fk  # queries as they see the incoming state, keys as they are seen from the last position
    if decay is None:
        weights = fq @ spread[0].mT
    else:
        rates = decay.double().repeat(1, fq.shape[-1] // q.shape[-1])
        at, apart = places(q.shape[2], k.shape[2])
        factors = (-rates.repeat_interleave(group, dim=0)[:, None, None] * apart[..., None]).exp()
        weights = torch.einsum("bhif,bhjf,hijf->bhij", fq, spread[0], factors)
        behind = fq * (-rates.repeat_interleave(group, dim=0)[:, None] * (at[:, None] + 1)).exp()
        end = fk * (-rates[:, None] * torch.arange(k.shape[2]).flip(0)[:, None]).exp()
        kv, z = ((-rates * k.shape[2]).exp()[..., None] * kv, (-rates * k.shape[2]).exp() * z)
    if p.causal:
        weights = weights.tril(k.shape[2] - q.shape[2])
    numerator = weights @ spread[1] + behind @ spread[2]
    den = weights.sum(-1) + (behind @ spread[3][..., None])[..., 0]
    sign = torch.where(den < 0, -1.0, 1.0)
    divisor = {
        "clamp": den.clamp_min(p.eps),
        "add": den + p.eps,
        "signed": sign * den.abs().clamp_min(p.eps),
        "none": torch.ones_like(den),
    }[p.normaliser]
    return numerator / divisor[..., None], den, kv + end.mT @ v, z + end.sum(2)


def places(n: int, s: int) -> tuple[Tensor, Tensor]:
    """Where the last n of s positions are, and how far each is behind every key (0 where the key comes later)."""
    at = torch.arange(s - n, s, dtype=torch.float64)
    return at, (at[:, None] - torch.arange(s)).clamp_min(0)


def gradients(g: Call, dtype=torch.float64):
    """Random incoming gradients, and what they make of q, k, v, kv, z by autograd through the definition."""
    torch.manual_seed(1)
    inputs = [None if x is None else x.detach().to(dtype).requires_grad_() for x in g[:5]]
    out, den, kv_next, z_next = dense(*inputs, *g[5:])
    g_out = torch.randn(out.shape).to(g.v.dtype)
    g_kv = None if g.kv is None else torch.randn(g.kv.shape)
    g_z = None if g.z is None else torch.randn(g.z.shape)
    loss = (out * g_out).sum()
    if g_kv is not None:
        loss = loss + (kv_next * g_kv).sum() + (z_next * g_z).sum()
    wanted = torch.autograd.grad(loss, [x for x in inputs if x is not None], allow_unused=True)
    return (out, den, kv_next, z_next), (g_out, g_kv, g_z), wanted


def worst(got: Tensor, wanted: Tensor, scale: float | None = None) -> float:
    """Largest error, relative to the largest value."""
    if not wanted.numel():
        return 0.0
    scale = wanted.abs().max().item() if scale is None else scale
    return (got.double() - wanted).abs().max().item() / max(scale, 1e-30)


def magnitudes(g: Call, incoming, out: Tensor) -> tuple[Tensor, ...]:
    """The gradients with the absolute value of every term: the scale of rounding errors."""
    q, k, v, kv, z = (None if x is None else x.detach().double() for x in g[:5])
    v, kv = v.abs(), None if kv is None else kv.abs()
    inputs = [None if x is None else x.requires_grad_() for x in (q, k, v, kv, z)]
    numerator, den, kv_next, z_next = dense(*inputs, *g[5:-1], g.spec._replace(normaliser="none"))
    g_out, g_kv, g_z = (None if x is None else x.double().abs() for x in incoming)
    through_num, through_den = (numerator * g_out).sum(-1), (out.detach().abs() * g_out).sum(-1) * den
    loss = ((through_num + through_den) / den.detach().clamp_min(g.spec.eps)).sum()
    if g_kv is not None:
        loss = loss + (kv_next * g_kv).sum() + (z_next * g_z).sum()
    return torch.autograd.grad(loss, [x for x in inputs if x is not None], allow_unused=True)


def check(g: Call, tolerance=2e-6, g_tolerance=5e-6):
    results, incoming, wanted = gradients(g)
    ours = native.forward(g)
    assert [x.dtype for x in ours] == [g.v.dtype, *[torch.float32] * 3]
    for got, want in zip(ours, results, strict=True):
        if want is not None:
            assert got.shape == want.shape
            assert worst(got, want.detach()) < tolerance
    scale = max((x.abs().max().item() for x in wanted[:3] if x.numel()), default=0.0)
    saved = [ours[2:]] if g.spec.causal else [ours[2:], (None, None)]
    for state in saved:
        grads = native.backward(g, *incoming, ours[0], ours[1], *state)
        for i, (got, want) in enumerate(zip(grads, wanted, strict=False)):
            assert got.shape == want.shape
            error = worst(got, want, scale if i < 3 else None)
            if not error < g_tolerance:  # terms cancel (D = 1: dq is zero); then their own size is the measure
                size = magnitudes(g, incoming, results[0])[i]
                assert ((got.double() - want).abs() <= 1e-6 * size).all(), ["dq", "dk", "dv", "dkv", "dz"][i]


@pytest.mark.parametrize("angles", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("d", "e"), [(1, 1), (5, 7), (60, 60), (64, 64), (128, 40), (20, 130), (256, 256)])
def test_sizes_of_heads(d, e, causal, angles):
    check(given(70, d=d, e=e, causal=causal, angles=angles))


@pytest.mark.parametrize("n", [1, 5, 6, 7, 16, 47, 48, 49, 96, 97, 200])
@pytest.mark.parametrize("causal", [True, False])
def test_lengths(n, causal):
    check(given(n, d=16, e=12, causal=causal, state=n % 2 == 1))


@pytest.mark.parametrize(("n", "s"), [(1, 60), (40, 41), (48, 150), (100, 130)])
def test_causal_queries_are_the_last_positions(n, s):
    check(given(n, s, causal=True, state=True, mask=True))


@pytest.mark.parametrize(("n", "s"), [(1, 60), (60, 1), (130, 50), (50, 210), (0, 20), (20, 0)])
def test_cross_attention(n, s):
    check(given(n, s, causal=False, state=True))


def test_each_side_has_its_own_angles():
    g = given(40, 90, causal=False)
    check(g._replace(spec=g.spec._replace(q_first=1, k_first=1, q_len=41, k_len=91)))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("h", "hk"), [(1, 1), (3, 3), (6, 1), (6, 2), (8, 8)])
def test_grouped_heads(h, hk, causal):
    check(given(100, b=1, h=h, hk=hk, d=24, e=40, causal=causal, state=True, mask=True))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("normaliser", ["clamp", "add", "signed", "none"])
@pytest.mark.parametrize("relu", [True, False])
def test_normalisers(normaliser, relu, causal):
    check(given(60, causal=causal, normaliser=normaliser, relu=relu, eps=1e-3, angles=relu))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_below_eps_pass_no_gradient_to_the_denominator(causal, dtype):
    g = given(60, causal=causal, eps=40.0, dtype=dtype)
    clamped = native.forward(g)[1] < 40
    assert 0.2 < clamped.float().mean() < 0.8
    half = dtype == torch.bfloat16
    check(g, 5e-3 if half else 2e-6, 5e-3 if half else 5e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_signed_divisor_keeps_the_sign(causal):
    g = given(60, relu=False, normaliser="signed", eps=20.0, angles=False, causal=causal)
    g = g._replace(q=g.q - 0.5)
    den = native.forward(g)[1]
    for part in (den < -20, (den < 0) & (den > -20), (den > 0) & (den < 20), den > 20):
        assert part.any()
    check(g)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("bounds", [[0, 100], [0, 1, 1, 60, 61, 180], [0, 0, 50], [0, 30, 30]])
def test_packed_sequences(bounds, causal):
    g = given(bounds[-1], b=1, d=12, e=20, causal=causal)
    check(g._replace(cu_seqlens=torch.tensor(bounds, dtype=torch.int32)))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("features", ["plain", "state and mask"])
def test_bfloat16_errs_no_more_than_twice_the_rounded_float32(features, causal):
    full = features != "plain"
    g = given(150, d=32, e=24, causal=causal, state=full, mask=full, dtype=torch.bfloat16)
    (out, *_), incoming, wanted = gradients(g)
    ours = native.forward(g)
    assert worst(ours[0], out.detach()) <= 2 * worst(out.detach().bfloat16(), out.detach())
    grads = native.backward(g, *incoming, *ours)
    for got, want in zip(grads[:3], wanted[:3], strict=True):
        assert got.dtype == torch.bfloat16
        assert worst(got, want) <= 2 * worst(want.bfloat16(), want)


def layouts(x: Tensor) -> dict[str, Tensor]:
    b, h, n, d = x.shape
    heads_inside = x.transpose(1, 2).contiguous().transpose(1, 2)
    odd = torch.empty(b * h * n * d + 1, dtype=x.dtype)[1:].view(b, h, n, d).copy_(x)
    gaps = torch.empty(b, h, n * 2, d + 3, dtype=x.dtype)[:, :, ::2, 2 : d + 2].copy_(x)
    columns = x.mT.contiguous().mT
    return {"heads inside": heads_inside, "unaligned": odd, "gaps": gaps, "channels outside": columns}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["heads inside", "unaligned", "gaps", "channels outside"])
def test_strides_change_nothing(layout, dtype):
    g = given(60, d=20, e=36, dtype=dtype)
    moved = g._replace(q=layouts(g.q)[layout], k=layouts(g.k)[layout], v=layouts(g.v)[layout])
    plain = native.forward(g)
    for got, want in zip(native.forward(moved), plain, strict=True):
        assert torch.equal(got, want)
    g_out = torch.randn_like(plain[0])
    wanted = native.backward(g, g_out, None, None, *plain)
    for got, want in zip(native.backward(moved, layouts(g_out)[layout], None, None, *plain), wanted, strict=True):
        assert torch.equal(got, want)


def test_broadcast_inputs():
    g = given(60)
    check(g._replace(q=g.q[:, :1].expand(-1, 4, -1, -1), v=g.v[:1].expand(2, -1, -1, -1)))


@pytest.mark.parametrize("shape", [{"b": 0}, {"n": 0}, {"n": 0, "causal": False}, {"n": 0, "state": True}, {"e": 0}])
def test_nothing_to_do(shape):
    check(given(**{"n": 10, **shape}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("h", "hk"), [(1, 1), (3, 3), (4, 2), (8, 8)])
def test_thread_counts_give_the_same_bits(h, hk, causal, dtype):
    g = given(700, b=1, h=h, hk=hk, d=32, e=48, causal=causal, dtype=dtype)
    runs = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        ours = native.forward(g)
        g_out = torch.ones_like(ours[0])
        runs.append([*ours, *native.backward(g, g_out, None, None, *ours)])
        runs[-1] += native.backward(g, g_out, None, None, ours[0], ours[1], None, None) if not causal else []
    for run in runs[1:]:
        assert all(torch.equal(x, y) for x, y in zip(run, runs[0], strict=True))


@pytest.mark.parametrize("causal", [True, False])
def test_dead_rows_are_zero(causal):
    g = given(60, causal=causal)
    g.q[:, :, 7] = -1
    g.k[:, :, :3] = -1
    out, den, kv_next, z_next = native.forward(g)
    assert (out[:, :, 7] == 0).all()
    assert (den[:, :, 7] == 0).all()
    if causal:
        assert (out[:, :, :3] == 0).all()
    grads = native.backward(g, torch.ones_like(out), None, None, out, den, kv_next, z_next)
    assert all(x.isfinite().all() for x in grads)
    assert (grads[0][:, :, 7] == 0).all()


def test_far_keys_are_not_lost():
    """One live key at the start, a query at the end of a million positions: the weight is tiny, not noise."""
    length = 1_000_000
    g = given(50, d=4, e=4, b=1, h=1, hk=1, causal=True, state=True)
    k = torch.ones(1, 1, 1, 4)
    start = g.spec._replace(q_first=0, k_first=0, q_len=length, k_len=length)
    first = native.forward(Call(k, k, torch.ones(1, 1, 1, 4), None, None, None, None, None, start))
    p = start._replace(q_first=length - 50, k_first=length - 50, eps=1e-12)
    q = g.q.abs() + 0.1
    out, den, *_ = native.forward(Call(q, -g.k.abs(), g.v, first[2], first[3], None, None, None, p))
    wanted = dense(
        q.double(), -g.k.abs().double(), g.v.double(), first[2].double(), first[3].double(), None, None, None, p
    )
    assert ((den - wanted[1]).abs() / wanted[1]).max() < 1e-6
    assert worst(out, torch.ones(1, 1, 50, 4, dtype=torch.float64)) < 1e-6


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("compiled", [False, True])
def test_large_results_use_memory_again_and_fill_it(causal, compiled):
    """Also under torch.compile, which keeps other references to the arguments of Python functions."""
    from torch._C._dynamo.eval_frame import set_eval_frame

    g = given(9000, b=1, d=32, e=32, causal=causal)
    wanted = [x.clone() for x in native.forward(g)]
    memory.release()
    before = set_eval_frame(False if compiled else None)  # False: run what was compiled before, compile nothing
    try:
        use_memory_again(g, wanted)
    finally:
        set_eval_frame(before)


def use_memory_again(g, wanted):
    out = memory.empty(g.q.shape, torch.float32).fill_(torch.nan)
    pointer = out.data_ptr()
    del out
    out = native.forward(g)[0]
    assert out.data_ptr() == pointer
    del out
    for _ in range(2):
        ours = native.forward(g)
        assert all(torch.equal(x, y) for x, y in zip(ours, wanted, strict=True))
        grads = native.backward(g, torch.ones_like(ours[0]), None, None, *ours)
        assert len({x.data_ptr() for x in (ours[0], *grads)}) == 6
        assert all(x.isfinite().all() for x in grads)
        for x in (*ours, *grads):
            x.fill_(torch.nan)  # what the next round finds in its memory
        del ours, grads, x
    assert memory.remembered() > 0
    memory.release()
    assert memory.remembered() == 0


def test_memory_is_remembered_only_up_to_its_limit():
    memory.release()
    blocks = []
    for i in range(6):
        blocks.append(memory.empty((memory.KEPT // 4 // 4 + i,), torch.float32))
        assert memory.remembered() <= memory.KEPT
    assert [x.numel() for x in blocks] == [memory.KEPT // 16 + i for i in range(6)]
    memory.release()
    kept = memory.empty_like(torch.empty(3, 1000, 4, 100).transpose(1, 2))
    assert kept.stride() == (400_000, 100, 400, 1)


def test_large_results_are_ordinary_tensors():
    """They can be resized and shared, and memory that somebody still holds, in whatever way, serves nobody else."""
    memory.release()
    shape = (1 << 17,)
    out = memory.empty(shape, torch.float32)
    assert not out._is_view()
    out.resize_(1 << 19)[-1] = 1
    assert memory.empty(shape, torch.float32).data_ptr() != out.data_ptr()
    holders = {
        "view": lambda x: x[5:],
        "numpy": lambda x: x.numpy(),
        "storage": lambda x: x.untyped_storage(),
        "shared with another process": lambda x: (x.share_memory_(), None)[1],
        "given to dlpack": lambda x: torch.utils.dlpack.to_dlpack(x),
    }
    for name, hold in holders.items():
        memory.release()
        out = memory.empty(shape, torch.float32)
        at, held = out.data_ptr(), hold(out)
        at = out.data_ptr() if held is None else at
        del out
        again = memory.empty(shape, torch.float32)
        assert again.data_ptr() != at, name
        del held, again
    result = cosformer_attention(*(torch.randn(1, 4, 600, 64) for _ in range(3)), causal=True, max_len=600)
    assert result.nbytes > memory.LARGE and result.resize_(1, 4, 700, 64).shape == (1, 4, 700, 64)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_scratch_memory_of_large_heads_is_given_back():
    def call(d):
        native.forward(given(16, d=d, e=d, b=1, h=1, hk=1, causal=False))  # causal, it would touch a part at a time

    call(3000)  # what torch keeps, it keeps now
    memory.release()
    before = resident_bytes()
    call(3000)
    assert resident_bytes() - before < 40 << 20, "the state of one head takes 72 MB"


def test_small_numbers_are_not_flushed():
    native.forward(given(2000, b=1))
    tiny = torch.full((1_000_000,), 1e-40)
    assert ((tiny * 0.5) > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize(("d", "e", "h", "hk"), [(64, 64, 8, 8), (5, 7, 6, 2), (16, 100, 2, 1), (64, 72, 4, 4)])
def test_step_is_forward_of_one_token(d, e, h, hk, state, dtype):
    g = given(1, d=d, e=e, h=h, hk=hk, b=3, state=state, mask=True, dtype=dtype)
    out, _, kv_next, z_next = native.forward(g)
    step = native.step(g)
    assert worst(step[0], out.double()) < (1e-6 if dtype == torch.float32 else 1e-2)
    assert worst(step[1], kv_next.double()) < 1e-6
    assert worst(step[2], z_next.double()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_state_is_stepped_like_small_ones(dtype):
    """From 16 MB on the new state is written past the caches."""
    g = given(1, b=66, h=16, hk=8, d=64, e=64, state=True, dtype=dtype)
    assert g.kv is not None and g.kv.nbytes > 16 << 20
    whole = native.step(g)
    for b in (0, 1, 65):
        part = native.step(Call(*(None if x is None else x[b : b + 1] for x in g[:6]), None, None, g.spec))
        assert all(torch.equal(x[b : b + 1], y) for x, y in zip(whole, part, strict=True))


def test_imaginary_parts_keep_their_sign():
    """Their memory may hold the other sign, which strides alone do not tell."""
    q, k, v = (torch.randn(1, 2, 60, 1, dtype=torch.complex64).conj().imag for _ in range(3))
    assert q.is_neg()
    p = given(60).spec
    wanted = native.forward(Call(*(x.clone() for x in (q, k, v)), None, None, None, None, None, p))
    for got, want in zip(native.forward(Call(q, k, v, None, None, None, None, None, p)), wanted, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.usefixtures("instructions")
def test_every_build_of_the_kernels(causal):
    check(given(110, d=20, e=72, causal=causal, state=True, mask=True))
    check(given(110, d=64, e=64, causal=causal))
    g = given(1, d=20, e=72, state=True)
    assert worst(native.step(g)[0], native.forward(g)[0].double()) < 1e-6


@pytest.mark.parametrize(("record", "members"), [("call_t", MEMBERS), ("token_t", TOKEN_MEMBERS)])
def test_python_packs_the_members_of_the_header(record, members):
    header = (Path(__file__).parents[2] / "src/cosformer/ops/native/cosformer.h").read_text()  # not in a wheel
    end = header.index(f"}} {record};")
    body = re.sub(r"/\*.*?\*/", "", header[header.rindex("typedef struct {", 0, end) : end], flags=re.DOTALL)
    assert re.findall(r"[*\s,](\w+(?:\[3\])?)(?=\s*[,;])", body) == members


def test_says_what_it_cannot_take():
    x = torch.zeros(1, 1, 4, 4)
    assert native.why_not(x, x, x) == ""
    assert "float64" in native.why_not(x.double())
    assert "one dtype" in native.why_not(x, x.bfloat16())
    assert "meta" in native.why_not(x.to("meta"))
    with pytest.raises(ValueError, match="'sse9' is no instruction set"):
        loaded().choose("sse9")
    assert loaded().instructions in native.describe()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 1, 1), (5, 5, 1, 3), (64, 64, 64, 64), (63, 63, 60, 17), (96, 96, 5, 16), (33, 90, 7, 8), (90, 33, 64, 40)],
)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_short_input_takes_the_dense_form_of_the_library(monkeypatch, causal, masked, sizes, dtype):
    n, s, d, e = sizes
    if causal:
        s = n
    calls = []
    dense = native.dense
    monkeypatch.setattr(native, "dense", lambda *args: calls.append(1) or dense(*args))
    q, k, v = (torch.randn(shape).to(dtype) for shape in ((3, 4, n, d), (3, 2, s, d), (3, 2, s, e)))
    mask = torch.rand(3, s) > 0.4 if masked else None
    out = cosformer_attention(q, k, v, causal=causal, max_len=128, key_mask=mask)
    wide = [x.double() for x in (q, k, v)]
    expected = cosformer_attention(*wide, causal=causal, max_len=128, key_mask=mask, backend="dense")
    assert len(calls) == 1
    assert (out.double() - expected).abs().max() <= (
        1e-5 if dtype == torch.float32 else 2e-2
    ) * expected.abs().max().clamp_min(1)


RATES = [0, 1e-6, 0.01, 1, 4, "mixed"]


def decaying(g: Call, rate: float | str) -> Call:
    """The call with this rate, or with many in each head and others in the next."""
    heads, channels = g.k.shape[1], g.k.shape[3]
    some = torch.tensor([0.1, 0, 2, 1e-6, 1, 0.01, 4])
    rates = some.repeat(heads * channels)[: heads * channels] if rate == "mixed" else torch.full((), float(rate))
    return g._replace(decay=rates.expand(heads * channels).reshape(heads, channels).contiguous())


def check_decay(g: Call, rate: float | str):
    """Outputs, states and gradients after a call that leaves NaN in scratch memory."""
    dirty = g._replace(q=g.q * torch.nan, k=g.k * torch.nan, v=g.v * torch.nan)
    native.backward(dirty, dirty.q.new_zeros(*g.q.shape[:3], g.v.shape[3]), None, None, *native.forward(dirty))
    g = decaying(g, rate)
    check(g)
    wanted = dense(*(None if x is None else x.double() for x in g[:5]), *g[5:])[1]
    assert ((native.forward(g)[1] - wanted).abs() <= 2e-6 * wanted + 1e-30).all()


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("angles", [True, False])
@pytest.mark.parametrize(
    ("n", "s"), [(1, 1), (16, 16), (17, 17), (20, 20), (5, 19), (33, 33), (49, 49), (150, 150), (40, 131), (0, 9)]
)
def test_decay(n, s, angles, rate):
    fastest = 4 if rate == "mixed" else rate
    state = fastest * s <= 80  # beyond, the gradient of the incoming state is below the smallest normal number
    check_decay(given(n, s, d=20, e=24, angles=angles, state=state, mask=True), rate)


@pytest.mark.parametrize(("d", "e"), [(1, 1), (5, 7), (64, 64), (32, 48), (16, 130), (128, 40)])
@pytest.mark.parametrize("rate", [1, "mixed"])
def test_decay_by_sizes_of_heads(d, e, rate):
    check_decay(given(70, d=d, e=e, b=1, h=2), rate)
    check_decay(given(60, d=d, e=e, b=1, h=2, angles=False), rate)


@pytest.mark.parametrize(("h", "hk"), [(1, 1), (6, 1), (6, 2)])
def test_decay_of_grouped_heads(h, hk):
    check_decay(given(19, 20, b=1, h=h, hk=hk, d=24, e=40, state=True, mask=True), "mixed")
    check_decay(given(100, 130, b=1, h=h, hk=hk, d=24, e=40, mask=True), "mixed")


@pytest.mark.parametrize("normaliser", ["clamp", "add", "signed", "none"])
@pytest.mark.parametrize("relu", [True, False])
def test_decay_with_normalisers(normaliser, relu):
    check_decay(given(60, normaliser=normaliser, relu=relu, eps=1e-3), 0.5)


@pytest.mark.parametrize("bounds", [[0, 100], [0, 1, 1, 60, 61, 180], [0, 0, 50], [0, 30, 30]])
def test_decay_restarts_in_packed_sequences(bounds):
    g = given(bounds[-1], b=1, d=12, e=20)
    check_decay(g._replace(cu_seqlens=torch.tensor(bounds, dtype=torch.int32)), "mixed")


@pytest.mark.parametrize("rate", [0.01, 1, 4, "mixed"])
@pytest.mark.parametrize("full", [True, False])
def test_decay_in_bfloat16_errs_no_more_than_twice_the_rounded_float32(full, rate):
    n = 19 if full else 150
    g = decaying(given(n, d=32, e=24, state=full, mask=full, dtype=torch.bfloat16), rate)
    (out, *_), incoming, wanted = gradients(g)
    ours = native.forward(g)
    assert worst(ours[0], out.detach()) <= 2 * worst(out.detach().bfloat16(), out.detach())
    for got, want in zip(native.backward(g, *incoming, *ours)[:3], wanted[:3], strict=True):
        assert got.dtype == torch.bfloat16
        assert worst(got, want) <= 2 * worst(want.bfloat16(), want)


@pytest.mark.usefixtures("instructions")
def test_decay_by_every_build_of_the_kernels():
    for rate in (1, "mixed"):
        check_decay(given(110, d=20, e=72, mask=True), rate)
        check_decay(given(20, d=64, e=64, state=True), rate)
        g = decaying(given(1, d=20, e=72, state=True), rate)
        for got, want in zip(native.step(g), dense(*(x.double() for x in g[:5]), *g[5:])[::2], strict=False):
            assert worst(got, want) < 1e-6
        g = decaying(given(60, d=20, e=72), rate)
        assert worst(native.dense(g), dense(*(x.double() for x in g[:3]), None, None, *g[5:])[0]) < 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decay_of_rate_zero_changes_no_bit(dtype):
    g = given(110, 130, d=32, e=48, state=True, mask=True, dtype=dtype)
    same = decaying(g, 0)
    wanted, ours = native.forward(g), native.forward(same)
    g_out = torch.randn_like(wanted[0])
    wanted, ours = ([*x, *native.backward(y, g_out, g.kv, g.z, *x)] for x, y in ((wanted, g), (ours, same)))
    assert all(torch.equal(x, y) for x, y in zip(ours, wanted, strict=True))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("angles", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("state", [True, False])
def test_step_with_decay_is_forward_of_one_token(state, dtype, angles, rate):
    g = decaying(given(1, d=20, e=72, b=3, state=state, mask=True, angles=angles, dtype=dtype), rate)
    out, _, kv_next, z_next = native.forward(g)
    step = native.step(g)
    assert worst(step[0], out.double()) < (1e-6 if dtype == torch.float32 else 1e-2)
    assert worst(step[1], kv_next.double()) < 1e-6
    assert worst(step[2], z_next.double()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("n", [1, 15, 16, 17, 40, 64, 96])
def test_short_input_with_decay(n, rate, dtype):
    """Fast rates over many rows leave the range of floats, so forward takes them."""
    g = decaying(given(n, d=20, e=24, mask=True, dtype=dtype), rate)
    assert native.fits_dense(g)
    wanted = dense(*(x.double() for x in g[:3]), None, None, *g[5:])[0]
    assert worst(native.dense(g), wanted) < (2e-6 if dtype == torch.float32 else 5e-3)


@pytest.mark.parametrize("tokens", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rate", [1e-6, 0.1, 4])
def test_many_steps_with_decay(rate, tokens):
    """Every token's part by its own age: what is rounded the same way at every step would show."""
    torch.manual_seed(0)
    k, v = (torch.rand(tokens, 1, 1, 1, 8) - 0.5).relu(), torch.randn(tokens, 1, 1, 1, 8)
    g = decaying(given(1, d=8, e=8, b=1, h=1, hk=1, angles=False), rate)
    q, kv, z = torch.rand(1, 1, 1, 8), torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8)
    out = q
    for i in range(tokens):
        out, kv, z = native.step(g._replace(q=q, k=k[i], v=v[i], kv=kv, z=z, spec=g.spec.moved(i)))
    age = torch.arange(tokens, dtype=torch.float64).flip(0)[:, None]
    left = k[:, 0, 0, 0].double() * (-rate * age).exp()
    wanted_kv, wanted_z = left.T @ v[:, 0, 0, 0].double(), left.sum(0)
    assert worst(out[0, 0, 0], (q[0, 0, 0].double() @ wanted_kv) / (q[0, 0, 0].double() @ wanted_z)) < 1e-5
    assert worst(z[0, 0], wanted_z) < 1e-5  # without decay it is 7e-6 after 100,000
    assert worst(kv[0, 0], wanted_kv) < 2e-5


@pytest.mark.parametrize("rate", [1e-6, 0.01, 1, "mixed"])
def test_calls_one_after_the_other_with_decay_are_one_call(rate):
    whole = decaying(given(203, d=20, e=24, mask=True), rate)
    assert whole.key_mask is not None
    wanted = native.forward(whole)
    bounds, kv, z, parts = [0, 1, 18, 18, 66, 115, 203], None, None, []
    for a, b in itertools.pairwise(bounds):
        q, k, v = (x[:, :, a:b] for x in whole[:3])
        part = Call(q, k, v, kv, z, whole.key_mask[:, a:b], None, whole.decay, whole.spec.moved(a))
        *rows, kv, z = native.forward(part)
        parts.append(rows)
    ours = [torch.cat(x, dim=2) for x in zip(*parts, strict=True)]
    for got, want in zip([*ours, kv, z], wanted, strict=True):
        assert worst(got, want.double()) < 2e-6


@pytest.mark.parametrize("rate", [1e-6, 0.001, 1, "mixed"])
def test_last_rows_of_a_long_sequence_with_decay(rate):
    n, rows = 200_003, 2
    g = decaying(given(n, d=14, e=8, b=1, h=1, hk=1), rate)
    ours = native.forward(g)
    last = g._replace(q=g.q[:, :, -rows:], spec=g.spec._replace(q_first=n - rows))
    wanted = dense(*(x.double() for x in last[:3]), None, None, *last[5:])
    assert worst(ours[0][:, :, -rows:], wanted[0]) < 2e-6
    assert worst(ours[1][:, :, -rows:], wanted[1]) < 2e-6
    for got, want in zip(ours[2:], wanted[2:], strict=True):
        assert worst(got, want) < 5e-6  # without decay it is 3e-6


def test_what_has_decayed_is_zero():
    """Not NaN, and no number that processors are slow with."""
    g = decaying(given(300, state=True), 4)
    g.k[:, :, 5:] = -1
    out, den, kv_next, z_next = native.forward(g)
    for x in (out[:, :, 200:], den[:, :, 200:], kv_next, z_next):
        assert (x == 0).all()
    assert g.kv is not None and g.z is not None
    grads = native.backward(g, torch.ones_like(out), g.kv, g.z, out, den, kv_next, z_next)
    assert all(x.isfinite().all() for x in grads)
    assert (grads[3] == grads[3]).all() and (grads[3].abs() < 1e30).all()
    kv, z = g.kv, g.z
    one = g._replace(q=g.q[:, :, :1], k=g.k[:, :, 5:6], v=g.v[:, :, :1])
    for i in range(129):
        _, kv, z = native.step(one._replace(kv=kv, z=z, spec=g.spec._replace(q_first=i, k_first=i)))
    assert (kv == 0).all() and (z == 0).all()
    too_fast = g._replace(decay=torch.full((2, 8), 1e4))
    assert all(x.isfinite().all() for x in native.forward(too_fast))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("h", "hk"), [(1, 1), (4, 2)])
def test_thread_counts_with_decay_give_the_same_bits(h, hk, dtype):
    g = decaying(given(700, b=1, h=h, hk=hk, d=32, e=48, dtype=dtype), "mixed")
    runs = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        ours = native.forward(g)
        runs.append([*ours, *native.backward(g, torch.ones_like(ours[0]), None, None, *ours)])
    for run in runs[1:]:
        assert all(torch.equal(x, y) for x, y in zip(run, runs[0], strict=True))


def test_two_sweeps_with_decay_share_one_division():
    """Half of the channels look left and half right: backward uses the sums and outputs of both sweeps."""
    g = decaying(given(70, d=20, e=24), "mixed")
    assert g.decay is not None
    half, (_, apart) = g.q.shape[3] // 2, places(70, 70)
    leaves = [x.double().requires_grad_() for x in g[:3]]
    fq, fk = leaves[0].relu(), leaves[1].relu().repeat_interleave(2, dim=1)
    cosine = (torch.pi / 2 * (apart + apart.T) / g.spec.q_len).cos()
    rates = g.decay.double().repeat_interleave(2, dim=0)[:, None, None]
    factors = (
        -rates * torch.cat([apart[..., None].expand(-1, -1, half), apart.T[..., None].expand(-1, -1, half)], -1)
    ).exp()
    seen = torch.ones(70, 70, dtype=torch.bool).tril()
    looks = torch.cat([seen[..., None].expand(-1, -1, half), seen.T[..., None].expand(-1, -1, half)], -1)
    scores = torch.einsum("bhif,bhjf,hijf->bhij", fq, fk, factors * looks) * cosine
    wanted = (scores / scores.sum(-1, keepdim=True)) @ leaves[2].repeat_interleave(2, dim=1)
    g_out = torch.randn_like(wanted).float()
    wanted_gradients = torch.autograd.grad(wanted, leaves, g_out.double())

    sweeps = []
    for channels, flip in ((slice(0, half), lambda x: x), (slice(half, None), lambda x: x.flip(2))):
        q, k, v = (flip(x) for x in (g.q[..., channels], g.k[..., channels], g.v))
        decay = g.decay[:, channels].contiguous()
        sweeps.append((g._replace(q=q, k=k, v=v, decay=decay, spec=g.spec._replace(normaliser="none")), flip))
    results = [(*[flip(x) for x in native.forward(call)[:2]], flip) for call, flip in sweeps]
    den = results[0][1] + results[1][1]
    out = (results[0][0] + results[1][0]) / den.clamp_min(g.spec.eps)[..., None]
    assert worst(out, wanted.detach()) < 2e-6
    found = []
    for call, flip in sweeps:
        call = call._replace(spec=g.spec)
        got = native.backward(call, flip(g_out), None, None, flip(out), flip(den), None, None)
        found.append([flip(x) for x in got[:3]])
    (dq, dk, dv), (dq_right, dk_right, dv_right) = found
    ours = (torch.cat([dq, dq_right], -1), torch.cat([dk, dk_right], -1), dv + dv_right)
    for got, want in zip(ours, wanted_gradients, strict=True):
        assert worst(got, want) < 5e-6


@contextmanager
def other_default(name):
    """A default of the process that is not ours: a dtype, or a device."""
    before = torch.get_default_dtype()
    try:
        if name == "meta":
            with torch.device("meta"):
                yield
        else:
            torch.set_default_dtype(getattr(torch, name))
            yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("name", ["bfloat16", "float64", "meta"])
@pytest.mark.parametrize("causal", [True, False])
def test_defaults_of_the_process_change_nothing(name, causal):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 130, 16) for _ in range(3))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]

    def everything():
        settings = {"causal": causal, "max_len": 200}
        out, state = cosformer_attention(*leaves, **settings, return_state=True)
        gradients = torch.autograd.grad(out.sum() + state.kv.sum() + state.z.sum(), leaves)
        short = cosformer_attention(q[:, :, :20], k[:, :, :20], v[:, :, :20], **settings)
        found = [out, state.kv, state.z, *gradients, short]
        if causal:
            state = state.detach()
            for _ in range(3):
                step, state = cosformer_attention(
                    q[:, :, :1], k[:, :, :1], v[:, :, :1], **settings, state=state, return_state=True
                )
                found += [step, state.kv, state.z, state.position]
            step, first = cosformer_attention(q[:, :, :1], k[:, :, :1], v[:, :, :1], **settings, return_state=True)
            found += [step, first.kv, first.z, first.position]
        return [x.detach() for x in found]

    plain = everything()
    with other_default(name):
        again = everything()
    for a, b in zip(plain, again, strict=True):
        assert a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
