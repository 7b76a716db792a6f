"""Products of many rows with a small matrix: against float64, for every instruction set, and as torch's linear layer."""

import pytest
import torch
import torch.nn.functional as F

from cosformer.ops import projection
from cosformer.ops.native import available, products
from cosformer.ops.native.library import loaded
from cosformer.ops.projection import project, takes

pytestmark = pytest.mark.skipif(not available(), reason="the native kernels were not built")
# M, N, K: whole blocks and not, fewer rows than a tile, sums longer than one pass, more columns than one strip
SHAPES = [
    (1, 16, 16),
    (5, 32, 16),
    (96, 16, 48),
    (97, 48, 32),
    (200, 208, 80),
    (1024, 64, 64),
    (1031, 32, 272),
    (3000, 400, 528),
]


@pytest.fixture
def any_size(monkeypatch):
    """The kernels, and nothing else, for sizes that a test has time for and on every processor."""
    monkeypatch.setattr(projection, "FEWEST_ROWS", 1)
    monkeypatch.setattr(projection, "FEWEST_CHANNELS", 16)
    monkeypatch.setattr(projection, "LEAST_WORK", 1)
    monkeypatch.setattr(projection, "MEASURED", ("avx512", "avx2", "generic"))


def close(found, expected, terms):
    """A float32 sum of n normal terms against float64.

    Each addition errs by up to 6e-8 of a partial sum of about sqrt(n): after n of them 3e-8 n is one standard deviation.
    """
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-7 * terms)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("instructions")
def test_products(shape):
    torch.manual_seed(0)
    m, n, k = shape
    x, g, w, b = torch.randn(m, k), torch.randn(m, n), torch.randn(n, k), torch.randn(n)
    close(products.times(x, w, b, transposed=True), x.double() @ w.double().T + b.double(), k)
    close(products.times(x, w, transposed=True), x.double() @ w.double().T, k)
    close(products.times(g, w, transposed=False), g.double() @ w.double(), n)
    close(products.outer(g, x), g.double().T @ x.double(), m)


@pytest.mark.usefixtures("instructions")
def test_rows_that_lie_apart():
    torch.manual_seed(0)
    x, g, w = torch.randn(130, 100)[:, 3:67], torch.randn(130, 90)[::2, 7:39], torch.randn(32, 200)[:, 1:65]
    x = x[::2]
    cx, cg, cw = (t.contiguous() for t in (x, g, w))
    assert products.times(x, w, transposed=True).equal(products.times(cx, cw, transposed=True))
    assert products.times(g, w, transposed=False).equal(products.times(cg, cw, transposed=False))
    assert products.outer(g, x).equal(products.outer(cg, cx))


def test_columns_rows_that_repeat_and_negated_views():
    torch.manual_seed(0)
    x, w = torch.randn(64, 130).T, torch.randn(64, 32).T
    close(products.times(x, w, transposed=True), x.double() @ w.double().T, 64)
    g = torch.randn(1, 32).expand(130, 32)
    close(products.outer(g, x), g.double().T @ x.double(), 130)
    close(products.outer(torch.ones(()).expand(130, 32), x), torch.ones(32, 130).double() @ x.double(), 130)
    negated = torch.complex(x, x).conj().imag
    assert negated.is_neg()
    close(products.times(negated, w, transposed=True), -(x.double() @ w.double().T), 64)


@pytest.mark.parametrize("threads", [2, 3])
def test_bits_do_not_depend_on_threads(threads):
    torch.manual_seed(0)
    x, g, w, b = torch.randn(3001, 272), torch.randn(3001, 96), torch.randn(96, 272), torch.randn(96)

    def all_three():
        return products.times(x, w, b, transposed=True), products.times(g, w, transposed=False), products.outer(g, x)

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = all_three()
        torch.set_num_threads(threads)
        assert all(a.equal(b) for a, b in zip(one, all_three(), strict=True))
    finally:
        torch.set_num_threads(before)


def test_bits_do_not_depend_on_the_rows_around():
    torch.manual_seed(0)
    x, w = torch.randn(500, 64), torch.randn(48, 64)
    whole = products.times(x, w, transposed=True)
    assert whole[203:411].equal(products.times(x[203:411], w, transposed=True))


