"""``cosformer eval``: score a run's model again, also by evaluations that it did not make itself."""

import argparse
import json
from pathlib import Path
from typing import Any

from cosformer.experiment import load_experiment
from cosformer.report.overview import worth_showing
from cosformer.suggest import check_model_path
from cosformer.terminal import number, table


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--splits",
        metavar="NAME,...",
        help="what to score, as test or, for language models, test@400: each token with a context of at least 400 "
        "(default: all that the run scores at its end)",
    )
    parser.add_argument(
        "--weights",
        choices=("best", "last"),
        help="those that were best on the way, or the last, which a run is scored by (default: last)",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    check_model_path(str(args.run))
    load_experiment(args.run)  # says at once if this is no run
    from cosformer.train import evaluate_with_confusions

    names = None if args.splits is None else [name.strip() for name in args.splits.split(",") if name.strip()]
    scores, confusions = evaluate_with_confusions(args.run, names, args.weights)
    if args.json:
        with_confusions: dict[str, dict[str, Any]] = {
            name: found | ({"confusion": confusions[name]} if name in confusions else {})
            for name, found in scores.items()
        }
        print(json.dumps(with_confusions, indent=1))
        return 0
    scores = {name: worth_showing(found) for name, found in scores.items()}
    metrics = list(dict.fromkeys(metric for found in scores.values() for metric in found))
    rows = [(name, *(number(found[m]) if m in found else "" for m in metrics)) for name, found in scores.items()]
    print(table(("evaluation", *metrics), rows))
    for name, confusion in confusions.items():
        print(f"\n{_confusion_table(name, confusion)}")
    return 0


def _confusion_table(name: str, confusion: dict[str, Any]) -> str:
    from cosformer.tasks.scores import MOST_CLASSES_SHOWN

    classes = confusion["classes"]
    if len(classes) > MOST_CLASSES_SHOWN:
        return f"{name}: the confusion matrix of {len(classes)} classes is in the output of --json"
    rows = [(label, *(f"{n:,}" for n in counts)) for label, counts in zip(classes, confusion["counts"], strict=True)]
    return table((f"{name}: true class, predicted as", *classes), rows)
