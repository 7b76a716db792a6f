"""Tasks: data, head, loss and score in one object, one file each, one table, one building function."""

from importlib import import_module
from typing import TYPE_CHECKING

from cosformer.experiment import Experiment
from cosformer.plugins import register
from cosformer.suggest import unknown

if TYPE_CHECKING:
    from cosformer.tasks.base import Task

__all__ = [
    "TASKS",
    "build_task",
    "register_task",
    "task_class",
]

# name -> (module, class, one line). The module is imported when its task is built.
TASKS: dict[str, tuple[str, str, str]] = {
    "lm": ("cosformer.tasks.lm", "LM", "the next token of a stream, left to right"),
    "mlm": ("cosformer.tasks.mlm", "MLM", "masked tokens of packed lines, from both sides"),
    "classify": (
        "cosformer.tasks.classify",
        "Classify",
        "the class of a sequence: a text, a pair in one row, an image",
    ),
    "recall": ("cosformer.tasks.recall", "Recall", "the value that came with a key, when the key comes again"),
    "regress": ("cosformer.tasks.regress", "Regress", "a number for a sequence"),
    "multilabel": ("cosformer.tasks.multilabel", "Multilabel", "any number of classes of a sequence"),
    "tag": ("cosformer.tasks.tag", "Tag", "a class for each word of a sequence"),
    "forecast": ("cosformer.tasks.forecast", "Forecast", "the next steps of a series of readings"),
    "seq2seq": ("cosformer.tasks.seq2seq", "Seq2seq", "a text written from another"),
    "similarity": (
        "cosformer.tasks.similarity",
        "Similarity",
        "a number for a pair of documents, each encoded on its own",
    ),
    "match": ("cosformer.tasks.match", "Match", "the class of a pair of documents, each encoded on its own"),
}


def task_class(name: str) -> "type[Task]":
    """The class of the task ``name``; an unknown name raises and lists the known ones."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    module, attribute, _ = TASKS[name]
    return getattr(import_module(module), attribute)


def register_task(name: str, cls: "type[Task]", summary: str = "") -> None:
    """Make a task of your own known as ``name``; ``cls`` is a class at the top of its module."""
    register("task", TASKS, name, cls, summary)


def build_task(experiment: Experiment) -> "Task":
    """The task of ``experiment``, its data loaded (and prepared, the first time)."""
    from cosformer.tasks.tokenizer import with_tokenizer

    return task_class(experiment.task)(with_tokenizer(experiment), experiment.train.seed)
