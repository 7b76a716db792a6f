"""``cosformer visualize``: where each layer and head of a model looks, on a text of your own."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosformer.commands import output_path
from cosformer.commands.generate import load
from cosformer.output_file import open_output, write_output

if TYPE_CHECKING:
    import numpy as np

    from cosformer.report.heat_maps import Panel

FORMATS = (".html", ".svg", ".png", ".npz")
_COLUMNS = 4


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Draws the attention weights, queries down and keys across: blue is positive, orange negative, clear is zero; "
        "each panel has its own scale. Layers and heads count from 1. `cosformer report` shows what is kept as "
        "RUN/maps.npz."
    )
    add = parser.add_argument
    add(
        "model",
        metavar="RUN|MODEL",
        help="a run's folder, a folder with a saved model and its tokenizer, or a hub name",
    )
    add("--text", required=True, help="what the model reads; - takes it from standard input")
    add(
        "-o",
        "--output",
        type=output_path,
        default=Path("maps.html"),
        metavar="FILE",
        help=f"{', '.join(FORMATS)} (default: %(default)s)",
    )
    add("--layer", type=int, metavar="N", help="this layer only")
    add("--head", type=int, metavar="N", help="this head only; with --layer one large map with its tokens")


def run(args: argparse.Namespace) -> int:
    if args.output.suffix not in FORMATS:
        raise ValueError(f"{args.output}: a name that ends in {', '.join(FORMATS)}")
    text = sys.stdin.read() if args.text == "-" else args.text
    if not text:
        raise ValueError("the text is empty; give at least one letter")
    model, tokenizer = load(args.model, "AutoModel")
    ids = tokenizer(text)["input_ids"]
    tokens = [tokenizer.decode([i]) for i in ids]
    weights = watched(model, ids)
    if weights[0].shape[-1] == len(tokens) + 1:
        tokens = ["<cls>", *tokens]  # the model's own vector before the sequence
    layers, heads = chosen(args.layer, len(weights), "--layer"), chosen(args.head, weights[0].shape[0], "--head")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    _WRITERS[args.output.suffix](
        args.output, f"{Path(args.model).name}: {_short(text)}", weights, tokens, layers, heads
    )
    print(args.output.resolve())
    return 0


def chosen(number: int | None, count: int, option: str) -> list[int]:
    """The places, from 0, of layer or head ``number``, from 1; None: all."""
    if number is None:
        return list(range(count))
    if not 1 <= number <= count:
        raise ValueError(f"{option} {number}: the model has 1 to {count}")
    return [number - 1]


def watched(model: Any, ids: list[int]) -> "list[np.ndarray]":
    """For each layer the weights [H,N,N]."""
    import torch

    from cosformer.models.attention_weights import model_weights

    return [w[0].float().cpu().numpy() for w in model_weights(model, torch.tensor([ids]))]


def _panels(weights: "list[np.ndarray]", layers: list[int], heads: list[int]) -> "list[Panel]":
    from cosformer.report.heat_maps import Panel

    return [Panel(f"layer {i + 1}, head {j + 1}", weights[i][j]) for i in layers for j in heads]


def _write_svg(path: Path, title: str, weights: Any, tokens: list[str], layers: list[int], heads: list[int]) -> None:
    from cosformer.report.heat_maps import heat_maps

    panels = _panels(weights, layers, heads)
    look = {"tokens": tokens, "columns": _COLUMNS, "ends": ("0", "largest of the panel")}
    figure = heat_maps(panels, name=path.stem, title=title, caption=title, **look)
    write_output(path, figure.data)


def _write_png(path: Path, title: str, weights: Any, tokens: list[str], layers: list[int], heads: list[int]) -> None:
    from cosformer.report.heat_maps import as_png

    columns = min(len(heads), 8)
    write_output(path, as_png(_panels(weights, layers, heads), title=title, tokens=tokens, columns=columns))


def _write_html(path: Path, title: str, weights: Any, tokens: list[str], layers: list[int], heads: list[int]) -> None:
    from cosformer.report.heat_maps import layer_figure
    from cosformer.report.page import write_maps

    columns = 2 if len(heads) <= 4 else _COLUMNS  # large enough for a phone
    figures = {f"Layer {i + 1}": layer_figure(weights[i][heads], tokens, i, heads, columns) for i in layers}
    write_maps(path, title, tokens, figures)


def _write_npz(path: Path, title: str, weights: Any, tokens: list[str], layers: list[int], heads: list[int]) -> None:
    import numpy as np

    with open_output(path) as file:
        np.savez_compressed(file, weights=np.stack([weights[i][heads] for i in layers]), tokens=np.array(tokens))


_WRITERS = {".html": _write_html, ".svg": _write_svg, ".png": _write_png, ".npz": _write_npz}


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}…"
