"""Trained models made linear: the tables of ``docs/linearized.md``, from the lines that ``benchmarks/linearize_real.py`` wrote."""

import itertools
from collections.abc import Sequence
from typing import Any

from cosformer.report.table import Table
from cosformer.runs import NOT_RUN

Line = dict[str, Any]


def linearized_tables(lines: Sequence[Line]) -> str:
    """Markdown: both models, how the loss fell, the texts."""
    small = [line for line in lines if line["model"] == "minilm"]
    large = [line for line in lines if line["model"] == "smollm2"]
    parts = [encoder(small).markdown, decoder(large).markdown, curves(lines).markdown, texts(large).markdown]
    return "\n\n".join(part for part in parts if part)


def encoder(lines: Sequence[Line]) -> Table:
    header = ["all-MiniLM-L6-v2", "cosine", "top-1", "top-10"]
    rows = [[_name(line), *(f"{line['scores'][key]:.3f}" for key in header[1:])] for line in lines]
    return Table("Embeddings of 5,000 held-out sentences against the original's:", header, rows)


def decoder(lines: Sequence[Line]) -> Table:
    """Perplexity, and how many times the teacher's it is."""
    teacher = next((line["scores"] for line in lines if line["name"] == "teacher"), {})
    keys = list(dict.fromkeys(key for line in lines for key in line["scores"] if key.startswith("perplexity")))
    memory = "cache MB at 8192"
    rows = []
    for line in lines:
        cells = []
        for key in keys:
            value = line["scores"].get(key)
            if value is None:
                cells.append(NOT_RUN)
            elif key in teacher and line["scores"] is not teacher:
                cells.append(f"{value:.4g} ({value / teacher[key]:.2f})")
            else:
                cells.append(f"{value:.4g}")
        rows.append([_name(line), *cells, f"{line['scores'][memory]:.1f}" if memory in line["scores"] else NOT_RUN])
    title = "Perplexity on the beginning of WikiText-2's test part, and how many times the teacher's:"
    return Table(title, ["SmolLM2-135M", *keys, memory], rows)


def curves(lines: Sequence[Line], points: int = 6) -> Table:
    """The mean loss of all layers at even distances of the transfer, each the mean of the updates since the one before."""
    rows = []
    for line in lines:
        curve = line.get("transfer") or []
        if len(curve) >= points:
            ends = [round(i * len(curve) / points) for i in range(points + 1)]
            means = [sum(curve[a:b]) / (b - a) for a, b in itertools.pairwise(ends)]
            rows.append([f"{line['model']}: {line['name']}", *(f"{mean:.3f}" for mean in means)])
    header = ["transfer", *(f"{round(100 * i / points)} %" for i in range(1, points + 1))]
    return Table(
        "Loss of the attention outputs (squared error over variance) as the tokens of the transfer go by:", header, rows
    )


def texts(lines: Sequence[Line]) -> Table:
    """What each model writes after the same beginning."""
    rows = [[line["name"], " ".join(line["text"]["goes on"].split())] for line in lines if "text" in line]
    after = next((line["text"]["after"] for line in lines if "text" in line), 0)
    title = f"The likeliest 40 tokens after the first {after} of the same text, more than a window holds:"
    return Table(title, ["model", "goes on"], rows, numeric=False)


def _name(line: Line) -> str:
    """What was done, with the tokens it took."""
    settings = line.get("settings") or {}
    spent = [
        f"{settings[f'{stage}_tokens']:,} tokens" for stage in ("transfer", "repair") if settings.get(f"{stage}_tokens")
    ]
    return f"{line['name']} ({', '.join(spent)})" if spent else line["name"]
