"""The plain form's own claims: few launches, bounded memory, segments; the rest it shares with every backend."""

import weakref
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cosformer import cosformer_attention
from cosformer.ops import linear_attention, plain
from cosformer.ops.spec import AttentionSpec, Call
from versions import traces

# operations that only describe memory, or hand it out
FREE = {
    "view", "_unsafe_view", "split", "split_with_sizes", "slice", "select", "transpose", "t", "permute",
    "unsqueeze", "squeeze", "expand", "alias", "detach", "as_strided", "unbind", "unflatten", "chunk",
    "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
}  # fmt: skip


class Launches(TorchDispatchMode):
    """What a call asks of a device: launches by operation, and the most bytes alive at once in storages made inside."""

    def __init__(self):
        super().__init__()
        self.by_name, self.alive, self.peak, self.seen = Counter(), 0, 0, set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        name = operator.overloadpacket.__name__
        if name not in FREE:
            self.by_name[name] += 1
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        result = operator(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor):
                self._watch(x, given)
        return result

    @property
    def total(self):
        return self.by_name.total()

    def _watch(self, x, given):
        storage = x.untyped_storage()
        key = storage._cdata
        if key in given or key in self.seen:
            return
        self.seen.add(key)
        self.alive += storage.nbytes()
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._forget, key, storage.nbytes())

    def _forget(self, key, size):
        self.seen.discard(key)
        self.alive -= size


def counted(n, causal, dtype=torch.float32):
    """Launches of B=4, H=16, D=64, and the bytes held at once beside the results, over the bytes of q, k, v, out."""
    q, k, v, g_out = (torch.empty(4, 16, n, 64, device="meta", dtype=dtype) for _ in range(4))
    call = Call(q, k, v, *(None,) * 5, AttentionSpec.cosine(n, causal=causal))
    with Launches() as forward:
        results = plain.forward(call)
    with Launches() as backward:
        grads = plain.backward(call, g_out, *(torch.zeros_like(x) for x in results[2:]), *results)
    base = 4 * q.nbytes
    peaks = (forward.peak - results[0].nbytes) / base, (backward.peak - sum(x.nbytes for x in grads[:3])) / base
    return forward.total, backward.total, *peaks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [4_096, 5_000, 65_536])
def test_launches_do_not_grow_with_the_length(n, causal, dtype):
    forward, backward, *_ = counted(n, causal, dtype)
    assert forward <= 60 and backward <= 90


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 3), (torch.bfloat16, 6)])
@pytest.mark.parametrize("causal", [False, True])
def test_temporaries_are_bounded(causal, dtype, limit):
    """Of bfloat16 the sums are kept in float32, twice the size of the input."""
    assert max(counted(65_536, causal, dtype)[2:]) <= limit


def test_longer_sequences_take_no_more_memory_at_once():
    """Beyond a segment only the results grow."""
    for i in (2, 3):
        peaks = [counted(n, True)[i] * n for n in (65_536, 4 * 65_536)]
        assert peaks[1] <= 1.1 * peaks[0]


def test_the_counter_sees_launches_and_memory():
    with Launches() as counted:
        x = torch.empty(1000, device="meta")
        y = x.view(10, 100) + 1
        del x
        z = y.relu()
    assert counted.by_name == {"add": 1, "relu": 1} and counted.peak == 8000 and z.shape == (10, 100)


@pytest.fixture
def short_segments(monkeypatch):
    monkeypatch.setattr(plain, "CPU_SEGMENT", 256)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [512, 700])
def test_segments_carry_the_state(short_segments, definition, tensors, close_with_gradients, n, causal):
    q, k, v = tensors(2, 4, 2, n, n, 6, 5)
    mask = torch.rand(2, n) > 0.3
    out = cosformer_attention(q, k, v, causal=causal, max_len=800, key_mask=mask, backend="plain")
    close_with_gradients(out, definition(q, k, v, causal=causal, max_len=800, key_mask=mask), (q, k, v))


def test_segments_behind_leading_keys(short_segments, definition, tensors, close_with_gradients):
    q, k, v = tensors(1, 2, 1, 600, 1000, 6, 5)
    out = cosformer_attention(q, k, v, causal=True, q_offset=400, max_len=1000, backend="plain")
    close_with_gradients(out, definition(q, k, v, causal=True, q_offset=400, max_len=1000), (q, k, v))


