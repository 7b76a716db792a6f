"""Turns the user's own files into an experiment: reads the data and calls a general recipe."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cosformer.data import load_dataset
from cosformer.data.arrays import holds_numbers, is_array
from cosformer.data.fasta import is_fasta
from cosformer.data.own_files import own_files
from cosformer.data.summary import Summary, summarize
from cosformer.experiment import EXPERIMENT_FILE, DataConfig, Experiment, ModelConfig, TrainConfig, load_experiment
from cosformer.recipes.general import GENERAL
from cosformer.tasks.tokenizer import START, with_tokenizer


def own_experiment(
    recipe: str,
    options: dict[str, Any],
    change: Callable[[Experiment], Experiment] = lambda found: found,
    *,
    start: str | None = None,
    length: int | None = None,
    long: str | None = None,
) -> tuple[Experiment, list[str]]:
    """The experiment of general recipe ``recipe`` for the files that ``options`` name (``path``, columns, splits,
    tokenizer), complete and independent of later changes to defaults; and what was found and decided, as lines for the
    user. ``change``: what the user decides instead."""
    name, fixed, make = GENERAL[recipe]
    if recipe in ("classify", "regress") and (options.get("second") or options.get("pairs")):
        score = " --data.options.target number" if recipe == "regress" else ""
        raise ValueError(f"{recipe} reads one text a row; for two, use the recipe match{score}")
    name = data_set_of(name, options)
    if name != "table":
        fixed = {option: value for option, value in fixed.items() if option != "tokenizer"}
    if name == "sequences" and "target" not in fixed:
        fixed = fixed | {"target": None}
    if start:
        fixed = fixed | ({"tokenizer": START} if name in ("texts", "table") else _symbols_of(start))
    options = fixed | options
    in_blocks = name == "texts" or options.get("target") in (None, "next")
    long = long or ("refuse" if in_blocks else "cut")  # a stream has no rows that could be too long
    given = DataConfig(name, options, length, long=long)  # pyright: ignore[reportArgumentType]
    # of the experiment nothing but data and start is read here
    before = Experiment(recipe, recipe, given, ModelConfig("roberta_base"), TrainConfig(1, 1, 0.0), start)
    encoder = _encoder(start) if start else None
    data = with_tokenizer(before)
    dataset = load_dataset(name, **data.options)
    summary = summarize(dataset)
    chosen = data.options | dict(dataset.choices) | {"sha256": dataset.options["sha256"]}
    if encoder is not None and data.length is None:
        # what the encoder has positions for; more only where it is asked for
        kind = encoder["model_type"]
        # RoBERTa's table begins with two rows that are no positions
        most = encoder["max_position_embeddings"] - (2 if kind != "cosformer" and "roberta" in kind else 0)
        data = dataclasses.replace(data, length=None if in_blocks else min(summary.longest, most))
    experiment = make(summary, dataclasses.replace(data, options=chosen), start)
    if encoder is not None and encoder["model_type"] != "cosformer":
        # softmax, unless the checkpoint has been converted; a small rate, as its weights know a lot already
        model = ModelConfig(experiment.model.preset, attention=encoder.get("attention", "softmax"))
        experiment = dataclasses.replace(experiment, model=model, train=dataclasses.replace(experiment.train, lr=5e-5))
    experiment = change(experiment)
    return experiment, describe(experiment, dataset, summary)


def data_set_of(name: str, options: dict[str, Any]) -> str:
    """The data set that reads the files of a recipe: the recipe's own, ``name``, or, as their endings say, one of
    sequences that are no text; a table is one of series where the option ``series`` names the column that groups its
    rows."""
    files = {file.name for file in own_files(str(options["path"]), lambda name: is_array(name) or is_fasta(name))}
    if any(is_fasta(name) for name in files):
        return "sequences"
    if any(is_array(name) for name in files):
        return "series" if holds_numbers(str(options["path"])) else "sequences"
    return "series" if name == "table" and "series" in options else name


def _encoder(start: str) -> dict[str, Any]:
    """What config.json says of the model that ``start`` names: the best weights of a run, or a checkpoint."""
    from transformers import PreTrainedConfig

    run = Path(start)
    try:
        found, _ = PreTrainedConfig.get_config_dict(run / "best" if (run / EXPERIMENT_FILE).is_file() else start)
    except (OSError, ValueError, RecursionError) as error:
        raise FileNotFoundError(f"start={start!r} is neither a run with weights nor a model: {error}") from None
    return found


def _symbols_of(start: str) -> dict[str, Any]:
    """What the run ``start`` says of the meaning of ids: the data to go on with must mean the same."""
    if not (Path(start) / EXPERIMENT_FILE).is_file():
        return {}
    before = load_experiment(Path(start)).data.options
    return {name: before[name] for name in ("alphabet", "num_ids") if name in before}


def describe(experiment: Experiment, dataset: Any, summary: Summary) -> list[str]:
    """What was found in the data, what was guessed and what was decided."""
    lines = []
    for option, value in dataset.choices.items():
        of_table = experiment.data.name == "table" or (experiment.data.name == "series" and option != "channels")
        lines.append(f"{option}: {'column ' if of_table else ''}{value!r}")
    train = dataset.splits["train"]
    if summary.classes is not None:
        # tags are kept as class + 1, with 0 where a token has none
        taught = train.labels if train.marks is None else train.marks.flat.astype(int) - (experiment.task == "tag")
        counts = Counter(taught.tolist())
        shown = ", ".join(f"{name} {counts[i]:,}" for i, name in enumerate(summary.classes[:10]))
        more = f" and {len(summary.classes) - 10} more" if len(summary.classes) > 10 else ""
        lines.append(f"{len(summary.classes)} classes in training: {shown}{more}")
    elif experiment.task == "regress" and train.labels is not None:
        lines.append(
            f"numbers in training: {train.labels.min():g} to {train.labels.max():g}, mean {train.labels.mean():g}"
        )
    if experiment.data.name in ("texts", "table"):
        lines.append(f"tokenizer: {experiment.data.options.get('tokenizer', 'bytes')}")
    rows = ", ".join(f"{name} {count:,}" for name, count in summary.rows.items())
    stream = experiment.task in ("lm", "mlm")
    what = {"table": "rows", "series": "series", "sequences": "stretches" if stream else "sequences"}
    unit = "steps" if experiment.data.name == "series" else "tokens"
    lines.append(
        f"{what.get(experiment.data.name, 'lines')}: {rows}; {summary.tokens:,} training {unit}, median "
        f"{summary.median:,}, longest {summary.longest:,}"
    )
    lines += [
        f"warning: {count:,} {note}" for note, count in dataset.notes.items() if count and note.startswith("rows")
    ]
    if experiment.task not in ("lm", "mlm", "forecast") and summary.longest > (
        experiment.data.length or summary.longest
    ):
        columns = [column for split in dataset.splits.values() for column in split.documents]
        longer = sum(int((column.lengths > experiment.data.length).sum()) for column in columns)
        fate = {"cut": "are cut there", "windows": "are read in overlapping windows", "refuse": "are refused"}
        lines.append(
            f"{longer:,} rows are longer than {experiment.data.length:,} tokens and {fate[experiment.data.long]}"
            " (--data.long cut, windows or refuse)"
        )
    model, train = experiment.model, experiment.train
    size = (
        f"{model.num_hidden_layers} layers of width {model.hidden_size}"
        if model.num_hidden_layers
        else f"weights of {experiment.start}"
    )
    lines.append(
        f"{size}; {train.steps:,} updates of {train.batch} rows of at most {experiment.data.length:,} {unit}, peak "
        f"learning rate {train.lr:g}"
    )
    return lines
