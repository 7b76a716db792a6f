"""The tables of docs/linearized.md, from the results of benchmarks/linearize_real.py.

python -m benchmarks.linearized_tables docs/results/linearize.jsonl docs/linearized.md
"""

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cosformer.json_files import read_lines
from cosformer.report.table import Table, insert_into
from cosformer.runs import NOT_RUN

Line = dict[str, Any]


# where a decoder was measured -> the model that its lines name
_TEXTS = {
    "smollm2": "the beginning of WikiText-2's test part",
    "smollm2-valid": "24 rows of 8,192 tokens of WikiText-2's validation part",
    "smollm2-test": "WikiText-2's test part beyond its first 32,768 tokens",
}


def linearized_tables(lines: Sequence[Line]) -> str:
    """Markdown: both models, how the loss fell, the texts."""
    small = [line for line in lines if line["model"] == "minilm"]
    parts = [encoder(small).markdown]
    for model, text in _TEXTS.items():
        measured = [line for line in lines if line["model"] == model]
        tables = (decoder(measured, text), found_again(measured))
        parts += [table.markdown for table in tables if table.rows]
    parts += [curves(lines).markdown, texts([line for line in lines if line["model"] in _TEXTS]).markdown]
    return "\n\n".join(part for part in parts if part)


def encoder(lines: Sequence[Line]) -> Table:
    header = ["all-MiniLM-L6-v2", "cosine", "top-1", "top-10"]
    rows = [[_name(line), *(f"{line['scores'][key]:.3f}" for key in header[1:])] for line in lines]
    return Table("Embeddings of 5,000 held-out sentences against the original's:", header, rows)


def decoder(lines: Sequence[Line], text: str) -> Table:
    """Perplexity, of whole rows and by position in the longest ones, and how many times the teacher's it is."""
    scores = {line["name"]: _perplexities(line) for line in lines}
    teacher = scores.get("teacher", {})
    keys = list(dict.fromkeys(key for found in scores.values() for key in found))
    memory = "cache MB at 8192"
    rows = []
    for line in lines:
        cells = []
        for key in keys:
            value = scores[line["name"]].get(key)
            if value is None:
                cells.append(NOT_RUN)
            elif key in teacher and line["name"] != "teacher":
                cells.append(f"{value:.4g} ({value / teacher[key]:.2f})")
            else:
                cells.append(f"{value:.4g}")
        rows.append([_name(line), *cells, f"{line['scores'][memory]:.1f}" if memory in line["scores"] else NOT_RUN])
    title = f"Perplexity on {text}, and how many times the teacher's:"
    return Table(title, ["SmolLM2-135M", *keys, memory], rows)


def _perplexities(line: Line) -> dict[str, float]:
    whole = {key: value for key, value in line["scores"].items() if key.startswith("perplexity")}
    return whole | {f"tokens {place}": value for place, value in line.get("by position", {}).items()}


def found_again(lines: Sequence[Line]) -> Table:
    """In how many prompts each model gives a pass-key and a placed fact exactly."""
    asked = [line for line in lines if "retrieval" in line]
    header = list(dict.fromkeys(key for line in asked for key in line["retrieval"]["right"]))
    rows = [[line["name"], *(str(line["retrieval"]["right"].get(key, NOT_RUN)) for key in header)] for line in asked]
    samples = asked[0]["retrieval"]["samples"] if asked else 0
    return Table(f"Exact answers of {samples} prompts each:", ["SmolLM2-135M", *header], rows)


def curves(lines: Sequence[Line], points: int = 6) -> Table:
    """The mean loss of all layers at even intervals of the transfer, averaged since the previous point."""
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


def main(results: Path, page: Path) -> None:
    """Write the tables between the page's 'linearized' markers."""
    lines, problems = read_lines(results)
    if problems:
        raise ValueError(problems[0])
    insert_into(page, "linearized", linearized_tables([line for _, line in lines]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