@pytest.mark.parametrize("causal", [False, True])
def test_segments_of_packed_sequences(short_segments, definition, tensors, close_with_gradients, causal):
    lengths = [100, 150, 20, 1, 600, 3, 0, 127]
    q, k, v = tensors(1, 4, 2, sum(lengths), sum(lengths), 6, 5)
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)])
    out = cosformer_attention(q, k, v, causal=causal, max_len=640, cu_seqlens=cu, backend="plain")
    pieces = zip(*(x.split(lengths, dim=2) for x in (q, k, v)), strict=True)
    expected = torch.cat([definition(*x, causal=causal, max_len=640) for x in pieces], dim=2)
    close_with_gradients(out, expected, (q, k, v))


@pytest.mark.parametrize("causal", [False, True])
def test_masked_positions_may_hold_anything(causal):
    """NaN and infinity under the mask leave no trace in outputs, gradients and states."""
    q, k, v = (torch.randn(2, 4, 300, 6, dtype=torch.float64) for _ in range(3))
    mask = torch.rand(2, 300) > 0.3
    hidden = ~mask[:, None, :, None]
    results = []
    for fill_k, fill_v in ((0.0, 0.0), (float("nan"), float("inf"))):
        leaves = [x.requires_grad_() for x in (q.clone(), k.masked_fill(hidden, fill_k), v.masked_fill(hidden, fill_v))]
        out, state = cosformer_attention(
            *leaves, causal=causal, max_len=300, key_mask=mask, return_state=True, backend="plain"
        )
        grads = torch.autograd.grad(out.square().sum() + state.kv.sum() + state.z.sum(), leaves)
        results.append([out, state.kv, state.z, *grads])
    for clean, dirty in zip(*results, strict=True):
        assert torch.equal(clean, dirty)


@pytest.mark.parametrize("normaliser", ["clamp", "add", "signed", "none"])
@pytest.mark.parametrize("causal", [False, True])
def test_features_without_angles(tensors, close_with_gradients, causal, normaliser):
    q, k, v = tensors(2, 4, 2, 300, 300, 6, 5)
    mask = torch.rand(2, 300) > 0.2
    q2, k2 = (x.exp() if normaliser == "signed" else x for x in (q, k))
    results = [
        linear_attention(
            q2, k2, v, causal=causal, key_mask=mask, relu=normaliser == "clamp", normaliser=normaliser, backend=backend
        )
        for backend in ("plain", "dense")
    ]
    limit = 1e-12 if normaliser != "add" else 1e-9  # sums of either sign, close to zero
    close_with_gradients(*results, (q, k, v), limit)


class Layer(torch.nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal, self.projection = causal, torch.nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.projection(x).unflatten(-1, (2, 24)).transpose(1, 2).chunk(3, dim=-1)
        return cosformer_attention(q, k, v, causal=self.causal, max_len=1024, backend="plain").flatten(2)


@traces
@pytest.mark.parametrize("causal", [False, True])
def test_a_layer_compiles_to_one_graph_and_exports(causal):
    torch._dynamo.reset()
    layer, x = Layer(causal), torch.randn(2, 300, 16)
    expected = layer(x)
    expected.square().sum().backward()
    gradient = layer.projection.weight.grad.clone()
    layer.zero_grad()
    out = torch.compile(layer, fullgraph=True)(x)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
    out.square().sum().backward()
    torch.testing.assert_close(layer.projection.weight.grad, gradient, atol=1e-3, rtol=1e-3)
    program = torch.export.export(layer, (x,), dynamic_shapes=({1: torch.export.Dim("length", min=260, max=1024)},))
    other = torch.randn(2, 500, 16)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(other), layer(other), atol=1e-5, rtol=1e-4)


def test_registered_operators_pass_torchs_own_checks():
    q, k, v = (torch.randn(1, 2, 150, 4, dtype=torch.float64) for _ in range(3))
    settings = (None, True, True, 0, 0, 300, 300, "clamp", 1e-6, "plain")
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    none = (None,) * 5
    operators = torch.ops.cosformer
    torch.library.opcheck(operators.linear_forward.default, (q, k, v, *none, *settings), test_utils=tests)
    results = operators.linear_forward(q, k, v, *none, *settings)
    out, _, kv, z = results
    arguments = (q, k, v, *none, out, kv, z, *results, *settings)
    torch.library.opcheck(operators.linear_backward.default, arguments, test_utils=tests)


def test_a_state_alone_is_read_by_a_few_heads_at_a_time(close, tensors):
    q, k, v = tensors(1, 4, 4, 1100, 30, 6, 5, grad=False)
    _, state = cosformer_attention(q[:, :, :0], k, v, max_len=1100, return_state=True)
    none = (k[:, :, :0], v[:, :, :0])
    out, after = cosformer_attention(q, *none, max_len=1100, state=state, return_state=True, backend="plain")
    close(out, cosformer_attention(q, k, v, max_len=1100, backend="dense"), 1e-12)
    assert torch.equal(after.kv, state.kv) and torch.equal(after.z, state.z)
