"""From the user's own files to a complete experiment: the data is read, a general recipe decides the rest, and both are told."""

import dataclasses
from collections import Counter
from typing import Any

from cosformer.data import load_dataset
from cosformer.data.summary import Summary, summarize
from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig
from cosformer.recipes.general import GENERAL
from cosformer.tasks.tokenizer import START, with_tokenizer


def own_experiment(
    recipe: str,
    options: dict[str, Any],
    *,
    start: str | None = None,
    length: int | None = None,
    long: str | None = None,
) -> tuple[Experiment, list[str]]:
    """The experiment of general recipe ``recipe`` for the files that ``options`` name (``path``, columns, splits, tokenizer), complete
    and independent of later changes to defaults; and what was found and decided, as lines for the user."""
    name, fixed, make = GENERAL[recipe]
    options = fixed | options
    long = long or ("refuse" if name == "texts" else "cut")  # texts come in blocks: nothing is too long
    given = DataConfig(name, ({"tokenizer": START} if start else {}) | options, length, long=long)  # pyright: ignore[reportArgumentType]
    # of the experiment nothing but data and start is read here
    before = Experiment(recipe, recipe, given, ModelConfig("roberta_base"), TrainConfig(1, 1, 0.0), start)
    data = with_tokenizer(before)
    dataset = load_dataset(name, **data.options)
    summary = summarize(dataset)
    chosen = data.options | dict(dataset.choices) | {"sha256": dataset.options["sha256"]}
    experiment = make(summary, dataclasses.replace(data, options=chosen), start)
    return experiment, describe(experiment, dataset, summary)


def describe(experiment: Experiment, dataset: Any, summary: Summary) -> list[str]:
    """What was found in the data, what was guessed and what was decided."""
    lines = []
    for option, value in dataset.choices.items():
        lines.append(f"{option}: {'column ' if experiment.data.name == 'table' else ''}{value!r}")
    train = dataset.splits["train"]
    if summary.classes is not None:
        # tags are kept as class + 1, with 0 where a token has none
        taught = train.labels if train.marks is None else train.marks.flat.astype(int) - (experiment.task == "tag")
        counts = Counter(taught.tolist())
        shown = ", ".join(f"{name} {counts[i]:,}" for i, name in enumerate(summary.classes[:10]))
        more = f" and {len(summary.classes) - 10} more" if len(summary.classes) > 10 else ""
        lines.append(f"{len(summary.classes)} classes in training: {shown}{more}")
    elif train.labels is not None:
        lines.append(
            f"numbers in training: {train.labels.min():g} to {train.labels.max():g}, mean {train.labels.mean():g}"
        )
    rows = ", ".join(f"{name} {count:,}" for name, count in summary.rows.items())
    what = "rows" if experiment.data.name == "table" else "lines"
    lines.append(
        f"{what}: {rows}; {summary.tokens:,} training tokens, median {summary.median:,}, longest {summary.longest:,}"
    )
    lines += [
        f"warning: {count:,} {note}" for note, count in dataset.notes.items() if count and note.startswith("rows")
    ]
    if experiment.data.name != "texts" and summary.longest > (experiment.data.length or summary.longest):
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
        f"{size}; {train.steps:,} updates of {train.batch} rows of at most {experiment.data.length:,} tokens, peak learning rate"
        f" {train.lr:g}"
    )
    return lines
