"""``cosformer train``: a recipe, with any field of its experiment changed by name, into a run's folder."""

import argparse
import dataclasses
import os
import sys
from itertools import groupby
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from cosformer.commands.options import Parser, add_fields, add_key, option
from cosformer.experiment import EXPERIMENT_FILE, Experiment, load_experiment
from cosformer.extras import require
from cosformer.recipes import RECIPES, recipe
from cosformer.recipes.general import GENERAL, example, with_steps
from cosformer.renamed import RENAMED
from cosformer.report.overview import worth_showing
from cosformer.terminal import paint, table

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = Path("runs")
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
# the parts of an experiment, and the fields of each that are dicts
_PARTS = {"data": ("options",), "model": ("attention_options", "fields"), "train": ()}
# explained by --help; the others by --help-all
USUAL = {
    "start",
    "data.options",
    "data.length",
    "data.long",
    "model.attention",
    "model.num_hidden_layers",
    "model.hidden_size",
    "model.max_len",
}
USUAL |= {f"train.{name}" for name in ("steps", "batch", "lr", "warmup", "seed", "micro_batch", "precision")}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Trains a recipe. Every field of it is an option: --train.steps 500, --model.attention performer, "
        "--data.options.path FILE. `cosformer train RECIPE --help` explains them and shows the recipe's values."
    )
    families = [list(family) for _, family in groupby(RECIPES, lambda name: name.partition("-")[0])]
    parser.epilog = (
        f"recipes for your own files, named by --data PATH:\n  {' '.join(GENERAL)}\n\nother recipes:\n"
        + "\n".join(f"  {' '.join(names)}" for names in families)
    )
    add = parser.add_argument
    add(
        "recipe",
        metavar="RECIPE",
        nargs="?",
        help="one of those below, or an experiment's file (FILE.json); without one they are described",
    )
    add("rest", metavar="OPTIONS", nargs=argparse.REMAINDER, help="--run FOLDER, --quiet, and fields of the recipe")


def run(args: argparse.Namespace) -> int:
    if args.recipe is None:
        print("\n".join(f"{name:<28}{make.__doc__} Takes --data PATH." for name, (*_, make) in GENERAL.items()))
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
    """The experiment of recipe ``name`` with ``words`` applied, the run's folder (None: not given), and whether to be
    quiet.

    A word that is no option ends the program with an error that names the nearest.
    """
    plain = (
        load_experiment(Path(name)) if name.endswith(".json") else example(name) if name in GENERAL else recipe(name)
    )
    words = [_dashed(word) for word in words]
    _refuse_earlier_names(name, words)
    given = vars(_parser(name, plain, words).parse_args(words))
    run, quiet = given.pop("run"), given.pop("quiet")
    if name in GENERAL:
        return _own_recipe(name, given.pop("data"), given), run, quiet
    return _changed(plain, given), run, quiet


def _parser(name: str, plain: Experiment, words: list[str]) -> Parser:
    everything = "--help-all" in words
    parser = Parser(prog=f"cosformer train {name}", usage="%(prog)s [OPTIONS]", add_help=False)
    parser.description = plain.note.replace("%", "%%")
    run = parser.add_argument_group("run")
    run.add_argument("-h", "--help", action="help", help="show the most used options and exit")
    run.add_argument("--help-all", action="help", help="show every option and exit")
    run.add_argument("--run", type=Path, metavar="FOLDER", help="the run's folder (default: a new one in runs)")
    run.add_argument("--quiet", action="store_true", help="show no progress bar")
    if name in GENERAL:
        run.add_argument("--data", metavar="PATH", help="your files: a file, a folder or a glob in quotes")
    add_fields(run, plain, "", lambda field: everything or field in USUAL)
    for part in _PARTS:
        group = parser.add_argument_group(part)
        add_fields(group, getattr(plain, part), f"{part}.", lambda field: everything or field in USUAL)
        _add_given_keys(group, part, words)
    if not everything:
        hidden = sum(action.help == argparse.SUPPRESS for action in parser._actions)
        parser.epilog = f"--help-all explains the other {hidden} options of --data, --model and --train."
    return parser


