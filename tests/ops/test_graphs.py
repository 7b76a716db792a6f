"""What compilers, exporters and function transforms see of the operator."""

import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import cosformer
from cosformer import LinearState, cosformer_attention
from cosformer.ops import dispatch
from cosformer.ops.backends import available_backends
from versions import traces

PACKAGE = Path(cosformer.__file__).parent


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def graphs(counter):
    """Graphs that compute something (Dynamo also counts an empty one when it first meets an autograd.Function)."""
    return sum(any(node.op == "call_function" for node in graph.graph.nodes) for graph in counter.graphs)


@traces
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", [b for b in available_backends() if b != "dense"])
def test_compiles_to_one_graph_for_all_lengths(causal, backend):
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def f(q, k, v):
        return cosformer_attention(q, k, v, causal=causal, max_len=4096, backend=backend)

    for n in (300, 301, 600, 2000):
        leaves = [torch.randn(2, 4, n, 8).requires_grad_() for _ in range(3)]
        eager = [x.detach().clone().requires_grad_() for x in leaves]
        out, expected = f(*leaves), cosformer_attention(*eager, causal=causal, max_len=4096, backend=backend)
        assert torch.allclose(out, expected, atol=1e-5)
        weight = torch.randn_like(out)
        for a, b in zip(
            torch.autograd.grad(out, leaves, weight), torch.autograd.grad(expected, eager, weight), strict=True
        ):
            assert torch.allclose(a, b, atol=1e-4)
    assert graphs(counter) == 1


@traces
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dense_form_costs_one_more_graph(dtype):
    counter = CompileCounterWithBackend("eager")

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def f(q, k, v):
        return cosformer_attention(q, k, v, causal=True, max_len=4096)

    with torch.no_grad():
        for n in (30, 50, 200, 300, 500, 700):
            x = [torch.randn(1, 2, n, 8, dtype=dtype) for _ in range(3)]
            assert torch.allclose(f(*x), cosformer_attention(*x, causal=True, max_len=4096), atol=1e-5)
    assert graphs(counter) <= 2


@traces
@pytest.mark.parametrize("causal", [False, True])
def test_inductor_gives_the_same_numbers(causal):
    f = torch.compile(lambda q, k, v: cosformer_attention(q, k, v, causal=causal, max_len=512), fullgraph=True)
    leaves = [torch.randn(1, 300, 2, 8).transpose(1, 2).requires_grad_() for _ in range(3)]
    out, expected = f(*leaves), cosformer_attention(*leaves, causal=causal, max_len=512)
    assert torch.allclose(out, expected, atol=1e-6)
    grads = [torch.autograd.grad(x.square().sum(), leaves) for x in (out, expected)]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*grads, strict=True))


@traces
def test_a_thousand_compiled_steps_compile_at_most_twice():
    counter = CompileCounterWithBackend("eager")

    @torch.compile(fullgraph=True, backend=counter)
    def step(q, k, v, state):
        return cosformer_attention(q, k, v, causal=True, max_len=1000, state=state, return_state=True)

    q, k, v = (torch.randn(1, 2, 1000, 4, dtype=torch.float64) for _ in range(3))
    state, outs = None, []
    for t in range(1000):
        out, state = step(*(x[:, :, t : t + 1] for x in (q, k, v)), state)
        outs.append(out)
    assert graphs(counter) <= 2
    assert torch.allclose(torch.cat(outs, dim=2), cosformer_attention(q, k, v, causal=True, max_len=1000), atol=1e-12)
    with pytest.raises(ValueError, match="max_len=1000"):
        step(q[:, :, :1], k[:, :, :1], v[:, :, :1], state)


