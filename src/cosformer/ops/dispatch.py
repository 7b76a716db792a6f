"""The one place that picks the form of a call, and runs it: every call of the family comes through :func:`attend`."""

import torch
from torch import Tensor

from cosformer.ops import native
from cosformer.ops.backends import COMPILED, DENSE_UP_TO, KERNELS
from cosformer.ops.checks import autocast_enabled, check_room, without_autocast
from cosformer.ops.dense import dense_forward, dense_state, hide, packed_lengths
from cosformer.ops.factored import attend_one, factored_attention
from cosformer.ops.spec import Call, accumulator
from cosformer.ops.state import LinearState
from cosformer.ops.torch_ops import can_bypass_dispatcher, linear_kernel

# missing in torch 2.6, which refuses exports
is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)


def writes_onnx() -> bool:
    """Whether ``torch.onnx.export`` is tracing, whose files know torch's own operators alone."""
    return torch.compiler.is_compiling() and torch.onnx.is_in_onnx_export()


# torch 2.6 to 2.10 compile some calls wrongly (a step past max_len does not raise) and export few
traceable = torch.__version__ >= "2.12"  # compared as versions, not as strings


def _refuse_to_be_traced() -> None:
    raise RuntimeError(
        "torch.compile and torch.export of cosformer's attention need torch 2.12 or later, and this is "
        f"{torch.__version__}; call it without them, or install a newer torch"
    )


# so that the compiler calls it, and its sentence is seen: a traced `raise` would only end the graph
_refuse_to_be_traced._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def attend(
    call: Call, state: LinearState | None, return_state: bool, *, max_len: int, backend: str
) -> Tensor | tuple[Tensor, LinearState]:
    """Compute a checked ``call``, which has no state yet; ``out``, or ``(out, state)``.

    Key positions in its specification count from the first key of this call, and so do those of causal queries; other
    queries' positions are absolute.
    """
    if not traceable and torch.compiler.is_compiling():
        _refuse_to_be_traced()
    start = None
    if state is None:
        position = torch.full((), call.k.shape[2], dtype=torch.int64, device="cpu") if return_state else None
    else:
        call, start, position = _continue(call, state, max_len)
    direct = can_bypass_dispatcher(*call.tensors)
    form = pick_form(call, backend, return_state, direct)
    if autocast_enabled(call.q.device):
        with without_autocast(call.q.device):
            out, kv, z = form.run(call, start, return_state, direct)
    else:
        out, kv, z = form.run(call, start, return_state, direct)
    if not return_state:
        return out
    assert kv is not None and z is not None and position is not None  # every form returns the state when asked
    return out, LinearState(kv, z, position, max_len, call.decay)


def _continue(call: Call, state: LinearState, max_len: int) -> tuple[Call, Tensor | None, Tensor]:
    """The call after the state's tokens, how far its positions are still to be moved if only a graph knows, and the
    position after the call."""
    call, tokens = call._replace(kv=state.kv, z=state.z), call.k.shape[2]
    if not torch.compiler.is_compiling():
        first = int(state.position)
        check_room(first, tokens, max_len)
        return call._replace(spec=call.spec.moved(first)), None, state.position + tokens
    # an exported graph is free of our operators here, so it can go to ONNX; it cannot refuse to run past max_len
    if is_exporting():
        position = state.position + tokens
    else:
        position = torch.ops.cosformer.advance(state.position, tokens, max_len)
    return call, position - tokens, position


Result = tuple[Tensor, Tensor | None, Tensor | None]  # out, and the state after the keys, where it was made


class Form:
    """A way to compute a call."""

    def run(self, call: Call, start: Tensor | None, return_state: bool, direct: bool) -> Result:
        """``out`` and the state, which some forms leave out unless ``return_state``.

        ``start``: how far the specification is still to be moved. ``direct``: nothing has to see a kernel's call.
        """
        raise NotImplementedError


