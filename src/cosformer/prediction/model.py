"""A trained model and what turns texts into its input: answers to texts, batch by batch of about the same length."""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

import cosformer.hf  # noqa: F401  (Auto classes know our models only after this)
from cosformer.data.encoding import with_specials
from cosformer.data.masking import IGNORED
from cosformer.data.padding import pad_rows
from cosformer.experiment import EXPERIMENT_FILE, load_experiment
from cosformer.suggest import check_model_path
from cosformer.tasks.classify import windows as stretches
from cosformer.train.run import load_model
from cosformer.train.vocabulary import load_vocabulary

BATCH = 64
_UNCUT = 1 << 40  # tokens
_WINDOW_ROWS, _WINDOW_LETTERS = 4096, 16_000_000  # read at once, to be sorted by length: whichever is reached first
Text = str | tuple[str, str]  # a text, or two that belong together


@dataclass(frozen=True)
class Bad:
    """Why a text has no answer."""

    problem: str


class Predictor:
    """The model in ``source``, a run's folder, a saved model or a name on the hub, ready to answer.

    ``columns``: the names of an answer's values and their types. Classes: ``predicted`` and each class's ``probability_NAME``; several
    classes at once: a list of names; a number: ``predicted``; a language model: the text's ``log_likelihood`` in nats, its
    ``tokens`` and ``bits_per_byte``.
    """

    def __init__(self, source: str | Path, *, device: str = "cpu", batch: int = BATCH) -> None:
        check_model_path(str(source))
        if batch < 1:
            raise ValueError(f"batch={batch}; at least 1")
        self.source, self.device, self.batch = str(source), device, batch
        self.read: _RunReader | _TokenizerReader
        if (Path(source) / EXPERIMENT_FILE).is_file():
            self.model: Any = load_model(Path(source))
            self.read = _RunReader(Path(source), self.model.config)
        else:
            self.model = _load(self.source)
            self.read = _TokenizerReader(self.source, self.model.config)
        self.model.to(device).eval()
        self.config = config = self.model.config
        self.scores_text = _is_causal(type(self.model).__name__)
        self.takes_pairs = type(self.model).__name__ == "CosformerForPairClassification"
        names = [str(config.id2label[i]) for i in range(config.num_labels)]
        self.columns: dict[str, type] = {f"probability_{name}": float for name in names}
        self.kind = config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")
        if self.scores_text:
            self.columns = {"log_likelihood": float, "tokens": int, "bits_per_byte": float}
        elif self.kind == "regression":
            self.columns = {"predicted": float} if len(names) == 1 else {f"predicted_{name}": float for name in names}
        else:
            self.columns = {"predicted": list if self.kind.startswith("multi") else str, **self.columns}
        self.names = names

    def answers(self, texts: Iterable[Text | Bad]) -> Iterator[dict[str, Any] | Bad]:
        """An answer for each text, in order; what is bad stays bad, and a text that the model cannot read becomes it."""
        for window in _windows(texts):
            yield from self._answer(window)

    @torch.inference_mode()
    def _answer(self, texts: Sequence[Text | Bad]) -> list[dict[str, Any] | Bad]:
        read = self.read(texts, self.takes_pairs, self.scores_text)
        parts = [(i, part) for i, parts in enumerate(read) if not isinstance(parts, Bad) for part in parts]
        parts.sort(key=lambda entry: [len(side) for side in entry[1]])
        found: list[list[Any]] = [[] for _ in texts]
        for rows in self._batches(parts):
            for (i, _), values in zip(rows, self._forward([sides for _, sides in rows]), strict=True):
                found[i].append(values)
        return [
            parts if isinstance(parts, Bad) else self._combined(values, text)
            for parts, values, text in zip(read, found, texts, strict=True)
        ]

    def _batches(self, parts: list[Any]) -> Iterator[list[Any]]:
        if getattr(self.config, "pooling", None) != "mean_all":
            yield from _batched(parts, self.batch)
            return
        # padding would count: rows of one length alone go together
        for _, same in itertools.groupby(parts, lambda entry: [len(side) for side in entry[1]]):
            yield from _batched(list(same), self.batch)

    def _forward(self, rows: Sequence[Sequence[np.ndarray]]) -> list[Any]:
        """Of each row the logits, or, of a language model, (nats, tokens)."""
        if self.scores_text:
            return self._nats([sides[0] for sides in rows])
        inputs: dict[str, Tensor] = {}
        for place, ending in enumerate(("", "_b") if self.takes_pairs else ("",)):
            ids, mask = pad_rows([sides[place] for sides in rows], self.read.pad_id)
            inputs |= {f"input_ids{ending}": torch.from_numpy(ids)}
            inputs |= {f"attention_mask{ending}": torch.from_numpy(mask.astype(np.int64))}
        logits = self.model(**{key: value.to(self.device) for key, value in inputs.items()}).logits
        return list(logits.float().cpu())

    def _nats(self, rows: Sequence[np.ndarray]) -> list[Any]:
        """Each row holds the token before the scored ones, and these."""
        shape = len(rows), max(len(row) for row in rows) - 1
        ids, targets = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        mask = np.zeros(shape, np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row) - 1], targets[i, : len(row) - 1], mask[i, : len(row) - 1] = row[:-1], row[1:], 1
        inputs = {"input_ids": torch.from_numpy(ids).to(self.device), "use_cache": False}
        if not mask.all():
            inputs["attention_mask"] = torch.from_numpy(mask).to(self.device)
        wanted = torch.from_numpy(targets).to(self.device)
        if self.config.model_type == "cosformer":
            losses = self.model(**inputs, shift_labels=wanted, reduction="none").loss
        else:
            logits = self.model(**inputs).logits.float()
            losses = F.cross_entropy(logits.mT, wanted, ignore_index=IGNORED, reduction="none")
        return list(zip(losses.double().sum(1).tolist(), mask.sum(1).tolist(), strict=True))

    def _combined(self, values: list[Any], text: Any) -> dict[str, Any]:
        """The answer to a text from what its parts gave."""
        if self.scores_text:
            nats, tokens = (sum(column) for column in zip(*values, strict=True))
            size = len(text.encode("utf-8"))
            return {"log_likelihood": -nats, "tokens": tokens, "bits_per_byte": nats / math.log(2) / size}
        logits = torch.stack(values)
        if self.kind == "regression":
            return dict(zip(self.columns, logits.mean(0).tolist(), strict=True))
        several = self.kind.startswith("multi")
        shares = (
            (logits.sigmoid() if several else logits.softmax(-1)).mean(0).tolist()
        )  # over the windows of a long text
        likely = [name for name, share in zip(self.names, shares, strict=True) if share > 0.5]
        predicted = likely if several else self.names[shares.index(max(shares))]
        return dict(zip(self.columns, [predicted, *shares], strict=True))


