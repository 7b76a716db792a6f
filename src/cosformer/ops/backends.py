"""The backends by name, what each can do here, and which one ``auto`` takes."""

from types import ModuleType

import torch
from torch import Tensor

from cosformer.ops import chunked, native
from cosformer.ops.problem import Problem

# torch 2.6 cannot tell: there an exported program holds our operators, and does not go to ONNX
is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)

# name -> one line for `cosformer check` and for errors
BACKENDS = {
    "dense": "the definition, an N x S matrix; any device",
    "chunked": "linear, plain PyTorch; any device",
    "native": "linear, compiled kernels; float32 and bfloat16 on the CPU",
}

# linear backends: modules with `forward` and `backward`
_KERNELS: dict[str, ModuleType] = {"chunked": chunked, "native": native}

# longest N and S for which `auto` prefers the dense form to a linear backend: measured with 8 heads of 64 channels
DENSE_UP_TO = {"native": 64, "chunked": 256}


def kernel(name: str) -> ModuleType:
    """The module with ``forward`` and ``backward`` of a linear backend."""
    return _KERNELS[name]


@torch.compiler.assume_constant_result
def _native_missing() -> str:
    return "" if native.available() else native.describe()


def why_not(name: str, *tensors: Tensor) -> str:
    """Why a backend cannot take these q, k, v here; an empty string: it can."""
    if name != "native":
        return ""
    return _native_missing() or native.why_not_these(*tensors)


def available_backends(dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[str]:
    """The backends that run here for a dtype."""
    example = torch.empty(0, dtype=dtype, device=device)
    return [name for name in BACKENDS if not why_not(name, example)]


def check_backend(name: str, *tensors: Tensor) -> None:
    """An unknown name is the caller's mistake; a known one that cannot run here is the machine's."""
    if name == "auto":
        return
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; known: auto, {', '.join(BACKENDS)}")
    if reason := why_not(name, *tensors):
        raise RuntimeError(f"backend {name!r} cannot run here: {reason}; use backend='auto'")


def choose(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> str:
    """What ``auto`` takes for these tensors."""
    # an exported program may run where the compiled kernels are not
    compiled = not is_exporting() and not why_not("native", q, k, v)
    linear = "native" if compiled else "chunked"
    short = cu_seqlens is None and all(_at_most(x.shape[2], DENSE_UP_TO[linear]) for x in (q, k))
    return "dense" if short else linear


def _at_most(length: int, limit: int) -> bool:
    """Whether ``length <= limit``; of an exported program, which cannot choose when it runs, for all its lengths."""
    if not is_exporting():
        return length <= limit
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # loads sympy

    return statically_known_true(length <= limit)


def fits_compiled_dense(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, p: Problem) -> bool:
    """Whether the native library's dense form takes a call without state."""
    n, s = q.shape[2], k.shape[2]
    if cu_seqlens is not None or max(n, s) > native.SHORT or min(n, s) == 0 or (p.causal and n != s):
        return False
    return not why_not("native", q, k, v)