class Attention(torch.nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal

    def forward(self, q, k, v):
        return cosformer_attention(q, k, v, causal=self.causal, max_len=2048)


@traces
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("example", [100, 400])
@pytest.mark.parametrize("causal", [False, True])
def test_one_exported_program_for_short_and_long_input(causal, example, strict):
    length = torch.export.Dim("length", min=2, max=2048)
    tensors = tuple(torch.randn(1, 2, example, 8) for _ in range(3))
    program = torch.export.export(Attention(causal), tensors, dynamic_shapes=({2: length},) * 3, strict=strict)
    for n in (2, 256, 257, 300, 1500):
        x = tuple(torch.randn(1, 2, n, 8) for _ in range(3))
        expected = cosformer_attention(*x, causal=causal, max_len=2048)
        assert torch.allclose(program.module()(*x), expected, atol=1e-6 if n >= 300 else 1e-5)


class Step(torch.nn.Module):
    def forward(self, q, k, v, kv, z, seen):
        state = LinearState(kv, z, seen, 64)
        out, state = cosformer_attention(q, k, v, causal=True, max_len=64, state=state, return_state=True)
        return out, state.kv, state.z, state.position


def run_onnx(module, example, path, dynamic_shapes=None):
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    torch.onnx.export(module, example, path, dynamo=True, dynamic_shapes=dynamic_shapes, verbose=False)
    operators = onnx.load(path).graph.node
    assert {node.domain for node in operators} <= {""}, "an operator that plain ONNX does not have"
    session = runtime.InferenceSession(path)

    def call(*tensors):
        names = [x.name for x in session.get_inputs()]
        results = session.run(None, {n: x.numpy() for n, x in zip(names, tensors, strict=True)})
        return [torch.as_tensor(x) for x in results]

    return call


@traces
def test_onnx_of_the_non_causal_form(tmp_path):
    length = torch.export.Dim("length", min=300, max=2048)
    example = tuple(torch.randn(1, 2, 400, 8) for _ in range(3))
    call = run_onnx(Attention(False), example, tmp_path / "full.onnx", ({2: length},) * 3)
    for n in (300, 1000):
        x = tuple(torch.randn(1, 2, n, 8) for _ in range(3))
        assert torch.allclose(call(*x)[0], cosformer_attention(*x, max_len=2048), atol=1e-5)


@traces
def test_onnx_of_the_one_token_step(tmp_path):
    q, k, v = (torch.randn(1, 2, 20, 8) for _ in range(3))
    _, state = cosformer_attention(
        *(x[:, :, :5] for x in (q, k, v)), causal=True, max_len=64, return_state=True
    )  # fmt: skip
    one = [x[:, :, 5:6] for x in (q, k, v)]
    call = run_onnx(Step(), (*one, state.kv, state.z, state.position), tmp_path / "step.onnx")
    kv, z, seen = state.kv, state.z, state.position
    whole = cosformer_attention(q, k, v, causal=True, max_len=64)
    for t in range(5, 20):
        out, kv, z, seen = call(*(x[:, :, t : t + 1] for x in (q, k, v)), kv, z, seen)
        assert torch.allclose(out, whole[:, :, t : t + 1], atol=1e-5)
    assert int(seen) == 20


@pytest.mark.parametrize("backend", available_backends(torch.float64))
def test_vmap_and_grad(backend):
    q, k, v = (torch.randn(3, 1, 2, 300, 4, dtype=torch.float64) for _ in range(3))

    def f(q, k, v):
        return cosformer_attention(q, k, v, causal=True, max_len=300, backend=backend)

    assert torch.allclose(torch.func.vmap(f)(q, k, v), torch.cat([f(*x)[None] for x in zip(q, k, v, strict=True)]))
    shared = torch.func.vmap(f, in_dims=(0, None, None))(q, k[0], v[0])
    assert torch.allclose(shared[2], f(q[2], k[0], v[0]))
    per_sample = torch.func.vmap(torch.func.grad(lambda *x: f(*x).square().sum()))(q, k, v)
    leaf = q[1].clone().requires_grad_()
    f(leaf, k[1], v[1]).square().sum().backward()
    assert torch.allclose(per_sample[1], leaf.grad)


def test_forward_mode_works_densely_and_raises_clearly_elsewhere():
    q, k, v, t = (torch.randn(1, 2, 300, 4, dtype=torch.float64) for _ in range(4))
    _, tangent = torch.func.jvp(lambda q: cosformer_attention(q, k, v, backend="dense"), (q,), (t,))
    h = 1e-6
    around = [cosformer_attention(q + s * h * t, k, v, backend="dense") for s in (1, -1)]
    assert torch.allclose(tangent, (around[0] - around[1]) / (2 * h), atol=1e-5)
    with pytest.raises(NotImplementedError, match="jvp"):
        torch.func.jvp(lambda q: cosformer_attention(q, k, v, backend="plain"), (q,), (t,))


def test_registered_operators_pass_torchs_own_checks():
    q, k, v = (torch.randn(1, 2, 150, 4, dtype=torch.float64) for _ in range(3))
    settings = (None, True, True, 0, 0, 300, 300, "clamp", 1e-6, "plain")
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    none = (None,) * 5
    torch.library.opcheck(torch.ops.cosformer.linear_forward.default, (q, k, v, *none, *settings), test_utils=tests)
    out, den, kv, z = torch.ops.cosformer.linear_forward(q, k, v, *none, *settings)
    arguments = (q, k, v, *none, out, kv, z, out, den, kv, z, *settings)
    torch.library.opcheck(torch.ops.cosformer.linear_backward.default, arguments, test_utils=tests)


def test_a_watched_call_goes_through_the_dispatcher():
    """Without gradients the kernels are called directly; a tracer must still see the operator."""
    from torch.fx.experimental.proxy_tensor import make_fx

    x = [torch.randn(1, 2, 300, 4, dtype=torch.float64) for _ in range(3)]
    graph = make_fx(lambda q, k, v: cosformer_attention(q, k, v, causal=True, max_len=300))(*x)
    assert "linear_forward" in graph.code


def test_a_training_call_walks_through_seven_files():
    """One room after the other: whoever follows a call should not have to open more."""
    leaves = [torch.randn(1, 8, 2000, 64).requires_grad_() for _ in range(3)]
    files = set()
    cosformer_attention(*leaves, causal=True, max_len=2000)  # the first call of a process loads the library

    def visit(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):  # not by name: a clone may be called "cosformer" too
            files.add(path.relative_to(PACKAGE).as_posix())

    sys.setprofile(visit)
    try:
        cosformer_attention(*leaves, causal=True, max_len=2000).sum().backward()
    finally:
        sys.setprofile(None)
    assert "ops/dispatch.py" in files and len(files) <= 7, sorted(files)


@pytest.mark.parametrize("n", [20, 300])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_jit_trace_sees_the_kernel(causal, n):
    """A trace records operators: a kernel called behind its back would leave its first result in it."""
    q, k, v, other = (torch.randn(1, 2, n, 8) for _ in range(4))

    def attend(x):
        return cosformer_attention(x, k, v, causal=causal, max_len=n)

    traced = torch.jit.trace(attend, (q,))
    assert torch.allclose(traced(other), attend(other), atol=1e-5)


@traces
@pytest.mark.parametrize("backend", [b for b in available_backends() if b != "dense"])
def test_compiled_packed_calls_look_at_the_bounds(backend):
    q, k, v = (torch.randn(1, 2, 300, 8) for _ in range(3))

    def call(ends, max_len=300):
        return cosformer_attention(q, k, v, causal=True, max_len=max_len, cu_seqlens=ends, backend=backend)

    compiled = torch.compile(call, backend="eager", fullgraph=True)
    good = torch.tensor([0, 120, 120, 300])
    torch.testing.assert_close(compiled(good), call(good))
    for bad in ([0, 120, 10**6], [0, 200, 100, 300], [5, 120, 300], [0, 120, 299]):
        with pytest.raises(ValueError, match="must rise from 0 to N=300"):
            compiled(torch.tensor(bad))
    with pytest.raises(ValueError, match="180 tokens exceeds max_len=150"):
        compiled(good, 150)


def test_older_compilers_are_refused_by_the_version_they_need(monkeypatch):
    monkeypatch.setattr(dispatch, "traceable", False)
    x = torch.randn(1, 2, 300, 8)

    class Attention(torch.nn.Module):
        def forward(self, x):
            return cosformer_attention(x, x, x, causal=True, max_len=300)

    module = Attention()
    assert module(x).shape == x.shape
    for fullgraph in (False, True):
        with pytest.raises(Exception, match=r"need torch 2\.12 or later, and this is"):
            torch.compile(module, backend="eager", fullgraph=fullgraph)(x)
    for strict in (False, True):
        with pytest.raises(Exception, match=r"need torch 2\.12 or later, and this is"):
            torch.export.export(module, (x,), strict=strict)


@traces
@pytest.mark.parametrize("backend", ["auto", "plain", "dense"])
def test_decay_compiles_and_exports(backend):
    """A causal call and a one-token step, each in one graph."""
    decay = torch.tensor([[0.0, 0.01, 0.1, 1.0], [2.0, 0.5, 0.3, 4.0]])
    q, k, v = (torch.randn(1, 2, 300, 4) for _ in range(3))

    def attend(q, k, v):
        return cosformer_attention(q, k, v, causal=True, max_len=400, decay=decay, backend=backend)

    def step(q, k, v, kv, z, seen):
        state = LinearState(kv, z, seen, 400, decay)
        options = {"causal": True, "max_len": 400, "decay": decay, "backend": backend}
        out, state = cosformer_attention(q, k, v, state=state, return_state=True, **options)
        return out, state.kv, state.z, state.position

    class Module(torch.nn.Module):
        def __init__(self, call):
            super().__init__()
            self.call = call

        def forward(self, *tensors):
            return self.call(*tensors)

    _, state = cosformer_attention(q, k, v, causal=True, max_len=400, decay=decay, return_state=True)
    one = (*(x[:, :, :1] for x in (q, k, v)), state.kv, state.z, state.position)
    for call, tensors in ((attend, (q, k, v)), (step, one)):
        expected = call(*tensors)
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")(*tensors)
        exported = torch.export.export(Module(call), tensors, strict=False).module()(*tensors)
        for found in (compiled, exported):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
