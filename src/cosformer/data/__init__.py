"""Data sets: one family per file, one table, one loading function, one return type (:class:`Dataset`)."""

import inspect
from collections.abc import Callable
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any, get_args

from cosformer.plugins import register
from cosformer.suggest import unknown

if TYPE_CHECKING:
    from cosformer.data.dataset import Dataset, Ragged, Split

# name -> (module, function that loads it, a line for `cosformer data list`); the module is imported on first use
DATASETS: dict[str, tuple[str, str, str]] = {
    "python": ("cosformer.data.python", "python", "LM and MLM: bytes of the Python library's sources (no download)"),
    "wikitext2": ("cosformer.data.wikitext", "wikitext2", "LM and MLM: WikiText-2, words, bytes or BPE"),
    "wikitext103": ("cosformer.data.wikitext", "wikitext103", "LM and MLM: WikiText-103, words, bytes or BPE"),
    "listops": ("cosformer.data.listops", "listops", "Long Range Arena ListOps, generated or read (no download)"),
    "listops-small": ("cosformer.data.listops", "listops_small", "ListOps, a few thousand rows made in seconds"),
    "recall": ("cosformer.data.recall", "recall", "recall of values by their keys, made here (no download)"),
    "text": ("cosformer.data.imdb", "text", "Long Range Arena Text: IMDB reviews as bytes"),
    "retrieval": ("cosformer.data.aan", "retrieval", "Long Range Arena Retrieval: pairs of papers (AAN) as bytes"),
    "image": ("cosformer.data.cifar10", "image", "Long Range Arena Image: CIFAR-10, grey, 1024 pixels in a row"),
    "pathfinder": ("cosformer.data.pathfinder", "pathfinder", "Long Range Arena Pathfinder 32x32, made or read"),
    "pathfinder-small": ("cosformer.data.pathfinder", "pathfinder_small", "Pathfinder with a few thousand images"),
    "qqp": ("cosformer.data.glue", "qqp", "fine-tuning: Quora question pairs, same meaning or not"),
    "sst2": ("cosformer.data.glue", "sst2", "fine-tuning: film review phrases, good or bad"),
    "mnli": ("cosformer.data.glue", "mnli", "fine-tuning: premise and hypothesis, three classes"),
    "imdb": ("cosformer.data.imdb", "imdb", "fine-tuning: IMDB reviews, good or bad"),
    "amazon": ("cosformer.data.amazon", "amazon", "fine-tuning: Amazon Electronics reviews, five stars"),
    "blitzer": ("cosformer.data.amazon", "blitzer", "fine-tuning: Amazon reviews of four kinds of goods, good or bad"),
    "texts": ("cosformer.data.texts", "texts", "LM and MLM: your own text files, a folder of them or a glob"),
    "table": ("cosformer.data.table", "table", "your own tables (CSV, JSON lines, parquet): texts and labels"),
    "sequences": ("cosformer.data.own_sequences", "sequences", "your own FASTA and FASTQ files, arrays of ids"),
    "series": ("cosformer.data.series", "series", "your own series of readings: arrays or tables"),
}  # fmt: skip

OWN_SETS = ("texts", "table", "sequences", "series")  # read the user's own files


def dataset_function(name: str) -> Callable[..., "Dataset"]:
    """The function that loads ``name``; an unknown name raises and lists the known ones."""
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    module, attribute, _ = DATASETS[name]
    return getattr(import_module(module), attribute)


def load_dataset(name: str, **options: Any) -> "Dataset":
    """Load the set ``name``, preparing it at the first call; ``options`` are its own (see its function)."""
    function = dataset_function(name)
    known = inspect.signature(function).parameters
    for option in options:
        if option not in known:
            raise ValueError(f"data set {name!r} has no option {option!r}; it has: {', '.join(known)}")
        _check_option(name, known[option], options[option])
    return function(**options)


def register_dataset(name: str, function: "Callable[..., Dataset]", summary: str = "") -> None:
    """Register a data set as ``name``; ``function``, at the top of its module, takes keyword-only options."""
    register("data set", DATASETS, name, function, summary)


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _check_option(name: str, option: inspect.Parameter, value: Any) -> None:
    """Refuse values of the wrong type, negative numbers, and limits (``max_...``) below 1."""
    kinds = get_args(option.annotation) or (option.annotation,)
    if any(kind not in (*_WORDS, type(None)) for kind in kinds):
        return  # a list: its set knows what belongs in it
    kind = next(kind for kind in kinds if kind in _WORDS)
    accepted = {int: int, float: (int, float), bool: bool, str: (str, PathLike)}[kind]
    if value is None and type(None) in kinds:
        return
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        example = "" if option.default is None else f", e.g. {option.default}"
        raise ValueError(f"data set {name!r}: {option.name}={value!r}; it must be {_WORDS[kind]}{example}")
    least = 1 if option.name.startswith("max_") else 0
    if isinstance(value, (int, float)) and value < least:
        raise ValueError(f"data set {name!r}: {option.name}={value}; it must be at least {least}")


def __getattr__(name: str) -> Any:
    home = {"prepared_sets": "cosformer.data.cache"}.get(name, "cosformer.data.dataset")
    if name in __all__:
        return getattr(import_module(home), name)
    raise AttributeError(f"module 'cosformer.data' has no attribute {name!r}")


__all__ = [
    "DATASETS",
    "OWN_SETS",
    "Dataset",
    "Ragged",
    "Split",
    "dataset_function",
    "load_dataset",
    "open_dataset",
    "prepared_sets",
    "register_dataset",
]
