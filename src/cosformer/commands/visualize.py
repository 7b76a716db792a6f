"""``cosformer visualize``: where each layer and head of a model looks, on a text of your own."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosformer.experiment import EXPERIMENT_FILE
from cosformer.extras import require
from cosformer.suggest import check_model_path

if TYPE_CHECKING:
    import numpy as np

    from cosformer.lab.render.heat_maps import Panel

FORMATS = (".html", ".svg", ".png", ".npz")
_COLUMNS = 4


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Draws the attention weights, queries down and keys across: blue is positive, orange negative, clear is zero; each"
        " panel has its own scale. Layers and heads count from 1. `cosformer report` shows what is kept as RUN/maps.npz."
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
        type=Path,
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
    check_model_path(args.model)
    require("hf", "transformers")
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    is_run = (Path(args.model) / EXPERIMENT_FILE).is_file()
    model, ids, tokens = _from_run(Path(args.model), text) if is_run else _from_model(args.model, text)
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


def encode(vocabulary: Any, text: str, specials: bool) -> list[int]:
    """The ids of ``text`` in a data set's vocabulary; ``specials``: between its start and end tokens, as rows are."""
    if hasattr(vocabulary, "encode"):
        ids = [int(i) for i in vocabulary.encode([text])[0]]
    elif hasattr(vocabulary, "index"):
        ids = [_word(vocabulary, word) for word in text.split()]
    else:
        raise ValueError("this run reads pixels, not text; there is nothing to draw for a text")
    if specials and vocabulary.bos_id is not None and vocabulary.eos_id is not None:
        ids = [vocabulary.bos_id, *ids, vocabulary.eos_id]
    return ids


def _word(vocabulary: Any, word: str) -> int:
    found = vocabulary.index.get(word, vocabulary.unk_id)
    if found is None:
        raise ValueError(f"the word {word!r} is not in the run's vocabulary: {' '.join(vocabulary.words[:20])} …")
    return found


def _from_run(run: Path, text: str) -> tuple[Any, list[int], list[str]]:
    import numpy as np

    from cosformer.experiment import load_experiment
    from cosformer.train import load_model
    from cosformer.train.vocabulary import load_vocabulary

    experiment = load_experiment(run)
    vocabulary = load_vocabulary(run)
    ids = encode(vocabulary, text, specials=experiment.task != "lm")
    return load_model(run), ids, [vocabulary.decode(np.array([i])) for i in ids]


def _from_model(name: str, text: str) -> tuple[Any, list[int], list[str]]:
    import transformers

    import cosformer.hf  # noqa: F401  (its models load by name)

    try:
        model = transformers.AutoModel.from_pretrained(name)
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(f"{name!r} is neither a run nor a model with its tokenizer: {error}") from error
    ids = tokenizer(text)["input_ids"]
    return model, ids, [tokenizer.decode([i]) for i in ids]


def _panels(weights: "list[np.ndarray]", layers: list[int], heads: list[int]) -> "list[Panel]":
    from cosformer.lab.render.heat_maps import Panel

    return [Panel(f"layer {i + 1}, head {j + 1}", weights[i][j]) for i in layers for j in heads]


def _write_svg(path: Path, title: str, weights: Any, tokens: list[str], layers: list[int], heads: list[int]) -> None:
    from cosformer.lab.render.heat_maps import heat_maps

    panels = _panels(weights, layers, heads)
    look = {"tokens": tokens, "columns": _COLUMNS, "ends": ("0", "largest of the panel")}
    figure = heat_maps(panels, name=path.stem, title=title, caption=title, **look)
    path.write_bytes(figure.data)


def _write_png(path: Path, title: str, weights: Any, tokens: list[str], layers: list[int], heads: list[int]) -> None:
    from cosformer.lab.render.heat_maps import as_png

    columns = min(len(heads), 8)
    path.write_bytes(as_png(_panels(weights, layers, heads), title=title, tokens=tokens, columns=columns))


def _write_html(path: Path, title: str, weights: Any, tokens: list[str], layers: list[int], heads: list[int]) -> None:
    from cosformer.lab.render.heat_maps import layer_figure, write_maps

    columns = 2 if len(heads) <= 4 else _COLUMNS  # large enough for a phone
    figures = {f"Layer {i + 1}": layer_figure(weights[i][heads], tokens, i, heads, columns) for i in layers}
    write_maps(path, title, tokens, figures)


def _write_npz(path: Path, title: str, weights: Any, tokens: list[str], layers: list[int], heads: list[int]) -> None:
    import numpy as np

    np.savez_compressed(path, weights=np.stack([weights[i][heads] for i in layers]), tokens=np.array(tokens))


_WRITERS = {".html": _write_html, ".svg": _write_svg, ".png": _write_png, ".npz": _write_npz}


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}…"