def _own_recipe(name: str, path: str | None, given: dict[str, Any]) -> Experiment:
    """The general recipe ``name``, completed from the files in ``path`` and from what was ``given`` about them."""
    options = {key.removeprefix("data.options."): given[key] for key in given if key.startswith("data.options.")}
    path = path or options.get("path")
    if path is None:
        raise ValueError(f"{name} trains on your own files: give --data PATH; see `cosformer train {name} --help`")
    from cosformer.tasks.own_data import own_experiment

    def changed(found: Experiment) -> Experiment:
        if "train.steps" in given:
            found = dataclasses.replace(found, train=with_steps(found.train, given["train.steps"]))
        return _changed(found, given)

    settings = {key.removeprefix("data."): given.get(key) for key in ("data.length", "data.long", "start")}
    experiment, decisions = own_experiment(name, options | {"path": path}, changed, **settings)
    if _rank() == 0:
        print("\n  ".join([path, *decisions]), file=sys.stderr)
    return experiment


def _add_given_keys(group: Any, part: str, words: list[str]) -> None:
    """An option for each key of a dict that ``words`` name, e.g. ``--data.options.path``."""
    known = group._option_string_actions
    for word in dict.fromkeys(word.partition("=")[0] for word in words):
        for field in _PARTS[part]:
            start = f"{option(f'{part}.{field}')}."
            if word.startswith(start) and word not in known:
                add_key(group, f"{part}.{field}.{word.removeprefix(start).replace('-', '_')}")


def _changed(experiment: Experiment, given: dict[str, Any]) -> Experiment:
    """``experiment`` with the fields in ``given``, by their paths: ``train.steps``, ``data.options.path``."""
    changes: dict[str, Any] = {}
    for path, value in given.items():
        part, _, rest = path.partition(".")
        field, dot, key = rest.partition(".")
        if not field:
            changes[part] = value
        elif dot:
            fields = changes.setdefault(part, {})
            fields[field] = fields.get(field, getattr(getattr(experiment, part), field)) | {key: value}
        else:
            changes.setdefault(part, {})[field] = value
    parts = {
        part: dataclasses.replace(getattr(experiment, part), **fields)
        for part, fields in changes.items()
        if part in _PARTS
    }
    return dataclasses.replace(experiment, **changes | parts)


def _refuse_earlier_names(name: str, words: list[str]) -> None:
    earlier = {
        option(f"{part}.{old}"): option(f"{part}.{new}")
        for part in ("model", "train")
        for old, new in RENAMED[part].items()
    }
    for word in (word.partition("=")[0] for word in words):
        if word in earlier:
            raise ValueError(f"{word} is now called {earlier[word]}; see `cosformer train {name} --help`")


def _dashed(word: str) -> str:
    """``--train.eval_batch=3`` and ``--train.eval-batch=3`` are the same option."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def default_folder(experiment: Experiment) -> Path:
    """``runs/RECIPE-ATTENTION-seedSEED``, with a number appended if that folder exists."""
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
    early = ", stopped early" if result.get("stopped_early") else ""
    print(
        f"{folder}: {result['steps']:,} updates{early}, {result['parameters']:,} parameters, {result['seconds']:.0f} "
        "seconds"
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
        reader = result.get("text_baseline", {}).get(name)
        simple = "" if reader is None else f"{reader['score']:.4f} ± {reader['error']:.4f} ({reader['name']})"
        others = ", ".join(f"{k} {v:.4g}" for k, v in worth_showing(scores).items() if k not in (metric, "error"))
        rows.append((name, found, f"{at_chance} ({base['name']})", beats, simple, others))
    header = ("evaluation", str(result["score"]), "baseline", "beats it", "simple model", "also")
    shown = [i for i in range(len(header)) if header[i] != "simple model" or any(row[i] for row in rows)]
    return table(tuple(header[i] for i in shown), [tuple(row[i] for i in shown) for row in rows])
