"""Rows per second of `predict` from file to file, against a bare loop over the model, and its memory.

    python -m benchmarks.predict_throughput --json docs/results/predict.json --into docs/how-to/predict.md

The bare loop is handed the ids of all rows, sorted by length, and only pads them and calls the model. Both take turns,
on one thread. Before that, a smaller model answers 100,000 rows, for the memory.
"""

import argparse
import csv
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from cosformer import machine
from cosformer.data.encoding import with_specials
from cosformer.data.padding import pad_rows
from cosformer.data.vocabulary import Bytes
from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig
from cosformer.prediction.files import predict_file
from cosformer.prediction.model import Predictor
from cosformer.report.table import insert_into
from cosformer.train import train

MANY, LONGEST = 100_000, 256
MARKER = "predict throughput"


def run_of(folder: Path, layers: int, width: int) -> Path:
    """A classifier that has learnt next to nothing: what it costs does not depend on that."""
    folder.mkdir()
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": 2,
        "intermediate_size": 4 * width,
        "hidden_dropout_prob": 0.0,
    }
    fields: dict[str, Any] = {"head_dim": width // 2, "classifier_sizes": [width]}
    model = ModelConfig("lra_text", **sizes, fields=fields)
    data = DataConfig("sst2", {"path": str(folder), "max_length": LONGEST})
    train(
        Experiment("bench", "classify", data, model, TrainConfig(1, 2, 1e-3, tracker="none")),
        folder / "run",
        quiet=True,
    )
    return folder / "run"


def bare(predictor: Predictor, rows: list) -> float:
    started = time.perf_counter()
    with torch.inference_mode():
        for i in range(0, len(rows), predictor.batch):
            ids, mask = pad_rows(rows[i : i + predictor.batch], 0)
            inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask).long()}
            predictor.model(**inputs).logits.softmax(-1).tolist()
    return time.perf_counter() - started


def whole(predictor: Predictor, source: Path) -> float:
    started = time.perf_counter()
    predict_file(predictor, str(source), str(source.with_name("out.csv")))
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=12_500, help="rows of a turn (default: 12,500)")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each, after one to warm up (default: 8)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--into", type=Path, help="the page whose paragraph is replaced")
    args = parser.parse_args()
    results = measure(args.rows, args.rounds)
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(block(results))
    if args.into is not None:
        insert_into(args.into, MARKER, block(results))


def measure(count: int, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcdefgh ij klm nop ", k=rng.randint(20, 120))) for _ in range(count)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rows in (count, MANY):
            with open(folder / f"{rows}.csv", "w", newline="") as file:
                csv.writer(file).writerows([["text"], *([texts[i % count]] for i in range(rows))])
        small = Predictor(run_of(folder / "small", 1, 16))
        whole(small, folder / f"{count}.csv")
        before = peak()
        seconds = whole(small, folder / f"{MANY}.csv")
        memory = {"rows": MANY, "seconds": seconds, f"peak_mb_after_{count}": before, f"peak_mb_after_{MANY}": peak()}
        predictor = Predictor(run_of(folder / "large", 4, 128))
        vocabulary = Bytes(special=True)
        encoded = [with_specials(vocabulary.encode([text])[0], None, vocabulary, LONGEST)[0] for text in texts]
        encoded.sort(key=len)
        turns = [(whole(predictor, folder / f"{count}.csv"), bare(predictor, encoded)) for _ in range(rounds + 1)][1:]
    return {
        **machine.provenance(sys.argv[1:], "python -m benchmarks.predict_throughput"),
        "machine": machine.describe(1),
        "rows_per_turn": count,
        "memory": memory,
        "seconds": {"predict": [a for a, _ in turns], "bare": [b for _, b in turns]},
    }


def block(results: dict[str, Any]) -> str:
    """What the page shows."""
    seconds, memory, about = results["seconds"], results["memory"], results["machine"]
    rates = {name: results["rows_per_turn"] / statistics.median(times) for name, times in seconds.items()}
    ratios = [b / a for a, b in zip(seconds["predict"], seconds["bare"], strict=True)]
    before, after = (value for name, value in memory.items() if name.startswith("peak"))
    return (
        f"A model of 4 layers and width 128 answers {rates['predict']:,.0f} short rows per second from file to file; a "
        f"bare loop over the model answers {rates['bare']:,.0f}. The ratio is {statistics.median(ratios):.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f} in {len(ratios)} rounds). Peak memory is {before:,.0f} MB after "
        f"{results['rows_per_turn']:,} rows and {after:,.0f} MB after {memory['rows']:,} rows "
        f"({memory['seconds']:.0f} s, with a model of 1 layer and width 16).\n\n"
        f"Measured with `{results['command']}` on {results['date']}, commit {results['commit']}: "
        f"{about['cpu']} ({about['instructions']}), 1 thread, torch {about['torch']}."
    )


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


if __name__ == "__main__":
    main()