def predict(
    model: str | Path | Predictor, texts: Iterable[Text], *, device: str = "cpu", batch: int = BATCH
) -> Iterator[dict[str, Any]]:
    """The answer of ``model`` to each of ``texts``, in order, as a dict; a pair of texts is a tuple of two.

    ``model``: a run's folder, a saved model or a name on the hub, or a :class:`Predictor`, to load it once for several calls, which
    then has its own ``device`` and ``batch``. See :class:`Predictor` for what an answer holds.
    """
    predictor = model if isinstance(model, Predictor) else Predictor(model, device=device, batch=batch)
    for number, answer in enumerate(predictor.answers(texts), start=1):
        if isinstance(answer, Bad):
            raise ValueError(f"text {number}: {answer.problem}")
        yield answer


class _RunReader:
    """Texts as the run's data was read; longer ones are cut, or read in windows, as they were there. ``cut`` counts them."""

    def __init__(self, run: Path, config: Any) -> None:
        self.vocabulary: Any = load_vocabulary(run)
        self.pad_id = self.vocabulary.pad_id
        self.config = config
        self.max_len = config.max_position_embeddings - int(config.cls_token)
        settings = run / "best" / "tokenizer_config.json"
        if settings.is_file():
            self.max_len = min(self.max_len, json.loads(settings.read_text(encoding="utf-8"))["model_max_length"])
        experiment = load_experiment(run)
        task, self.in_windows, self.cut = experiment.task, experiment.data.long == "windows", 0
        self.text_column = experiment.data.options.get("text")
        if task not in ("lm", "classify", "match", "regress"):
            raise ValueError(f"{run} was trained for the task {task!r}, which gives no answer about a text")
        if not hasattr(self.vocabulary, "encode") and not hasattr(self.vocabulary, "index"):
            raise ValueError(f"{run} reads pixels, not text")

    def __call__(self, texts: Sequence[Text | Bad], pairs: bool, scored: bool) -> list[Any]:
        """Of each text its parts, each a list of one row of ids, or of two where ``pairs`` are read apart."""
        sides = [_sides(text) for text in texts]
        first, second = (self._ids([pair[place] for pair in sides]) for place in (0, 1))
        read: list[Any] = []
        for text, a, b in zip(texts, first, second, strict=True):
            bad = next((x for x in (text, a, b) if isinstance(x, Bad)), None)
            alone = not isinstance(text, tuple)
            if bad is not None:
                read.append(bad)
            elif pairs and alone:
                read.append(Bad("wanted two texts, found one"))
            elif scored and not alone:
                read.append(Bad("wanted one text, found two"))
            elif scored:
                read.append(_blocks(a, self.config.bos_token_id, self.max_len))
            elif pairs:
                both = [self._rows(side, None, windows=False) for side in (a, b)]
                read.append(next((x for x in both if isinstance(x, Bad)), [[x[0] for x in both]]))
            else:
                rows = self._rows(a, None if alone else b, windows=self.in_windows)
                read.append(rows if isinstance(rows, Bad) else [[row] for row in rows])
        return read

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

    def _ids(self, texts: list[str]) -> list[Any]:
        if hasattr(self.vocabulary, "encode"):
            flat, lengths = self.vocabulary.encode(texts)
            return np.split(flat, np.cumsum(lengths)[:-1])
        return [self._words(text) for text in texts]

    def _words(self, text: str) -> Any:
        ids = [self.vocabulary.index.get(word, self.vocabulary.unk_id) for word in text.split()]
        if None in ids:
            return Bad(f"the word {text.split()[ids.index(None)]!r} is not in the run's vocabulary")
        return np.array(ids, np.int64)


