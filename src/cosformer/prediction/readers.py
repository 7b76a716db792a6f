"""Turns texts, sequences and series into model input as in training, or with a model's own tokenizer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from cosformer.data import OWN_SETS
from cosformer.data.encoding import with_specials
from cosformer.data.targets import words_of, words_to_ids
from cosformer.data.vocabulary import Channels, Ids, Letters, Pixels
from cosformer.experiment import load_experiment
from cosformer.tasks.classify import windows as stretches
from cosformer.train.vocabulary import load_vocabulary

_UNCUT = 1 << 40  # tokens
_TASKS = ("lm", "classify", "multilabel", "match", "similarity", "regress", "tag", "seq2seq", "forecast")
# a text, or two that belong together; the words of one; whole numbers, or readings [steps, channels]
Text = str | tuple[str, str] | Sequence[str] | np.ndarray


@dataclass(frozen=True)
class Bad:
    """Why a text has no answer."""

    problem: str


class RunReader:
    """Texts read as in training: longer ones are cut or split into windows. ``cut`` counts the cut ones."""

    def __init__(self, run: Path, config: Any) -> None:
        self.vocabulary: Any = load_vocabulary(run)
        self.pad_id = self.vocabulary.pad_id
        self.config = config
        self.max_len = config.max_position_embeddings - int(getattr(config, "cls_token", False))
        settings = run / "best" / "tokenizer_config.json"
        if settings.is_file():
            self.max_len = min(self.max_len, json.loads(settings.read_text(encoding="utf-8"))["model_max_length"])
        experiment = load_experiment(run)
        task, self.in_windows, self.cut = experiment.task, experiment.data.long == "windows", 0
        options = experiment.data.options
        self.text_column, self.second_column = options.get("text"), options.get("second")
        # how the files of the training were read, where that was said
        asked = ("delimiter", "quotes", "encoding", "errors") if experiment.data.name in OWN_SETS else ()
        self.reading = {name: options[name] for name in asked if options.get(name) is not None}
        if task not in _TASKS:
            raise ValueError(f"{run} was trained for the task {task!r}, which gives no answer about a row of its own")
        if isinstance(self.vocabulary, Pixels):
            raise ValueError(f"{run} reads pixels, not text")
        self.task = task
        # the columns of readings in a table, where the run was trained on one
        self.series = experiment.data.options if isinstance(self.vocabulary, Channels) else None

    def __call__(self, texts: Sequence[Text | Bad], pairs: bool, scored: bool) -> list[Any]:
        """Of each text its parts, each a list of one row of ids, or of two where ``pairs`` are read apart."""
        if isinstance(self.vocabulary, Channels):
            return [self._readings(series) for series in texts]
        if self.task == "tag":
            return [self._words_and_places(text) for text in texts]
        sides = [sides_of(text) for text in texts]
        first = self._ids([a for a, _ in sides])
        second = self._ids([b for _, b in sides]) if any(isinstance(text, tuple) for text in texts) else first
        read: list[Any] = []
        for text, a, b in zip(texts, first, second, strict=True):
            bad = next((x for x in (text, a, b) if isinstance(x, Bad)), None)
            alone = not isinstance(text, tuple)
            if bad is not None:
                read.append(bad)
            elif pairs and alone:
                read.append(Bad("expected two texts, got one"))
            elif scored and not alone:
                read.append(Bad("expected one text, got two"))
            elif scored:
                read.append(blocks(a, self.config.bos_token_id, self.max_len))
            elif pairs:
                both = [self._rows(side, None, windows=False) for side in (a, b)]
                read.append(next((x for x in both if isinstance(x, Bad)), [[x[0] for x in both]]))
            else:
                rows = self._rows(a, None if alone else b, windows=self.in_windows)
                read.append(rows if isinstance(rows, Bad) else [[row] for row in rows])
        return read

    def _readings(self, series: Any) -> Any:
        """A series cut to its first steps, or windows that cover it, as in training; to forecast, its last steps."""
        if isinstance(series, Bad):
            return series
        channels = len(self.vocabulary.names)
        if not isinstance(series, np.ndarray) or series.ndim != 2 or series.shape[1] != channels or not len(series):
            shape = list(series.shape) if isinstance(series, np.ndarray) else type(series).__name__
            return Bad(f"expected readings [steps, {channels}], found {shape}")
        if self.task == "forecast":
            return [[series[-self.max_len :]]]
        if self.in_windows:
            return [[part] for part in stretches(series, self.max_len, (None, None))]
        self.cut += len(series) > self.max_len
        return [[series[: self.max_len]]]

    def _words_and_places(self, text: Any) -> Any:
        """The ids of a row of words, and where each word begins; a word behind the cut has no place."""
        if isinstance(text, Bad):
            return text
        words = [str(word) for word in words_of(text)]
        if not words:
            return Bad("the text is empty")
        ids, places = words_to_ids(words, self.vocabulary)
        self.cut += len(ids) > self.max_len
        return [[ids[: self.max_len], places]]

    def _rows(self, a: np.ndarray, b: np.ndarray | None, *, windows: bool) -> Any:
        """The row of one text or of a pair, cut to what the model takes, or the windows that cover it."""
        most = _UNCUT if windows else self.max_len
        if self.vocabulary.bos_id is None or self.vocabulary.eos_id is None:
            if b is not None:
                return Bad("the model reads one text; it has no token that would part two")
            if not len(a):
                return Bad("the text is empty")
            row, cut = a[:most], len(a) > most
        else:
            row, cut = with_specials(a, b, self.vocabulary, most)
        self.cut += cut
        return stretches(row, self.max_len, (self.vocabulary.bos_id, self.vocabulary.eos_id)) if windows else [row]

    def _ids(self, texts: list[Any]) -> list[Any]:
        if isinstance(self.vocabulary, Ids):
            return [self._known_ids(row) for row in texts]
        if isinstance(self.vocabulary, Letters):
            strange = [self.vocabulary.strange(text) for text in texts]
            return [
                Bad(f"the letter {letter!r} is not in the alphabet {self.vocabulary.alphabet}")
                if letter
                else self.vocabulary.encode([text])[0]
                for text, letter in zip(texts, strange, strict=True)
            ]
        if hasattr(self.vocabulary, "encode"):
            flat, lengths = self.vocabulary.encode(texts)
            return np.split(flat, np.cumsum(lengths)[:-1])
        return [self._words(text) for text in texts]

    def _known_ids(self, row: Any) -> Any:
        array = np.asarray(row if len(row) else [], np.int64)
        if len(array) and not (array.min() >= 0 and array.max() < self.vocabulary.count):
            return Bad(f"ids from {array.min()} to {array.max()}; the run knows 0 to {self.vocabulary.count - 1}")
        return array

    def _words(self, text: str) -> Any:
        ids = [self.vocabulary.index.get(word, self.vocabulary.unk_id) for word in text.split()]
        if None in ids:
            return Bad(f"the word {text.split()[ids.index(None)]!r} is not in the run's vocabulary")
        return np.array(ids, np.int64)


class TokenizerReader:
    """Texts as the model's own tokenizer reads them; longer ones are cut to what the model takes."""

    def __init__(self, source: str, config: Any) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(source)
        self.config, self.text_column, self.second_column, self.cut = config, None, None, 0
        self.reading: dict[str, Any] = {}
        self.task, self.series, self.vocabulary = "", None, None
        self.pad_id = self.tokenizer.pad_token_id
        self.start = next(
            (i for i in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id) if i is not None), None
        )
        self.max_len = min(self.tokenizer.model_max_length, getattr(config, "max_position_embeddings", 512))

    def __call__(self, texts: Sequence[Text | Bad], pairs: bool, scored: bool) -> list[Any]:
        sides = [sides_of(text) for text in texts]
        read: list[Any] = []
        if pairs:
            raise ValueError(
                "a model that reads two texts apart is used by its run's folder, not by the folder of its weights"
            )
        two = any(isinstance(text, tuple) for text in texts)
        if scored and self.start is None:
            raise ValueError("the tokenizer has no start or end token, from which the first token could be guessed")
        settings: dict[str, Any] = {"truncation": True, "max_length": self.max_len}
        if scored:
            settings = {"add_special_tokens": False}
        ids = self.tokenizer([a for a, _ in sides], [b for _, b in sides] if two else None, verbose=False, **settings)
        for text, row in zip(texts, ids["input_ids"], strict=True):
            if isinstance(text, Bad):
                read.append(text)
            elif not row or isinstance(text, tuple) != two or (scored and two):
                read.append(Bad("the text is empty" if not row else "expected one text, got two"))
            else:
                array = np.array(row, np.int64)
                read.append(blocks(array, self.start or 0, self.max_len) if scored else [[array]])
        return read


def sides_of(text: Any) -> tuple[Any, Any]:
    if isinstance(text, Bad):
        return "", ""
    return text if isinstance(text, tuple) else (text, "")


def blocks(ids: np.ndarray, start: int, length: int) -> Any:
    """Windows of ``length`` tokens with the token before each, as in training: each token is scored once."""
    if not len(ids):
        return Bad("the text is empty")
    behind = np.concatenate([[start], ids])
    return [[behind[i : i + length + 1]] for i in range(0, len(ids), length)]
