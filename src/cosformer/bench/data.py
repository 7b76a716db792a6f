"""``cosformer bench data``: generators, BPE preparation against the tokenizers library, batches against a small model."""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LISTOPS_ROWS_PER_SECOND = 100_000 / 120
PATHFINDER_IMAGES_PER_SECOND = 200
BPE_SHARE = 0.8


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="text for the BPE part (default: the Python library's)"
    )
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FOLDER", help="tokenizer files (default: learn a BPE of 8000)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="repetitions of a timing (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append the results as JSON lines")


def run(args: argparse.Namespace) -> int:
    """Prints one line per result; 1 if one misses its mark."""
    missed = 0
    for result in results(args.text, args.tokenizer, args.repeats):
        result["cores"] = len(os.sched_getaffinity(0))
        met = result["value"] >= result["at_least"]
        missed += not met
        verdict = "ok" if met else "MISSED"
        print(
            f"{result['what']:<44} {result['value']:>10,.2f} {result['unit']:<22} at least {result['at_least']:,.2f}  {verdict}"
        )
        if args.out is not None:
            with open(args.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
    return 1 if missed else 0


def results(text: Path | None, tokenizer: Path | None, repeats: int) -> Iterator[dict[str, Any]]:
    """Every measurement: what, value, unit, and the least it should be."""
    yield _result("ListOps generator", listops_rate(), "rows/s", LISTOPS_ROWS_PER_SECOND)
    for level in ("easy", "intermediate", "hard"):
        yield _result(
            f"Pathfinder generator, {level}", pathfinder_rate(level), "images/s", PATHFINDER_IMAGES_PER_SECOND
        )
    yield _result("BPE preparation", bpe_share(text, tokenizer, repeats), "of the library's rate", BPE_SHARE)
    yield _result("batches of 32 x 1024 delivered", batch_ratio(repeats), "per training step", 1.0)


def _result(what: str, value: float, unit: str, at_least: float) -> dict[str, Any]:
    return {"what": what, "value": value, "unit": unit, "at_least": at_least}


def _seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def listops_rate(rows: int = 8_000) -> float:
    """Rows per second on all cores, start of the workers included."""
    from cosformer.data.listops_trees import generate

    return rows / _seconds(lambda: sum(1 for _ in generate(rows, seed=0)))


def pathfinder_rate(level: str, chunks: int = 8) -> float:
    """Images per second on all cores, start of the workers included."""
    from functools import partial

    from cosformer.data.parallel import in_order
    from cosformer.data.pathfinder import CHUNK, draw_chunk

    make = partial(draw_chunk, level=level, seed=0)
    return chunks * CHUNK / _seconds(lambda: sum(1 for _ in in_order(make, None, chunks)))


def bpe_share(text: Path | None, tokenizer: Path | None, repeats: int) -> float:
    """Our whole preparation (read the file, encode, write the arrays) as a share of the library's bare batch encoding."""
    from cosformer.data.archive import members, text_lines
    from cosformer.data.dataset import Writer
    from cosformer.data.subwords import Subwords
    from cosformer.data.wikitext import write_lines

    with tempfile.TemporaryDirectory() as folder:
        file = text or _library_text(Path(folder) / "text")

        def lines() -> Iterator[str]:
            for name, stream in members(file, lambda _: True):
                yield from (line for _, line in text_lines(stream, name))

        vocabulary = Subwords.load(tokenizer) if tokenizer else Subwords.train(lines(), 8_000)
        listed = list(lines())

        def prepare() -> None:
            with tempfile.TemporaryDirectory() as out, Writer(Path(out)) as writer:
                write_lines(writer, "train", lines(), vocabulary)

        def library() -> None:
            vocabulary.tokenizer.encode_batch(listed, add_special_tokens=False)

        library()  # fills the library's cache of words
        pairs = [(_seconds(library), _seconds(prepare)) for _ in range(repeats)]
    return statistics.median(theirs / ours for theirs, ours in pairs)


def _library_text(file: Path) -> Path:
    from cosformer.data import load_dataset

    flat = load_dataset("python").splits["train"].tokens.flat
    file.write_bytes((flat[flat <= 256] - 1).astype("uint8").tobytes())
    return file


def batch_ratio(repeats: int, steps: int = 8) -> float:
    """Batches of bytes delivered per training step of a small model: two layers, width 64, linear in the length."""
    import itertools

    import torch

    from cosformer.data import load_dataset
    from cosformer.data.batches import batches

    dataset = load_dataset("listops-small")
    model = _small_model(dataset.vocab_size)
    optimiser = torch.optim.Adam(model.parameters())

    def deliver() -> list[Any]:
        return list(itertools.islice(batches(dataset, "train", 32, shuffle=True, length=2000), steps))

    def train(delivered: list[Any]) -> None:
        for batch in delivered:
            logits = model(torch.from_numpy(batch.tokens[:, :1024]))
            loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.labels))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    train(deliver()[:1])
    ratios = []
    for _ in range(repeats):
        delivered: list[Any] = []
        loading = _seconds(lambda into=delivered: into.extend(deliver()))
        ratios.append(_seconds(lambda given=delivered: train(given)) / loading)
    return statistics.median(ratios)


def _small_model(vocab_size: int) -> Any:
    """Embedding, two blocks of elementwise mixing and feed-forward, mean, head: about the cheapest model one would train."""
    import torch
    from torch import nn

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(vocab_size, 64)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(2)
            )
            self.head = nn.Linear(64, 10)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embedding(tokens)
            for block in self.blocks:
                x = x + block(x) + x.mean(1, keepdim=True)
            return self.head(x.mean(1))

    return Small()
