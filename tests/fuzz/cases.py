"""Random calls of the operator, each drawn from a seed and a number alone, and what the oracle says of them."""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cosformer import cosformer_attention
from cosformer.ops.backends import available_backends
from cosformer.ops.native.library import find
from fuzz.oracle import Array, Given, Oracle

FORMS = (
    "whole", "causal", "last queries", "cross", "proportional", "packed", "causal packed", "causal pieces",
    "keys in pieces",
)  # fmt: skip
LAYOUTS = ("contiguous", "heads inside", "channels outside", "gaps", "batch expanded", "heads expanded", "negated")
LENGTHS = (1, 2, 3, 15, 16, 17, 31, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97, 130, 200, 257, 300)
CHANNELS = (1, 2, 3, 5, 8, 15, 16, 17, 20, 32, 40, 60, 64, 65, 72)
# half a unit in the last place of a number, relative to it; and the smallest number that is not lost
ROUNDING = {
    "float64": (2.0**-53, 0.0),
    "float32": (2.0**-24, 1e-35),
    "bfloat16": (2.0**-8, 1e-35),
    "float16": (2.0**-11, 1e-7),
}
# error of the sums, before they are rounded, in units of the magnitude; all other dtypes add in float32
SUMS = {torch.float64: 1e-14, torch.float32: 2e-6}


@dataclass
class Error:
    """The largest of one result."""

    allowed: float  # in units of what is allowed: above 1 it is wrong
    relative: float  # to the magnitude


@dataclass
class Case:
    """One call, in words; the tensors follow from the generator."""

    form: str
    dtype: str
    backend: str
    instruction_set: str
    threads: int
    sizes: tuple[int, ...]  # B, H, Hk, N, S, D, E
    max_len: int | None
    q_offset: int
    eps: float
    scale: float
    sparsity: float
    mask: str  # none, clean, dirty: what is not attended holds NaN and infinities
    layouts: tuple[str, str, str]
    gradients: bool
    with_state: bool  # of pieces: the last state is asked for, and has a gradient
    cuts: list[int] = field(default_factory=list)  # bounds of pieces or of packed sequences
    decay: int = 0  # seed of the rates; 0: none