class PlainOperations(Form):
    """Operations that autograd and compilers see one by one, on float32 or float64 tensors without masked keys."""

    def run(self, call: Call, start: Tensor | None, return_state: bool, direct: bool) -> Result:
        q, k, v = call.q, hide(call.k, call.key_mask), hide(call.v, call.key_mask)
        if accumulator(v.dtype) != v.dtype:
            q, k, v = q.float(), k.float(), v.float()
        spec = call.spec if start is None else call.spec.moved(start)
        out, kv, z = self.compute(call._replace(q=q, k=k, v=v, key_mask=None, spec=spec), return_state)
        return out.to(call.v.dtype), kv, z

    def compute(self, call: Call, return_state: bool) -> Result:
        raise NotImplementedError


class Dense(PlainOperations):
    def compute(self, call: Call, return_state: bool) -> Result:
        out = dense_forward(call, packed_lengths(call.cu_seqlens, call.q.shape[2]))
        kv, z = dense_state(call) if return_state else (None, None)
        return out, kv, z


class Factored(PlainOperations):
    def compute(self, call: Call, return_state: bool) -> Result:
        return factored_attention(call)


class Step(PlainOperations):
    def compute(self, call: Call, return_state: bool) -> Result:
        return attend_one(call)


class Linear(Form):
    """A linear backend, by its kernel's forward and backward."""

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def run(self, call: Call, start: Tensor | None, return_state: bool, direct: bool) -> Result:
        call = call._replace(spec=call.spec._replace(backend=self.backend))
        out, _, kv, z = linear_kernel(call, start, direct=direct)
        return out, kv, z


class CompiledStep(Form):
    """One token by a compiled kernel."""

    def __init__(self, backend: str) -> None:
        self.module = COMPILED[backend]

    def run(self, call: Call, start: Tensor | None, return_state: bool, direct: bool) -> Result:
        return self.module.step(call)


class NativeDense(Form):
    """The definition in C, for short input."""

    def run(self, call: Call, start: Tensor | None, return_state: bool, direct: bool) -> Result:
        return native.dense(call), None, None


DENSE, FACTORED, STEP, NATIVE_DENSE = Dense(), Factored(), Step(), NativeDense()
LINEAR = {name: Linear(name) for name in KERNELS}
COMPILED_STEPS = {name: CompiledStep(name) for name in COMPILED}


def pick_form(call: Call, backend: str, return_state: bool, direct: bool) -> Form:
    q, k, v, *_ = call
    if backend == "auto":
        if return_state and call.spec.causal and q.shape[2] == k.shape[2] == 1:
            compiled = [name for name in COMPILED if direct and not COMPILED[name].why_not(q, k, v)]
            return COMPILED_STEPS[compiled[0]] if compiled else STEP
        # asked first whether a compiler sees the call: the lengths must not become guards of its graph
        if direct and not return_state and not native.why_not(q, k, v) and native.fits_dense(call):
            return NATIVE_DENSE
        backend = choose(q, k, v, call.cu_seqlens, call.decay)
    if backend == "dense":
        return DENSE
    loop_free = not call.spec.causal and call.cu_seqlens is None and call.decay is None
    if backend == "plain" and torch.compiler.is_compiling():
        if loop_free:
            return FACTORED  # free of loops, so that one graph serves every length
        if writes_onnx():
            return DENSE
    return LINEAR[backend]


def choose(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, decay: Tensor | None = None) -> str:
    """The backend that ``auto`` takes for these tensors."""
    compiled = "native" if q.device.type in ("cpu", "meta") else "triton"
    # an exported program may run where the compiled kernels are not
    linear = "plain" if is_exporting() or COMPILED[compiled].why_not(q, k, v) else compiled
    # the definition of decay is a product for every pair and channel
    short = decay is None and cu_seqlens is None and all(_at_most(x.shape[2], DENSE_UP_TO[linear]) for x in (q, k))
    return "dense" if short else linear


def _at_most(length: int, limit: int) -> bool:
    """Whether ``length <= limit``; of an exported program, which cannot choose when it runs, for all its lengths."""
    if not is_exporting():
        return length <= limit
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # loads sympy

    return statically_known_true(length <= limit)
