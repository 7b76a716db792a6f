"""``cosformer resume``: continue a run that was stopped or killed, or one that has finished for longer."""

import argparse
from pathlib import Path

from cosformer.commands.train import finish
from cosformer.experiment import load_experiment
from cosformer.suggest import check_model_path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="train up to update N, also a run that has finished: from its last checkpoint on with the learning rates "
        "of a schedule of N updates",
    )
    parser.add_argument(
        "--sequence-parallel",
        type=int,
        metavar="K",
        help="rows over K processes from here on, whatever it was before (default: as the run began)",
    )
    parser.add_argument(
        "--apply-changes",
        action="store_true",
        help="go on with what was edited in the run's experiment.json, and record it (default: refuse)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    check_model_path(str(args.run))
    load_experiment(args.run)  # says at once if this is no run
    from cosformer.train import resume

    return finish(
        lambda: resume(
            args.run,
            steps=args.steps,
            sequence_parallel=args.sequence_parallel,
            apply_changes=args.apply_changes,
            quiet=args.quiet,
        ),
        args.run,
    )