def draw(rng: np.random.Generator) -> Case:
    def pick(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    form = pick(*FORMS)
    dtype = pick("float64", "float32", "float32", "float32", "bfloat16", "bfloat16", "float16")
    library = find()[0]
    b, hk, groups = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    n = pick(*LENGTHS, int(rng.integers(1, 300)))
    s = pick(*LENGTHS, 0) if form in ("cross", "proportional", "keys in pieces") else n
    offset = 0
    if form == "last queries":
        s = n + int(rng.integers(0, 150))
        offset = s - n
    if form in ("cross", "keys in pieces"):
        offset = pick(0, 0, int(rng.integers(0, 40)))
    if "packed" in form:
        b = 1
    cuts = _cuts(rng, s, one_by_one=form == "causal pieces") if form in FORMS[5:] else []
    may_mask = form not in ("proportional", "packed", "causal packed")
    mask = pick("none", "none", "clean", "dirty") if may_mask else "none"
    must = mask != "none" or form in FORMS[5:]
    longest = max(n + offset, s, 1)
    sizes = (b, hk * groups, hk, n, s, pick(*CHANNELS), pick(*CHANNELS))
    return Case(
        form=form,
        dtype=dtype,
        backend=pick("auto", "auto", *available_backends(getattr(torch, dtype))),
        instruction_set=pick(*library.instruction_sets) if library else "",
        threads=pick(1, 1, 1, 2),
        sizes=sizes,
        max_len=longest + pick(0, 0, 1, 100, 10_000) if must or rng.random() < 0.5 else None,
        q_offset=offset,
        eps=pick(1e-6, 1e-6, 1e-3, 1.0),
        scale=pick(0.03, 1.0, 1.0, 8.0 if dtype != "float16" else 1.0),
        sparsity=pick(0.0, 0.0, 0.6, 0.95),
        mask=mask,
        layouts=(pick(*LAYOUTS), pick(*LAYOUTS), pick(*LAYOUTS)),
        gradients=pick(True, True, False),
        with_state=pick(True, False),
        cuts=cuts,
        decay=_draw_decay(rng.spawn(1)[0], form, s) if sizes[5] % 2 == 0 or "causal" in form else 0,
    )


def _draw_decay(rng: np.random.Generator, form: str, s: int) -> int:
    """The oracle takes decay channel by channel, so long sequences are left out."""
    takes = form in ("whole", "causal", "last queries", "packed", "causal packed", "causal pieces")
    return int(rng.integers(1, 2**31)) if takes and s <= 130 and rng.random() < 0.6 else 0


def _cuts(rng: np.random.Generator, s: int, one_by_one: bool) -> list[int]:
    """Bounds from 0 to s; some pieces are of one token, packed sequences may be empty."""
    count = int(rng.integers(0, 5))
    inside = sorted(int(x) for x in rng.integers(0, s + 1, size=count))
    bounds = [0, *inside, s]
    if one_by_one:
        start = int(rng.integers(0, s))
        bounds = sorted({*bounds, *range(start, min(start + 4, s))})
    return bounds


class Tensors:
    """The tensors of a case, as torch has them and as the oracle sees them."""

    def __init__(self, case: Case, rng: np.random.Generator) -> None:
        self.case = case
        b, h, hk, n, s, d, e = case.sizes
        dtype = getattr(torch, case.dtype)
        shapes = ((b, h, n, d), (b, hk, s, d), (b, hk, s, e))
        drawn = [torch.from_numpy(rng.standard_normal(shape) * case.scale).to(dtype) for shape in shapes]
        for x in drawn[:2]:
            x[torch.from_numpy(rng.random(x.shape) < case.sparsity)] *= -1
        self.mask = None
        kept = np.ones((b, s), dtype=bool)
        if case.mask != "none":
            kept = rng.random((b, s)) > rng.choice([0.0, 0.3, 0.9, 1.0])
            self.mask = torch.from_numpy(kept)
        arranged = [_arrange(x, layout, rng) for x, layout in zip(drawn, case.layouts, strict=True)]
        if case.mask == "dirty":
            arranged[1:] = [
                self._spoil(x, layout, rng) for x, layout in zip(arranged[1:], case.layouts[1:], strict=True)
            ]
        self.q, self.k, self.v = (x.detach().requires_grad_(case.gradients) for x in arranged)
        self.decay = None
        if case.decay:
            rates = np.random.default_rng(case.decay).choice([0.0, 1e-6, 1e-3, 0.03, 0.25, 1.0, 4.0], size=(hk, d))
            self.decay = torch.from_numpy(rates).to(torch.float64 if dtype == torch.float64 else torch.float32)
        self.oracle = Oracle(self._given(kept))
        weight = rng.standard_normal((b, h, n, e))
        weight[self.oracle.close_to_eps()] = 0
        self.weight = torch.from_numpy(weight).to(dtype)
        self.kv_weight, self.z_weight = rng.standard_normal((b, hk, 2 * d, e)), rng.standard_normal((b, hk, 2 * d))

    def _spoil(self, x: Tensor, layout: str, rng: np.random.Generator) -> Tensor:
        """Masked rows hold NaN and infinities."""
        if "expanded" in layout:
            return x  # its rows lie in several batch items, masked or not
        assert self.mask is not None
        bad = torch.tensor([math.nan, math.inf, -math.inf], dtype=x.dtype)
        filled = bad[torch.from_numpy(rng.integers(0, 3, size=tuple(x.shape)))]
        x.copy_(torch.where(self.mask[:, None, :, None], x, filled))
        return x

    def _given(self, kept: np.ndarray[Any, Any]) -> Given:
        case = self.case
        b, _, _, n, s, _, _ = case.sizes
        i, j = np.arange(n, dtype=np.float64) + case.q_offset, np.arange(s, dtype=np.float64)
        length = case.max_len or max(n + case.q_offset, s, 1)
        seen = np.ones((n, s), dtype=bool)
        if case.form in ("causal", "last queries", "causal pieces"):
            seen = j[None, :] <= i[:, None]
        q_angle, k_angle = math.pi / 2 * i / length, math.pi / 2 * j / length
        if case.form == "proportional":
            q_angle, k_angle = math.pi / 2 * (i + 1) / max(n, 1), math.pi / 2 * (j + 1) / max(s, 1)
        if "packed" in case.form:
            bounds = np.array(case.cuts)
            sequence = np.searchsorted(bounds[1:], np.arange(n), side="right")
            seen = sequence[:, None] == sequence[None, :]
            if case.form == "causal packed":
                seen &= j[None, :] <= i[:, None]
            q_angle = k_angle = math.pi / 2 * (i - bounds[sequence]) / length
        visible = seen[None] & kept[:, None, :]
        q, k, v = (x.detach().resolve_neg().double().numpy() for x in (self.q, self.k, self.v))
        decay = None if self.decay is None else self.decay.double().numpy()
        both = case.form in ("whole", "packed")
        return Given(
            q, k, v, q_angle, k_angle, np.broadcast_to(visible, (b, n, s)), kept, case.eps, decay, i[:, None] - j, both
        )

    def run(self) -> dict[str, Tensor]:
        """Output, state and gradients of the operator."""
        case = self.case
        options: dict[str, Any] = {"max_len": case.max_len, "eps": case.eps, "backend": case.backend}
        if self.decay is not None:
            options["decay"] = self.decay
        with torch.set_grad_enabled(case.gradients):
            out, state = self._call(options)
            found = {"out": out}
            if state is not None:
                found |= {"kv": state.kv, "z": state.z}
            if not case.gradients:
                return found
            loss = (out * self.weight).sum()
            if state is not None:
                loss = loss.double() + (state.kv.double() * torch.from_numpy(self.kv_weight)).sum()
                loss = loss + (state.z.double() * torch.from_numpy(self.z_weight)).sum()
            found |= dict(zip(("dq", "dk", "dv"), torch.autograd.grad(loss, (self.q, self.k, self.v)), strict=True))
        return found

    def _call(self, options: dict[str, Any]) -> tuple[Tensor, Any]:
        case, q, k, v, mask = self.case, self.q, self.k, self.v, self.mask
        if case.form == "causal pieces":
            return self._pieces(options)
        if case.form == "keys in pieces":
            state = None
            nothing = q[:, :, :0]
            for start, stop in itertools.pairwise(case.cuts):
                part = None if mask is None else mask[:, start:stop]
                _, state = cosformer_attention(
                    nothing,
                    k[:, :, start:stop],
                    v[:, :, start:stop],
                    key_mask=part,
                    state=state,
                    return_state=True,
                    **options,
                )
            out, state = cosformer_attention(
                q, k[:, :, :0], v[:, :, :0], q_offset=case.q_offset, state=state, return_state=True, **options
            )
            return out, state if case.with_state else None
        if case.form == "proportional":
            options = {"align": "proportional", "eps": case.eps, "backend": case.backend}
            return cosformer_attention(q, k, v, **options), None
        if "packed" in case.form:
            cu = torch.tensor(case.cuts, dtype=torch.int32)
            return cosformer_attention(q, k, v, causal="causal" in case.form, cu_seqlens=cu, **options), None
        causal = case.form in ("causal", "last queries")
        found = cosformer_attention(q, k, v, causal=causal, q_offset=case.q_offset, key_mask=mask, **options)
        return found, None

    def _pieces(self, options: dict[str, Any]) -> tuple[Tensor, Any]:
        outs, state = [], None
        for start, stop in itertools.pairwise(self.case.cuts):
            part = None if self.mask is None else self.mask[:, start:stop]
            pieces = (x[:, :, start:stop] for x in (self.q, self.k, self.v))
            out, state = cosformer_attention(
                *pieces, causal=True, key_mask=part, state=state, return_state=True, **options
            )
            outs.append(out)
        return torch.cat(outs, dim=2), state if self.case.with_state else None

    def expected(self) -> dict[str, tuple[Array, Array]]:
        """Each result with its magnitude."""
        found = {"out": self.oracle.output}
        with_state = "pieces" in self.case.form and self.case.with_state
        if with_state:
            found |= self.oracle.state()
        if self.case.gradients:
            g_state = (self.kv_weight, self.z_weight) if with_state else (None, None)
            found |= self.oracle.gradients(self.weight.double().numpy(), *g_state)
        return found


def _arrange(x: Tensor, layout: str, rng: np.random.Generator) -> Tensor:
    """The same numbers in another place of memory (expanded: those of the first for all)."""
    b, h, n, d = x.shape
    if layout == "heads inside":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "channels outside":
        return x.mT.contiguous().mT
    if layout == "gaps":
        before, behind = (int(i) for i in rng.integers(0, 4, size=2))
        return torch.full((b, h + 1, 2 * n, before + d + behind), math.nan, dtype=x.dtype)[
            :, 1:, ::2, before : before + d
        ].copy_(x)
    if layout == "batch expanded":
        return x[:1].clone().expand(b, h, n, d)
    if layout == "heads expanded":
        return x[:, :1].clone().expand(b, h, n, d)
    if layout == "negated" and x.dtype in (torch.float32, torch.float64):
        return torch.complex(x, -x).conj().imag
    return x.clone()


def run_case(seed: int, number: int) -> tuple[Case, dict[str, Error]]:
    """A case, and for each result its error."""
    rng = np.random.default_rng([seed, number])
    case = draw(rng)
    library = find()[0]
    threads, build = torch.get_num_threads(), library.instructions if library else None
    try:
        if library:
            library.choose(case.instruction_set)
        torch.set_num_threads(case.threads)
        tensors = Tensors(case, rng)
        found, expected = tensors.run(), tensors.expected()
    finally:
        torch.set_num_threads(threads)
        if library:
            library.choose(build)
    assert found.keys() == expected.keys()
    return case, {name: compare(found[name], *expected[name]) for name in expected}


def compare(got: Tensor, want: Array, size: Array) -> Error:
    assert tuple(got.shape) == want.shape, f"{tuple(got.shape)}, not {want.shape}"
    if not got.numel():
        return Error(0.0, 0.0)
    if not got.isfinite().all():
        return Error(math.inf, math.inf)
    rounding, smallest = ROUNDING[str(got.dtype).removeprefix("torch.")]
    sums = SUMS[torch.float64 if got.dtype == torch.float64 else torch.float32]
    error = np.abs(got.detach().resolve_neg().double().numpy() - want)
    allowed = rounding * np.abs(want) + sums * size + smallest

    def largest(of: Array) -> float:
        return float(np.max(np.where(error == 0, 0.0, error / np.maximum(of, 1e-300))))

    return Error(largest(allowed), largest(size + smallest))
