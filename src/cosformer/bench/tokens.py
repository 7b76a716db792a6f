"""Generated tokens against the limit that memory sets: a token needs every weight once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from cosformer import terminal
from cosformer.bench.measure import compared, interleaved, measured
from cosformer.bench.tables import SPREAD
from cosformer.report.measurements import Measurement, Results, cell
from cosformer.report.table import Table

TOKEN, FIRST = "token", "first token"  # kinds of measurements
EAGER, COMPILED = "eager", "compiled"
UNIT = "times as long"
LIMIT = "one reading of its weights"
BUDGET = 120.0  # seconds for the repeats
Action = Callable[[], Any]


def generated_tokens(
    models: Mapping[str, Callable[[], Any]],
    *,
    compiled: Sequence[str] = (),
    batches: Sequence[int] = (1,),
    prompt: int = 64,
    tokens: int = 32,
    repeats: int = 5,
) -> Iterator[Measurement]:
    """Greedy tokens of each model through ``generate``, as a multiple of the time that one reading of a buffer of its
    weights' size takes; and the time to the first token. ``models`` builds them by name, ``compiled`` names those that
    are compiled as well, for the first of ``batches``. All take turns.
    """
    actions: dict[str, Action] = {}
    sizes: dict[str, int] = {}
    rows: list[Measurement] = []
    for name, build in models.items():
        for variant in (EAGER, COMPILED) if name in compiled else (EAGER,):
            terminal.status(f"preparing {name}, {variant} ...")
            model = build().eval()
            if variant == COMPILED:
                from cosformer.models.compiled_step import compile_step

                compile_step(model)
            sizes[name] = weight_bytes(model)
            for batch in batches if variant == EAGER else batches[:1]:
                m = Measurement(kind=TOKEN, attention=name, variant=variant, batch=batch, better="lower", unit=UNIT)
                m = replace(m, length=prompt, baseline=LIMIT, megabytes=round(sizes[name] / 1e6, 1))
                rows.append(m)
                ids = torch.randint(3, 90, (batch, prompt), generator=torch.Generator().manual_seed(0))
                options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
                write = partial(model.generate, ids, **options, eos_token_id=None)
                write(max_new_tokens=4)  # compiles, where there is something to compile
                actions[_key(m, "first")] = partial(write, max_new_tokens=1)
                actions[_key(m, "all")] = partial(write, max_new_tokens=1 + tokens)
    for name, size in sizes.items():
        actions[f"{name} read"] = torch.ones(size // 4).sum
    terminal.status("generating ...")
    times = interleaved(actions, repeats=repeats, budget=BUDGET)
    for m in rows:
        first, every = times[_key(m, "first")], times[_key(m, "all")]
        each = [(b - a) / tokens for a, b in zip(first, every, strict=True)]
        yield compared(m, each, times[f"{m.attention} read"])
        yield measured(replace(m, kind=FIRST, baseline="", unit="ms", megabytes=None), [1e3 * t for t in first])


def weight_bytes(model: Any) -> int:
    """Bytes of the weights that a token reads: all but the tables of embeddings that are not the output's, too."""
    head = model.get_output_embeddings()
    tied = None if head is None else head.weight
    tables = [x.weight for x in model.modules() if isinstance(x, torch.nn.Embedding) and x.weight is not tied]
    left_out = {id(x) for x in tables}
    return sum(x.nbytes for x in model.parameters() if id(x) not in left_out)


def token_table(results: Results) -> list[Table]:
    """Models, eager and compiled, and batches down."""
    shown = results.find(kind=TOKEN)
    if not shown:
        return []
    rows = []
    for m in shown:
        first = results.one(kind=FIRST, attention=m.attention, variant=m.variant, batch=m.batch)
        assert m.milliseconds and m.batch and m.megabytes is not None and first is not None
        speed, megabytes = 1e3 * m.batch / m.milliseconds, f"{m.megabytes:,.0f}"
        times = [f"{x:.3g}" for x in (m.milliseconds, m.baseline_milliseconds, first.value) if x is not None]
        row = [m.attention, m.variant, str(m.batch), times[0], f"{speed:,.0f}"]
        rows.append([*row, megabytes, times[1], cell(m), times[2]])
    title = (
        f"Greedy tokens through `generate` after a prompt of {shown[0].length} tokens, float32; the weights that it "
        f"reads, the time that one reading of a buffer of their size takes, and a token's time as a multiple of that "
        f"({SPREAD})."
    )
    header = ["model", "", "sequences", "ms a token", "tokens/s", "MB of weights", "ms, one reading"]
    return [Table(title, [*header, "multiple of the limit", "ms to the first token"], rows)]


def _key(m: Measurement, what: str) -> str:
    return f"{m.attention} {m.variant} {m.batch} {what}"
