"""The checks of the Triton kernels find mistakes: stray addresses, double writes, wrong arithmetic."""

import importlib.util
from pathlib import Path

import pytest
import torch

from cosformer.ops import plain
from cosformer.ops.spec import AttentionSpec, Call


def run_everything(launch, *, batch=1, n=130, d=24, e=80, dtype=torch.float32):
    """A causal, masked, grouped call with a state, forward and backward; the largest error against float64."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((batch, 2, n, d), (batch, 1, n, d), (batch, 1, n, e), (batch, 1, 2 * d, e), (batch, 1, 2 * d))
    q, k, v, kv, z = (torch.rand(shape, generator=generator) - 0.3 for shape in shapes)
    g, g_kv, g_z = (torch.randn(shape, generator=generator) for shape in ((batch, 2, n, e), kv.shape, z.shape))
    mask = torch.rand(batch, n, generator=generator) > 0.3
    p = AttentionSpec(True, True, 60, 60, n + 70, n + 70, "clamp", 1e-6)
    q, k, v, g = (x.to(dtype) for x in (q, k, v, g))
    given = (q, k, v, kv, z.abs())
    results = launch.forward(Call(*given, mask, None, None, p))
    grads = launch.backward(Call(*given, mask, None, None, p), g, g_kv, g_z, *results)
    wide = [x.double() for x in given]
    expected = plain.forward(Call(*wide, mask, None, None, p))
    against = plain.backward(Call(*wide, mask, None, None, p), *(x.double() for x in (g, g_kv, g_z)), *expected)
    pairs = zip((*results, *grads), (*expected, *against), strict=True)
    return max(((a - b).abs().max() / b.abs().max()).nan_to_num(nan=torch.inf).item() for a, b in pairs)


def test_addresses_stay_inside_and_are_written_once(small, watch):
    assert run_everything(small) <= 1e-5
    assert watch.launches == 3 + 7


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("e", [40, 80])
def test_the_sizes_that_ship(interpreter, watch, e, dtype, limit):
    """The tiles and segments that a GPU would use, for 64 and 128 channels; other tests use small ones."""
    from cosformer.ops.triton import launch

    assert run_everything(launch, n=300 if e == 40 else 560, e=e, dtype=dtype) <= limit


def test_packed_and_unequal_lengths_stay_inside(small, watch):
    q, k, v = (torch.randn(1, 2, 100, 8) for _ in range(3))
    p = AttentionSpec(True, False, 0, 0, 100, 100, "clamp", 1e-6)
    for causal in (False, True):
        packed = p._replace(causal=causal)
        cu = torch.tensor([0, 3, 3, 80, 100])
        call = Call(q, k, v, None, None, None, cu, None, packed)
        results = small.forward(call)
        small.backward(call, results[0], *results[2:], *results)
    call = Call(q[:, :, :30], k, v, None, None, None, None, None, p)
    results = small.forward(call)
    small.backward(call, results[0], *results[2:], *results)
    small.step(Call(*(x[:, :, :1] for x in (q, k, v)), None, None, None, None, None, p._replace(causal=True)))


@pytest.fixture
def mutant(small, monkeypatch, tmp_path):
    """The launches with kernels of which one line is changed."""

    def make(old, new):
        source = Path(small.kernels.__file__).read_text()
        assert source.count(old) >= 1, f"the kernels have no {old!r}"
        path = tmp_path / "mutant.py"
        path.write_text(source.replace(old, new, 1))
        spec = importlib.util.spec_from_file_location("mutant", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setattr(small, "kernels", module)
        return small

    return make


STRAY = {
    "a missing mask of columns": (
        "inside = ok[:, None] & (column < width)[None, :]\n    return",
        "inside = ok[:, None] & (column >= 0)[None, :]\n    return",
    ),
    "a missing mask of rows": ("ok = i < end\n    q = ", "ok = i >= 0\n    q = "),
    "a double write": ("    if block == 0:\n        tl.store(DEN", "    if block >= 0:\n        tl.store(DEN"),
    "a double write of sums": (
        "    if block == 0:\n        tl.store(SUMS",
        "    if block >= 0:\n        tl.store(SUMS",
    ),
}


QUICK = ("a missing mask of columns", "a double write", "a wrong angle")


def in_part_slow(names):
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", in_part_slow(STRAY))
def test_the_watch_catches(mutant, watch, name):
    with pytest.raises(Exception, match=r"outside every tensor|write one address"):
        run_everything(mutant(*STRAY[name]))


WRONG = {
    "a wrong angle": ("sin = tl.load(TABLE + 2 * position + 1,", "sin = tl.load(TABLE + 2 * position,"),
    "a wrong offset of positions": ("_angle(TABLE, position + t, seen,", "_angle(TABLE, position + t + 1, seen,"),
    "a wrong offset of the sine half": ("_tile(KV + D * E, d, E, real, e, E)", "_tile(KV, d, E, real, e, E)"),
    "a missing segment before": ("(r[:, None] > r[None, :]) if CAUSAL", "(r[:, None] > r[None, :] + 1) if CAUSAL"),
    "a state not carried on": ("sums += tl.where((sequence == own)", "sums += tl.where((sequence < own)"),
    "a key too many": ("score = tl.where(i[:, None] >= t[None, :]", "score = tl.where(i[:, None] + 1 >= t[None, :]"),
    "a mask not applied": ("seen = _visible(MASK + b * keys, t, t < end, HAS_MASK)", "seen = t < end"),
    "a ReLU without its gradient": ("dq = tl.where(q > 0, dq, 0.0)", "dq = dq"),
    "a gradient of the row sum left out": ("+ beta[None, :]\n", "\n"),
}


@pytest.mark.parametrize("name", in_part_slow(WRONG))
def test_wrong_arithmetic_shows(mutant, name):
    assert run_everything(mutant(*WRONG[name])) > 1e-4


class Recorder:
    """In the place of a kernel: counts launches instead of running them."""

    def __init__(self):
        self.launches = []

    def __getattr__(self, name):
        return _Recorded(self, name)


class _Recorded:
    def __init__(self, recorder, name):
        self.recorder, self.name = recorder, name

    def __getitem__(self, grid):
        def record(*arguments, **options):
            made = {x.data_ptr(): x.nbytes for x in arguments if isinstance(x, torch.Tensor) and x.is_floating_point()}
            self.recorder.launches.append((self.name, grid, made))

        return record


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("n", [1_000, 65_536])
def test_launches_and_temporaries(interpreter, monkeypatch, n, d, causal, dtype):
    """Forward in 3 launches, backward in 7; sums and tables take no more than twice the bytes of q, k, v and out."""
    from cosformer.ops.triton import launch

    if d == 256 and dtype == torch.float32:
        pytest.skip("exact products take up to 128 channels")
    recorder = Recorder()
    monkeypatch.setattr(launch, "kernels", recorder)
    with torch.no_grad():
        torch.use_deterministic_algorithms(False)  # the tensors are never written, so they take no memory
        q, k, v, g = (torch.empty(1, 2, n, d, dtype=dtype) for _ in range(4))
        p = AttentionSpec(True, causal, 0, 0, n, n, "clamp", 1e-6)
        call = Call(q, k, v, None, None, None, None, None, p)
        results = launch.forward(call)
        grads = launch.backward(call, g, *results[2:], *results)
    names = [name for name, _, _ in recorder.launches]
    assert names[:3] == ["segment_sums", "running_sums", "attend_rows"]
    assert len(names[:3]) <= 4 and len(names[3:]) <= 12
    given = {x.data_ptr() for x in (q, k, v, g, *results, *grads)}
    for part in (recorder.launches[:3], recorder.launches[3:]):
        made = {at: size for _, _, tensors in part for at, size in tensors.items() if at not in given}
        if n > 10_000:
            assert sum(made.values()) <= 2 * 4 * q.nbytes
    for _, grid, _ in recorder.launches:
        assert all(size <= 65_535 for size in grid[1:])
