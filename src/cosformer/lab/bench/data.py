"""``cosformer bench data``: generators, BPE preparation against the tokenizers library, batches against a small model."""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cosformer.lab.bench.results import Row

# 100,000 ListOps rows in two minutes; 200 Pathfinder images a second; 80 % of the library's own rate; no step waits for data
LISTOPS_GOAL, PATHFINDER_GOAL, BPE_GOAL, BATCH_GOAL = 100_000 / 120, 200, 0.8, 1.0
THREADS = 2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Generators on all cores, in rows per second; the rest as ratios within one run, with quartiles."
    )
    add = parser.add_argument
    add("--text", type=Path, metavar="FILE", help="text for the BPE part (default: the Python library's sources)")
    add("--tokenizer", type=Path, metavar="FOLDER", help="a tokenizer's files (default: a BPE of 8000 is learnt)")
    add("--repeats", type=int, default=5, help="of each timing (default: %(default)s)")
    add("--json", metavar="FILE", help="write the results there; '-' prints them instead of a table")


def run(args: argparse.Namespace) -> int:
    """Prints the table; 1 if a goal is missed."""
    from cosformer import machine, terminal
    from cosformer.lab.bench import results

    if args.repeats < 2:
        raise ValueError(f"--repeats {args.repeats}: at least 2, for a spread")
    found = list(rows(args.text, args.tokenizer, args.repeats))
    if args.json:
        settings = {"text": "given" if args.text else "python", "repeats": args.repeats}
        command = ["bench", "data", *([] if args.repeats == 5 else ["--repeats", str(args.repeats)])]
        new = results.document(found, machine.describe(THREADS), machine.provenance(command), settings)
        text = json.dumps(new, indent=1) + "\n"
        if args.json == "-":
            print(text, end="")
        else:
            Path(args.json).write_text(text, encoding="utf-8")
    if args.json != "-":
        cells = [
            [
                r.what,
                _figure(r.value),
                f"{_figure(r.low)} to {_figure(r.high)}",
                r.unit,
                f"at least {_figure(r.goal)}",
                _reached(r),
            ]
            for r in found
        ]
        print(terminal.table(["", "median", "quartiles", "unit", "wanted", "reached"], cells))
    return 0 if all(row.met for row in found) else 1


def _reached(row: "Row") -> str:
    return "yes" if row.met else "no"


def _figure(value: float | None) -> str:
    return "not run" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def rows(text: Path | None, tokenizer: Path | None, repeats: int) -> Iterator["Row"]:
    """Every measurement, as it is made."""
    from cosformer.lab.bench.measure import spread
    from cosformer.lab.bench.results import Row, measured

    def row(name: str, what: str, unit: str, goal: float, samples: list[float]) -> Row:
        return measured(Row(f"data/{name}", what, unit, "higher", goal=goal), spread(samples))

    yield row("listops", "ListOps generator", "rows/s", LISTOPS_GOAL, [_listops_rate() for _ in range(repeats)])
    for level in ("easy", "intermediate", "hard"):
        samples = [_pathfinder_rate(level) for _ in range(repeats)]
        yield row(f"pathfinder/{level}", f"Pathfinder generator, {level}", "images/s", PATHFINDER_GOAL, samples)
    yield row("bpe", "BPE preparation", "of the library's rate", BPE_GOAL, _bpe_shares(text, tokenizer, repeats))
    yield row("batches", "batches of 32 x 1024", "per training step", BATCH_GOAL, _batch_ratios(repeats))


def _seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _listops_rate(rows: int = 8_000) -> float:
    """Rows per second on all cores, start of the workers included."""
    from cosformer.data.listops_trees import generate

    return rows / _seconds(lambda: sum(1 for _ in generate(rows, seed=0)))


def _pathfinder_rate(level: str, chunks: int = 4) -> float:
    """Images per second on all cores, start of the workers included."""
    from cosformer.data.parallel import in_order
    from cosformer.data.pathfinder import CHUNK, draw_chunk

    make = partial(draw_chunk, level=level, seed=0)
    return chunks * CHUNK / _seconds(lambda: sum(1 for _ in in_order(make, None, chunks)))


def _bpe_shares(text: Path | None, tokenizer: Path | None, repeats: int) -> list[float]:
    """Our whole preparation (read the file, encode, write the arrays) as a share of the library's bare batch encoding."""
    from cosformer.data.archive import members, text_lines
    from cosformer.data.dataset import Writer
    from cosformer.data.subwords import Subwords
    from cosformer.data.wikitext import write_lines
    from cosformer.lab.bench.measure import interleaved

    with tempfile.TemporaryDirectory() as folder:
        file = text or _library_text(Path(folder) / "text")

        def lines() -> Iterator[str]:
            for name, stream in members(file, lambda _: True):
                yield from (line for _, line in text_lines(stream, name))

        vocabulary = Subwords.load(tokenizer) if tokenizer else Subwords.train(lines(), 8_000)
        listed = list(lines())

        def ours() -> None:
            with tempfile.TemporaryDirectory() as out, Writer(Path(out)) as writer:
                write_lines(writer, "train", lines(), vocabulary)

        def library() -> None:
            vocabulary.tokenizer.encode_batch(listed, add_special_tokens=False)

        samples = interleaved({"library": library, "ours": ours}, repeats=repeats)
    return [theirs / our for theirs, our in zip(samples["library"], samples["ours"], strict=True)]


def _library_text(file: Path) -> Path:
    """The default text; ten lines of source are joined into one, which is about the length of WikiText's lines."""
    from cosformer.data import load_dataset

    flat = load_dataset("python").splits["train"].tokens.flat
    source = (flat[flat <= 256] - 1).astype("uint8").tobytes().splitlines()
    file.write_bytes(b"\n".join(b" ".join(source[i : i + 10]) for i in range(0, len(source), 10)))
    return file


def _batch_ratios(repeats: int, steps: int = 4) -> list[float]:
    """Batches delivered in the time of one training step of a small model (two layers, width 64, linear attention)."""
    import numpy as np
    import torch

    from cosformer.data import load_dataset
    from cosformer.data.padding import pad_rows
    from cosformer.lab.bench.measure import interleaved
    from cosformer.models.classification import CosformerForSequenceClassification
    from cosformer.models.config import CosformerConfig

    torch.set_num_threads(THREADS)
    dataset = load_dataset("pathfinder-small")
    config = CosformerConfig(
        vocab_size=dataset.vocab_size,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=1024,
        pooling="mean",
    )
    model = CosformerForSequenceClassification(config)
    optimiser = torch.optim.Adam(model.parameters())

    split = dataset.splits["train"]

    def deliver() -> list[tuple[torch.Tensor, torch.Tensor]]:
        order = np.random.default_rng(0).permutation(len(split))[: 32 * steps].reshape(steps, 32)
        return [
            (
                torch.from_numpy(pad_rows([split.tokens[i] for i in rows], dataset.pad_id)[0]),
                torch.from_numpy(split.labels[rows]),
            )
            for rows in order
        ]

    ready = deliver()

    def train() -> None:
        for tokens, labels in ready:
            loss = model(tokens, labels=labels).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    samples = interleaved({"train": train, "deliver": deliver}, repeats=repeats)
    return [step / load for step, load in zip(samples["train"], samples["deliver"], strict=True)]
