"""The model card of a run: its data, training and scores, without local paths and without rows of the data."""

import sys
from pathlib import Path
from typing import Any

import torch

from cosformer import machine
from cosformer._version import __version__
from cosformer.experiment import Experiment
from cosformer.models.card import model_card
from cosformer.models.config import AUTO_CLASSES
from cosformer.output_file import write_output
from cosformer.tasks.base import Task
from cosformer.tasks.classify import Classify
from cosformer.tasks.scores import MOST_CLASSES_SHOWN
from cosformer.terminal import markdown

CARD_FILE = "README.md"
_PIPELINES = {
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForTokenClassification": "token-classification",
}


def write_run_card(
    folder: Path,
    experiment: Experiment,
    task: Task,
    parameters: int,
    best: dict[str, Any] | None,
    result: dict[str, Any] | None = None,
) -> None:
    """Write the model card of the weights in ``folder``; ``result`` is set for a finished run."""
    auto_class = next((auto for auto, ours in AUTO_CLASSES.items() if ours == task.head.__name__), "AutoModel")
    steps = experiment.train.steps if result is None else result["steps"]
    parts = [
        markdown(["", ""], _facts(experiment, task, parameters, steps), numeric=False),
        *_scores(task, best, result),
    ]
    if auto_class in _PIPELINES and (folder / "tokenizer.json").is_file():
        cut = ", truncation=True" if auto_class == "AutoModelForSequenceClassification" else ""
        call = f'pipeline("{_PIPELINES[auto_class]}", model="PATH"{cut})'
        parts.append(f"After `import cosformer.hf` transformers' own `{call}` takes it, too.")
    data = f"`{experiment.data.name}`"
    title = f"{experiment.recipe}: {data} with {experiment.model.attention} attention"
    limits = "Intended use, licence of the data and limits: not stated. Fill this in before sharing the model."
    card = model_card(title, "\n\n".join(parts), auto_class, "linear-attention", missing=limits)
    write_output(folder / CARD_FILE, str(card))


def _facts(experiment: Experiment, task: Task, parameters: int, steps: int) -> list[list[str]]:
    data, train, dataset = experiment.data, experiment.train, task.dataset
    early = f" (stopped early, of {train.steps:,})" if steps < train.steps else ""
    options = ", ".join(f"{key}={_shown(value)}" for key, value in data.options.items())
    rows = ", ".join(f"{name} {len(split):,}" for name, split in dataset.splits.items())
    facts = [
        ["task", experiment.task],
        ["data", f"`{data.name}`" + (f" ({options})" if options else "")],
        ["rows", rows],
        ["longest row", f"{task.length:,} tokens of {dataset.vocab_size:,} kinds; {_longer(experiment, task)}"],
        ["attention", f"`{experiment.model.attention}`"],
        ["parameters", f"{parameters:,}"],
        ["training", f"{steps:,} updates{early} of {train.batch} rows, {train.optimizer}, learning rate {train.lr:g}"],
        ["seed", str(train.seed)],
        ["command", f"`{machine.without_folders(['cosformer', *sys.argv[1:]])}`"],
        ["made with", f"cosformer {__version__}, torch {torch.__version__}"],
    ]
    if dataset.class_names is not None:
        facts.insert(3, ["classes", ", ".join(dataset.class_names)])
    if experiment.start is not None:
        facts.insert(-4, ["started from", f"`{_shown(experiment.start)}`"])
    return facts


def _scores(task: Task, best: dict[str, Any] | None, result: dict[str, Any] | None) -> list[str]:
    parts = []
    if best is not None:
        chosen = "the last ones, as there is no validation split to choose by; on the split"
        if task.selection != "test":
            chosen = f"chosen by `{task.metric}` on the split"
        parts.append(
            f"These are the weights after update {best['step']:,}, {chosen} `{task.selection}`: {best['score']:.4f}."
        )
    if result is not None:
        baselines = [result[kind] for kind in ("baseline", "text_baseline") if kind in result]
        rows = [
            [
                name,
                f"{found[task.metric]:.4f} ± {found['error']:.4f}",
                *(f"{each[name]['score']:.4f}" for each in baselines),
            ]
            for name, found in result["scores"].items()
        ]
        names = [f"baseline: {next(iter(each.values()))['name']}" for each in baselines]
        parts.append(f"Scores of the run's last weights, those after update {result['steps']:,}, ± one standard error:")
        parts.append(markdown(["evaluation", task.metric, *names], rows, numeric=False))
        for name, confusion in result.get("confusion", {}).items():
            classes = confusion["classes"]
            if len(classes) <= MOST_CLASSES_SHOWN:
                pairs = zip(classes, confusion["counts"], strict=True)
                counts = [[label, *(f"{n:,}" for n in row)] for label, row in pairs]
                parts.append(f"Confusions on `{name}`, a row for each true class, a column for each predicted one:")
                parts.append(markdown(["", *classes], counts, numeric=False))
    return parts


def _longer(experiment: Experiment, task: Task) -> str:
    """What the run does with rows that are longer than the model reads."""
    if not isinstance(task, Classify):
        return "longer data is read in stretches of that length"
    read = {"windows": "read in overlapping windows, whose answers are averaged", "cut": "cut", "refuse": "refused"}
    return f"longer rows are {read[experiment.data.long]}"


def _shown(value: Any) -> str:
    return machine.without_folders([value]) if isinstance(value, str) else str(value)
