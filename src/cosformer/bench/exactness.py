"""How far every form of the operator is from the definition on this machine: outputs and gradients.

The definition is written once more here, in float64 and from the formula, so that each form of the package (the dense
one too) is measured against something that shares no code with it.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.ops.backends import DENSE_UP_TO, available_backends
from cosformer.ops.operator import cosformer_attention

LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# positions over which a state that is rotated instead of kept at absolute angles loses its keys in float32
FAR = 65_536
EPS = 1e-6

Inputs = list[Tensor]  # q, k, v
Form = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Finding:
    """The largest error of one form, relative to the largest value that the definition gives there."""

    form: str
    backend: str
    dtype: str
    output: float
    gradient: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.output <= self.limit and self.gradient <= self.limit  # false for nan

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed}


@dataclass(frozen=True)
class Case:
    """A form, the pairs that it may see, and where its queries and keys stand (in quarter turns of the cosine)."""

    name: str
    form: Form
    inputs: Inputs
    visible: Tensor  # bool, broadcasts to [B, H, N, S]
    q_turn: Tensor
    k_turn: Tensor


def definition(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, q_turn: Tensor, k_turn: Tensor) -> Tensor:
    """Weights ``relu(q_i).relu(k_j) cos(pi/2 (x_i - y_j))`` of the visible pairs over their sum; zeros if none."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    cosine = torch.cos(math.pi / 2 * (q_turn[:, None] - k_turn))
    weights = q.relu() @ k.relu().mT * cosine * visible
    return weights @ v / weights.sum(-1, keepdim=True).clamp_min(EPS)


def measure(device: str = "cpu", length: int = max(DENSE_UP_TO.values()) + 77) -> Iterator[Finding]:
    """Every form with each available backend, in float64 where supported, float32, and on GPUs 16 bits."""
    kind = torch.device(device).type
    for dtype in [x for x in LIMITS if (x != torch.float64 or kind != "mps") and (x.itemsize > 2 or kind != "cpu")]:
        for backend in available_backends(dtype, device):
            for case in _cases(backend, device, length):
                yield _compare(case, backend, dtype, device)
        yield _compare(_token_by_token(length), "step", dtype, device)
    yield _compare(_far_keys(), "auto", torch.float32, device)


def _inputs(batch: int, queries: int, keys: int, key_heads: int = 4) -> Inputs:
    make = partial(torch.randn, dtype=torch.float64, generator=torch.Generator().manual_seed(queries + keys))
    return [make(batch, 4, queries, 16), make(batch, key_heads, keys, 16), make(batch, key_heads, keys, 24)]


