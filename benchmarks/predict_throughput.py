"""Rows a second of `predict` from file to file against the bare model's loop: ``python -m
benchmarks.predict_throughput``.

The bare loop has the ids of all rows, sorted by length, in its hands, and only pads and calls the model; the two by
turns, on one thread, in seconds of the processor, which a busy machine does not change much. Afterwards 100,000 rows by
a smaller model, for the memory.
"""

import csv
import random
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from cosformer.data.encoding import with_specials
from cosformer.data.padding import pad_rows
from cosformer.data.vocabulary import Bytes
from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig
from cosformer.prediction.files import predict_file
from cosformer.prediction.model import Predictor
from cosformer.train import train

ROUNDS, ROWS, MANY, LONGEST = 5, 2_000, 100_000, 256


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
    started = time.process_time()
    with torch.inference_mode():
        for i in range(0, len(rows), predictor.batch):
            ids, mask = pad_rows(rows[i : i + predictor.batch], 0)
            inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask).long()}
            predictor.model(**inputs).logits.softmax(-1).tolist()
    return time.process_time() - started


def whole(predictor: Predictor, source: Path) -> float:
    started = time.process_time()
    predict_file(predictor, str(source), str(source.with_name("out.csv")))
    return time.process_time() - started


def main() -> None:
    torch.set_num_threads(1)
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcdefgh ij klm nop ", k=rng.randint(20, 120))) for _ in range(ROWS)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        predictor = Predictor(run_of(folder / "large", 4, 128))
        for count in (ROWS, MANY):
            with open(folder / f"{count}.csv", "w", newline="") as file:
                csv.writer(file).writerows([["text"], *([texts[i % ROWS]] for i in range(count))])
        vocabulary = Bytes(special=True)
        rows = [with_specials(vocabulary.encode([text])[0], None, vocabulary, LONGEST)[0] for text in texts]
        rows.sort(key=len)
        turns = [(whole(predictor, folder / f"{ROWS}.csv"), bare(predictor, rows)) for _ in range(ROUNDS + 1)][1:]
        ratios = [b / a for a, b in turns]
        rates = [ROWS / statistics.median(column) for column in zip(*turns, strict=True)]
        print(f"predict {rates[0]:,.0f} rows a second of the processor, the bare loop {rates[1]:,.0f}")
        print(
            f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), {ROUNDS} rounds by turns"
        )
        small = Predictor(run_of(folder / "small", 1, 16))
        whole(small, folder / f"{ROWS}.csv")
        before = peak()
        seconds = whole(small, folder / f"{MANY}.csv")
        print(
            f"{MANY:,} rows: {seconds:.0f} s; peak memory {before:,.0f} MB after {ROWS:,} rows, {peak():,.0f} MB after "
            "all"
        )


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


if __name__ == "__main__":
    main()
