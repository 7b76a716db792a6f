"""``cosformer bench decode``: one token of a linearized model at growing contexts, against the model it was made of."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from cosformer import terminal
from cosformer.bench.generate import against, token_cells, token_steps
from cosformer.bench.measure import interleaved
from cosformer.bench.tables import SPREAD, length
from cosformer.bench.tokens import generated_tokens, token_table
from cosformer.extras import require
from cosformer.report.measurements import Measurement, Results
from cosformer.report.table import Table


def measurements(
    *,
    source: str = "",
    models: str = "",
    lengths: Sequence[int] = (1024, 8192, 65536),
    batches: Sequence[int] = (1,),
    compiled: str = "",
    repeats: int = 9,
    threads: int = 2,
) -> Iterator[Measurement]:
    """``source`` and ``models`` (with commas) are folders; ``compiled`` names those that are compiled as well."""
    require("hf", "transformers")
    from transformers import AutoModelForCausalLM

    from cosformer.attention.base import Attention
    from cosformer.linearize.compare import load

    if not source or not models:
        raise ValueError("give --source, the original, and --models, those made of it")
    places = [source, *models.split(",")]
    names = [Path(place).name for place in places]
    if len({*names}) < len(names):
        raise ValueError(f"two of the folders have the same name: {', '.join(names)}")
    if batches:
        build = partial(AutoModelForCausalLM.from_pretrained, dtype=torch.float32)
        builders = {name: partial(build, place) for name, place in zip(names, places, strict=True)}
        names_compiled = [name for name in compiled.split(",") if name]
        if unknown := {*names_compiled} - {*names}:
            raise ValueError(f"--compiled {', '.join(sorted(unknown))}: no such model here; known: {', '.join(names)}")
        yield from generated_tokens(builders, compiled=names_compiled, batches=batches, repeats=repeats)
    if not lengths:
        return
    loaded = {name: load(place) for name, place in zip(names, places, strict=True)}
    for module in (module for model in loaded.values() for module in model.modules()):
        if isinstance(module, Attention):
            module.max_len = max(module.max_len, max(lengths) + 1)  # to be timed past the length it was made for
    actions, sizes = token_steps(loaded, lengths)
    terminal.status("timing one token at every length ...")
    with torch.no_grad():
        times = interleaved(actions, repeats=repeats)
    for name in names[1:]:
        yield from against(name, names[0], lengths, times, sizes)


def tables(results: Results) -> list[Table]:
    """Contexts and models down; time and state of a token across."""
    tokens, states = token_table(results), results.find(kind="state")
    if not states:
        return tokens
    rows = [[length(m), m.attention, *token_cells(results, m.length, attention=m.attention)] for m in states]
    title = f"One more token of a linearized model against {states[0].baseline} ({SPREAD}), and what each carries."
    header = ["context", "model", "ms", "ms, original", "times faster", "MB", "MB, original", "times smaller"]
    return [*tokens, Table(title, header, rows)]
