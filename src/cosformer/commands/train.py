"""``cosformer train``: a recipe, with any field of its experiment changed by name, into a run's folder."""

import argparse
import dataclasses
import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from itertools import groupby
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

from cosformer.experiment import EXPERIMENT_FILE, Experiment, Option
from cosformer.extras import require
from cosformer.lab.overview import worth_showing
from cosformer.recipes import RECIPES, recipe
from cosformer.terminal import paint, table

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = Path("runs")
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
# fields that are dicts: their keys are set one by one, as `--data.options.path FILE`
_DICTS = (("data", "options"), ("model", "attention_options"), ("model", "fields"))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "recipes:\n  "
        + "\n  ".join(RECIPES)
        + "\n\n`cosformer train RECIPE --help` shows every option with the recipe's own value, as --model.attention performer,"
        "\n--train.steps 500, --start RUN, or an option of the data set, --data.options.path FILE."
    )
    add = parser.add_argument
    add("recipe", metavar="RECIPE", nargs="?", help="one of those below; without one they are listed")
    add("rest", metavar="OPTIONS", nargs=argparse.REMAINDER, help="--run FOLDER, --quiet, and what to change")


def run(args: argparse.Namespace) -> int:
    if args.recipe is None:
        print("\n".join(f"{name:<28}{shorten(make().note, 90, placeholder=' …')}" for name, make in RECIPES.items()))
        print("cosformer train: name one of these recipes, as `cosformer train lm-stdlib-small`", file=sys.stderr)
        return EXIT_USAGE
    experiment, folder, quiet = parse(args.recipe, args.rest)
    if folder is None:
        folder = _same_on_all_processes(default_folder(experiment))
    elif (folder / EXPERIMENT_FILE).exists() and _rank() == 0:
        raise FileExistsError(
            f"{folder} holds a run already; continue it with `cosformer resume {folder}`, or give another --run"
        )
    require("train", "tensorboard" if experiment.train.tracker == "tensorboard" else "transformers")
    from cosformer.train import train

    return finish(lambda: train(experiment, folder, quiet=quiet), folder)


def parse(name: str, words: list[str]) -> tuple[Experiment, Path | None, bool]:
    """The experiment of recipe ``name`` with ``words`` applied, the run's folder (None: not given), and whether to be quiet.

    A word that is no option raises a ValueError that names the nearest.
    """
    plain = recipe(name)
    tyro = require("train", "tyro")
    plain, rest = _with_options(plain, words)

    @dataclasses.dataclass(frozen=True)
    class Settings:
        experiment: Annotated[Experiment, tyro.conf.arg(name="")]
        run: Annotated[
            Path | None, tyro.conf.arg(help="the run's new folder; else runs/RECIPE-ATTENTION-seedSEED, numbered")
        ] = None
        quiet: Annotated[bool, tyro.conf.arg(help="no progress bar")] = False

    description = (
        f"{plain.note} Keys of --data.options, --model.fields and --model.attention-options are given one by one, as"
        " --data.options.path FILE; those of the recipe that are not named stay."
    )
    # what tyro prints is kept: its colours ignore NO_COLOR, and its errors have a look of their own
    shown, said = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(shown), redirect_stderr(said):
            found = tyro.cli(
                Settings, args=rest, default=Settings(plain), prog=f"cosformer train {name}", description=description
            )
    except SystemExit as stopped:
        if not stopped.code:
            print(shown.getvalue(), end="")
            raise
        raise ValueError(f"{_sentence(said.getvalue())}; see `cosformer train {name} --help`") from None
    return found.experiment, found.run, found.quiet


def _sentence(box: str) -> str:
    """Tyro's error, a box of several parts, as one sentence: what is wrong, and the nearest option where it knows one."""
    lines = [line.strip("│| ") for line in box.splitlines()]
    inside = [line for line in lines[1:] if line]  # below the title
    parts = [list(part) for is_rule, part in groupby(inside, lambda line: not line.strip("─-╰╯╭╮+")) if not is_rule]
    wrong, *rest = parts or [[box.strip()]]
    near = [line.split()[0] for part in rest if part[0].startswith("Perhaps") for line in part if line.startswith("--")]
    meant = f"; did you mean {near[0]}?" if near else ""
    text = " ".join(wrong).rstrip(".")
    return text[:1].lower() + text[1:] + meant


def _with_options(experiment: Experiment, words: list[str]) -> tuple[Experiment, list[str]]:
    """The words ``--data.options.KEY VALUE`` and the like worked into ``experiment``, and the words that are left."""
    rest: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        place = next(((a, b) for a, b in _DICTS if _dashed(word).startswith(f"--{a}.{_dashed(b)}.")), None)
        if place is None:
            rest.append(word)
            continue
        key, equals, value = word.split(".", 2)[2].partition("=")
        if not equals:
            if not queue:
                raise ValueError(f"{word} needs a value")
            value = queue.pop(0)
        part = getattr(experiment, place[0])
        merged = getattr(part, place[1]) | {key.replace("-", "_"): _value(value)}
        experiment = dataclasses.replace(experiment, **{place[0]: dataclasses.replace(part, **{place[1]: merged})})
    return experiment, rest


def _dashed(word: str) -> str:
    return word.replace("_", "-")


def _value(text: str) -> Option:
    """As JSON where it is some (numbers, true, null, a list), with Python's spelling of the last three; else the text itself."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except json.JSONDecodeError:
        return text


def default_folder(experiment: Experiment) -> Path:
    """``runs/RECIPE-ATTENTION-seedSEED``, with a number behind it if that is taken."""
    name = f"{experiment.recipe}-{experiment.model.attention}-seed{experiment.train.seed}"
    taken = (name if number == 1 else f"{name}-{number}" for number in range(1, sys.maxsize))
    return next(RUNS / each for each in taken if not (RUNS / each).exists())


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _same_on_all_processes(folder: Path) -> Path:
    """Of several processes the first decides: the others might look when its folder is there already."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return folder
    import torch.distributed as dist

    store = dist.PrefixStore("cosformer", next(iter(dist.rendezvous("env://")))[0])
    if _rank() == 0:
        store.set("run", str(folder))
    return Path(store.get("run").decode())


def finish(work: "Callable[[], dict[str, Any]]", folder: Path) -> int:
    """Do the ``work`` of a run and say how it ended; returns the exit code."""
    from cosformer.train import TrainingFailed

    try:
        result = work()
    except TrainingFailed as error:
        print(f"{folder}: {error}", file=sys.stderr)
        return EXIT_FAILED
    if _rank() != 0:
        return 0
    if "scores" not in result:
        print(f"{folder}: stopped, {result['reason']}; continue with `cosformer resume {folder}`", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(score_table(result))
    print(
        f"{folder}: {result['steps']:,} updates, {result['parameters']:,} parameters, {result['seconds']:.0f} seconds"
    )
    return 0


def score_table(result: dict[str, Any]) -> str:
    """The final scores beside those of a model that ignores its input."""
    rows = []
    for name, scores in result["scores"].items():
        base, learned = result["baseline"][name], result["learned"][name]
        metric = result["score"]
        found, at_chance = (f"{x[k]:.4f} ± {x['error']:.4f}" for x, k in ((scores, metric), (base, "score")))
        beats = paint("yes", "green") if learned else paint("no", "red")
        others = ", ".join(f"{k} {v:.4g}" for k, v in worth_showing(scores).items() if k not in (metric, "error"))
        rows.append((name, found, f"{at_chance} ({base['name']})", beats, others))
    return table(("evaluation", str(result["score"]), "baseline", "beats it", "also"), rows)