def _cases(backend: str, device: str, n: int) -> Iterator[Case]:
    b = 2
    attend = partial(cosformer_attention, eps=EPS, backend=backend)
    m = n + 50
    place = torch.arange(n, dtype=torch.float64) / m
    everything = torch.ones(1, dtype=torch.bool)
    lower = torch.ones(n, n, dtype=torch.bool).tril()
    kept = torch.arange(n) >= torch.tensor([[0], [n // 3]])  # the second prompt is padded on the left
    ends = torch.tensor([0, 1, n // 3, n // 3, n])  # the third sequence is empty
    owner = torch.bucketize(torch.arange(n), ends[1:], right=True)
    together = owner[:, None] == owner
    in_its_own = (torch.arange(n) - ends[owner]).double() / m
    for causal in (False, True):
        word, seen = ("causal", lower) if causal else ("non-causal", everything)
        call = partial(attend, causal=causal, max_len=m)
        yield Case(f"{word}", call, _inputs(b, n, n), seen, place, place)
        yield Case(f"{word}, grouped keys", call, _inputs(b, n, n, 2), seen, place, place)
        mask = partial(call, key_mask=kept.to(device))
        yield Case(f"{word}, padded", mask, _inputs(b, n, n), seen & kept[:, None, None], place, place)
        packed = partial(call, cu_seqlens=ends.to(device))
        yield Case(f"{word}, packed", packed, _inputs(1, n, n), seen & together, in_its_own, in_its_own)
    pieces = [n // 2, 1, n - n // 2 - 1]
    yield Case("causal, in pieces", partial(_in_pieces, call, pieces), _inputs(b, n, n), lower, place, place)
    late = n - 20
    last = partial(call, q_offset=late)
    yield Case("causal, last 20 queries", last, _inputs(b, 20, n), lower[late:], place[late:], place)
    fewer = n // 3
    cross = partial(attend, max_len=m, q_offset=7)
    yield Case("cross, absolute", cross, _inputs(b, fewer, n), everything, place[7 : 7 + fewer], place)
    shares = [torch.arange(1, size + 1, dtype=torch.float64) / size for size in (fewer, n)]
    yield Case("cross, proportional", partial(attend, align="proportional"), _inputs(b, fewer, n), everything, *shares)
    keys_first = partial(_keys_first, partial(attend, max_len=m), pieces)
    yield Case("cross, keys in pieces", keys_first, _inputs(b, fewer, n), everything, place[:fewer], place)


def _token_by_token(n: int) -> Case:
    """One token at a time is a form of its own, whichever backend serves longer pieces."""
    step = partial(cosformer_attention, eps=EPS, causal=True, max_len=n)
    lower = torch.ones(n, n, dtype=torch.bool).tril()
    place = torch.arange(n, dtype=torch.float64) / n
    return Case("causal, token by token", partial(_in_pieces, step, [1] * n), _inputs(2, n, n), lower, place, place)


def _far_keys() -> Case:
    """The only keys alive at the start, the queries at the end of ``FAR`` positions."""

    def form(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = F.pad(q, (0, 0, FAR - q.shape[2], 0))
        k, v = (F.pad(x, (0, 0, 0, FAR - x.shape[2])) for x in (k, v))
        return cosformer_attention(q, k, v, causal=True, max_len=FAR, eps=EPS)[:, :, -queries:]

    queries, keys = 8, 4
    place = torch.arange(FAR, dtype=torch.float64) / FAR
    everything = torch.ones(1, dtype=torch.bool)
    inputs = [x.abs() for x in _inputs(1, queries, keys)]  # no weight is cut off to zero
    name = f"causal, only far keys, N = max_len = {FAR:,}"
    return Case(name, form, inputs, everything, place[-queries:], place[:keys])


def _in_pieces(call: Callable[..., Any], lengths: list[int], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A sequence cut into pieces that hand a state on."""
    outputs, state = [], None
    for piece in zip(*(x.split(lengths, dim=2) for x in (q, k, v)), strict=True):
        out, state = call(*piece, state=state, return_state=True)
        outputs.append(out)
    return torch.cat(outputs, dim=2)


def _keys_first(call: Callable[..., Any], lengths: list[int], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Cached cross-attention: the keys go into a state piece by piece, the queries then bring no key of their own."""
    state = None
    for keys, values in zip(k.split(lengths, dim=2), v.split(lengths, dim=2), strict=True):
        _, state = call(q[:, :, :1], keys, values, state=state, return_state=True)
    return call(q, k[:, :, :0], v[:, :, :0], state=state)


def _compare(case: Case, backend: str, dtype: torch.dtype, device: str) -> Finding:
    rounded = [x.to(dtype) for x in case.inputs]
    arguments = (case.visible, case.q_turn, case.k_turn)
    expected = _with_gradients(lambda q, k, v: definition(q, k, v, *arguments), [x.double() for x in rounded])
    got = _with_gradients(case.form, [x.to(device) for x in rounded])
    errors = [_error(a, b) for a, b in zip(got, expected, strict=True)]
    return Finding(case.name, backend, str(dtype).removeprefix("torch."), errors[0], max(errors[1:]), LIMITS[dtype])


def _with_gradients(form: Form, inputs: Inputs) -> list[Tensor]:
    """The output and the gradients of q, k, v for one fixed gradient of the output."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = form(*leaves)
    direction = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
    return [out.detach(), *torch.autograd.grad(out, leaves, direction.to(out))]


def _error(got: Tensor, expected: Tensor) -> float:
    scale = expected.abs().max().item()
    worst = (got.detach().cpu().double() - expected).abs().max().item()
    return worst / scale if math.isfinite(worst) else math.inf