def test_what_is_not_finite_stays_in_its_row():
    x, w = torch.ones(200, 32), torch.ones(16, 32)
    x[101, 5] = float("nan")
    x[150, 5] = float("inf")
    found = products.times(x, w, transposed=True)
    assert found[101].isnan().all()
    assert found[150].isinf().all()
    found[101] = found[150] = 32
    assert found.eq(32).all()


@pytest.mark.parametrize("shape", [(200, 64), (2, 100, 64), (2, 2, 50, 64)])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.usefixtures("any_size")
def test_project_is_torchs_linear(shape, biased):
    torch.manual_seed(0)
    x, w = torch.randn(shape, requires_grad=True), torch.randn(48, 64, requires_grad=True)
    b = torch.randn(48, requires_grad=True) if biased else None
    assert takes(x, w, b)
    inputs = [t for t in (x, w, b) if t is not None]
    out, expected = project(x, w, b), F.linear(x, w, b)
    torch.testing.assert_close(out, expected)
    g = torch.randn_like(expected)
    for found, wanted in zip(
        torch.autograd.grad(out, inputs, g), torch.autograd.grad(expected, inputs, g), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    with torch.no_grad():
        assert project(x, w, b).equal(out)


@pytest.mark.usefixtures("any_size")
def test_only_the_gradients_that_are_asked_for():
    x, w, b = torch.randn(64, 32), torch.randn(16, 32), torch.randn(16)
    for wanted in (x, w, b):
        wanted.requires_grad_()
        project(x, w, b).sum().backward()
        assert [t.grad is not None for t in (x, w, b)] == [t is wanted for t in (x, w, b)]
        wanted.requires_grad_(False)
        wanted.grad = None


@pytest.mark.usefixtures("any_size")
def test_the_result_may_be_changed_in_place():
    x = torch.randn(2, 40, 32, requires_grad=True)
    w = torch.randn(16, 32)
    project(x, w).relu_().sum().backward()
    first = x.grad.clone()
    x.grad = None
    F.linear(x, w).relu().sum().backward()
    torch.testing.assert_close(first, x.grad)


@pytest.mark.usefixtures("any_size")
def test_second_derivatives():
    torch.manual_seed(0)
    x, w = torch.randn(40, 32, requires_grad=True), torch.randn(16, 32, requires_grad=True)

    def second(function):
        (first,) = torch.autograd.grad(function(x, w).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (x, w))

    for found, wanted in zip(second(project), second(F.linear), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-2)


class Marked(torch.Tensor):
    """A tensor of another kind, which may want to see every operation."""


def test_what_the_kernels_do_not_take(monkeypatch):
    """Each of these goes to torch's product; the first call shows that the rest is in order."""
    monkeypatch.setattr(projection, "MEASURED", (loaded().instructions,))
    x, w, b = torch.randn(4096, 64), torch.randn(512, 64), torch.randn(512)
    assert takes(x, w, b)
    assert takes(x, w, None)
    assert not takes(x[:-1], w, b)
    assert not takes(x, w[:496], b[:496])  # too little work
    assert not takes(torch.randn(16384, 64), w[:511], b[:511])
    assert not takes(torch.randn(65536, 64), w[:48], b[:48])
    assert not takes(x.double(), w.double(), b.double())
    assert not takes(x.bfloat16(), w, b)
    assert not takes(x, w.to("meta"), b)
    assert not takes(x.as_subclass(Marked), w, b)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not takes(x, w, b)
        assert project(x, w, b).dtype == torch.bfloat16
    monkeypatch.setattr(projection, "LARGEST_WEIGHT", 512 * 64 - 1)
    assert not takes(x, w, b)
    monkeypatch.undo()
    monkeypatch.setattr(projection, "MEASURED", ())
    assert not takes(x, w, b)
    with pytest.raises(RuntimeError, match="shapes"):
        project(torch.randn(4096, 32), w, b)


@pytest.mark.usefixtures("any_size")
def test_transforms_and_compilers_see_torchs_product():
    torch.manual_seed(0)
    x, w, b = torch.randn(3, 40, 32), torch.randn(16, 32), torch.randn(16)
    expected = F.linear(x, w, b)
    torch.testing.assert_close(torch.vmap(project, (0, None, None))(x, w, b), expected)
    _, tangent = torch.func.jvp(lambda t: project(t, w, b), (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, F.linear(torch.ones_like(x), w))
    compiled = torch.compile(project, backend="eager", fullgraph=True)
    assert compiled(x, w, b).equal(expected)