class _TokenizerReader:
    """Texts as the model's own tokenizer reads them; longer ones are cut to what the model takes."""

    def __init__(self, source: str, config: Any) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(source)
        self.config, self.text_column, self.cut = config, None, 0
        self.pad_id = self.tokenizer.pad_token_id
        self.start = next(
            (i for i in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id) if i is not None), None
        )
        self.max_len = min(self.tokenizer.model_max_length, getattr(config, "max_position_embeddings", 512))

    def __call__(self, texts: Sequence[Text | Bad], pairs: bool, scored: bool) -> list[Any]:
        sides = [_sides(text) for text in texts]
        read: list[Any] = []
        if pairs:
            raise ValueError(
                "a model that reads two texts apart is used by its run's folder, not by the folder of its weights"
            )
        two = any(isinstance(text, tuple) for text in texts)
        if scored and self.start is None:
            raise ValueError("the tokenizer has no start or end token, from which the first token could be guessed")
        settings: dict[str, Any] = {"add_special_tokens": False} if scored else {"truncation": True, "max_length": self.max_len}  # fmt: skip
        ids = self.tokenizer([a for a, _ in sides], [b for _, b in sides] if two else None, verbose=False, **settings)
        for text, row in zip(texts, ids["input_ids"], strict=True):
            if isinstance(text, Bad):
                read.append(text)
            elif not row or isinstance(text, tuple) != two or (scored and two):
                read.append(Bad("the text is empty" if not row else "wanted one text, found two"))
            else:
                array = np.array(row, np.int64)
                read.append(_blocks(array, self.start or 0, self.max_len) if scored else [[array]])
        return read


def _sides(text: Text | Bad) -> tuple[str, str]:
    if isinstance(text, Bad):
        return "", ""
    return text if isinstance(text, tuple) else (text, "")


def _blocks(ids: np.ndarray, start: int, length: int) -> Any:
    """Stretches of ``length`` tokens, each behind the token before it, as a language model is trained: each token scored once."""
    if not len(ids):
        return Bad("the text is empty")
    behind = np.concatenate([[start], ids])
    return [[behind[i : i + length + 1]] for i in range(0, len(ids), length)]


def _windows(texts: Iterable[Any]) -> Iterator[list[Any]]:
    window, letters = [], 0
    for text in texts:
        window.append(text)
        letters += sum(map(len, _sides(text)))
        if len(window) == _WINDOW_ROWS or letters >= _WINDOW_LETTERS:
            yield window
            window, letters = [], 0
    if window:
        yield window


def _batched(rows: list[Any], size: int) -> Iterator[list[Any]]:
    return (rows[i : i + size] for i in range(0, len(rows), size))


def _is_causal(kind: str) -> bool:
    return kind.endswith(("ForCausalLM", "LMHeadModel"))


def _load(source: str) -> Any:
    try:
        kind = (AutoConfig.from_pretrained(source).architectures or [""])[0]
    except (OSError, ValueError) as error:
        raise FileNotFoundError(f"no run and no model in {source!r}: {error}") from error
    if _is_causal(kind):
        return AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    if kind.endswith("ForSequenceClassification"):
        return AutoModelForSequenceClassification.from_pretrained(source, dtype=torch.float32)
    raise ValueError(
        f"{source} holds a {kind or 'model without a head'}; wanted a classifier or a causal language model"
    )
