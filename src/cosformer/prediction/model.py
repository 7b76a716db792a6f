"""A trained model and what turns texts into its input: answers to texts, batch by batch of about the same length."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import cosformer.hf  # noqa: F401  (Auto classes know our models only after this)
from cosformer.data.masking import IGNORED
from cosformer.data.padding import pad_rows, pad_values
from cosformer.data.subwords import batched
from cosformer.data.vocabulary import Channels, Ids, Letters
from cosformer.experiment import EXPERIMENT_FILE
from cosformer.hf.convert import read_config
from cosformer.prediction.readers import Bad, RunReader, Text, TokenizerReader, sides_of
from cosformer.suggest import check_model_path
from cosformer.tasks.lm import padded_blocks
from cosformer.train.run import load_model

BATCH = 64
_WINDOW_ROWS, _WINDOW_LETTERS = 4096, 16_000_000  # read at once, to be sorted by length: whichever is reached first


class Predictor:
    """The model in ``source``, a run's folder, a saved model or a name on the hub, ready to answer.

    ``columns``: the names of an answer's values and their types. Classes: ``predicted`` and each class's
    ``probability_NAME``; several classes at once: a list of names; a number: ``predicted``; tags: a list with one for
    each word; a text to write: ``predicted``; a language model: the text's ``log_likelihood`` in nats, its ``tokens``
    and ``bits_per_byte`` (of letters and ids ``bits_per_token``); forecasts: ``CHANNEL_1`` and so on, as many as
    ``steps``.
    """

    def __init__(
        self, source: str | Path, *, device: str = "cpu", batch: int = BATCH, steps: int | None = None
    ) -> None:
        check_model_path(str(source))
        if batch < 1:
            raise ValueError(f"batch={batch}; at least 1")
        self.source, self.device, self.batch = str(source), device, batch
        self.read: RunReader | TokenizerReader
        if (Path(source) / EXPERIMENT_FILE).is_file():
            self.model: Any = load_model(Path(source))
            self.read = RunReader(Path(source), self.model.config)
        else:
            self.model = _load(self.source)
            self.read = TokenizerReader(self.source, self.model.config)
        self.model.to(device).eval()
        self.config = config = self.model.config
        self.scores_text = _is_causal(type(self.model).__name__)
        self.task = self.read.task
        self.vocabulary: Any = self.read.vocabulary
        self.takes_arrays = isinstance(self.vocabulary, Channels | Ids)
        self.takes_pairs = type(self.model).__name__ == "CosformerForPairClassification"
        names = [str(config.id2label[i]) for i in range(config.num_labels)]
        self.columns: dict[str, type] = {f"probability_{name}": float for name in names}
        self.kind = config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")
        if self.scores_text:
            self.bits = "bits_per_token" if isinstance(self.vocabulary, Letters | Ids) else "bits_per_byte"
            self.columns = {"log_likelihood": float, "tokens": int, self.bits: float}
        elif self.task == "forecast":
            self.columns = self._forecast_columns(steps)
        elif self.task in ("tag", "seq2seq"):
            self.columns = {"predicted": list if self.task == "tag" else str}
        elif self.kind == "regression":
            self.columns = {"predicted": float} if len(names) == 1 else {f"predicted_{name}": float for name in names}
        else:
            self.columns = {"predicted": list if self.kind.startswith("multi") else str, **self.columns}
        self.names = names
        if steps is not None and self.task != "forecast":
            raise ValueError(f"steps={steps} is for a model that forecasts; {self.source} does not")
        self._kinds = {"forecast": self._forecasts, "tag": self._tags, "seq2seq": self._written}

    def _forecast_columns(self, steps: int | None) -> dict[str, type]:
        assert isinstance(self.vocabulary, Channels)
        most = self.config.max_position_embeddings
        self.steps = max(1, min(24, most // 4)) if steps is None else steps
        if not 0 < self.steps < most:
            raise ValueError(f"steps={steps}; this model forecasts 1 to {most - 1} steps")
        return {f"{name}_{step}": float for step in range(1, self.steps + 1) for name in self.vocabulary.names}

    def answers(self, texts: Iterable[Text | Bad]) -> Iterator[dict[str, Any] | Bad]:
        """An answer for each text, in order; bad texts stay bad, and a text the model cannot read becomes one."""
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
            yield from batched(parts, self.batch)
            return
        # padding would count: rows of one length alone go together
        for _, same in itertools.groupby(parts, lambda entry: [len(side) for side in entry[1]]):
            yield from batched(list(same), self.batch)

    def _forward(self, rows: Sequence[Sequence[np.ndarray]]) -> list[Any]:
        """Of each row the logits, or, of a language model, (nats, tokens)."""
        if self.task in self._kinds:
            return self._kinds[self.task](rows)
        if self.scores_text:
            return self._nats([sides[0] for sides in rows])
        if self.takes_arrays and isinstance(self.vocabulary, Channels):
            values, mask = (torch.from_numpy(x).to(self.device) for x in pad_values([sides[0] for sides in rows]))
            return list(self.model(input_values=values, attention_mask=mask.long()).logits.float().cpu())
        return list(self.model(**self._padded(rows)).logits.float().cpu())

    def _padded(self, rows: Sequence[Sequence[np.ndarray]]) -> dict[str, Tensor]:
        inputs: dict[str, Tensor] = {}
        for place, ending in enumerate(("", "_b") if self.takes_pairs else ("",)):
            ids, mask = pad_rows([sides[place] for sides in rows], self.read.pad_id)
            inputs |= {f"input_ids{ending}": torch.from_numpy(ids)}
            inputs |= {f"attention_mask{ending}": torch.from_numpy(mask.astype(np.int64))}
        return {key: value.to(self.device) for key, value in inputs.items()}

    def _forecasts(self, rows: Sequence[Sequence[np.ndarray]]) -> list[Any]:
        """The steps that follow each series, flat."""
        room = self.config.max_position_embeddings - self.steps + 1
        values, mask = (torch.from_numpy(x) for x in pad_values([series[-room:] for (series,) in rows], left=True))
        found = self.model.forecast(values.to(self.device), self.steps, mask.long().to(self.device))
        return found.flatten(1).tolist()

    def _tags(self, rows: Sequence[Sequence[np.ndarray]]) -> list[Any]:
        """A tag for each word that begins within the row, else None."""
        logits = self.model(**self._padded([[ids] for ids, _ in rows])).logits.argmax(-1).cpu().numpy()
        return [
            [self.names[found[place]] if place < len(ids) else None for place in places]
            for found, (ids, places) in zip(logits, rows, strict=True)
        ]

    def _written(self, rows: Sequence[Sequence[np.ndarray]]) -> list[Any]:
        """The likeliest text for each row, token by token."""
        most = self.config.max_position_embeddings - 1
        found = self.model.generate(**self._padded(rows), do_sample=False, max_new_tokens=most).cpu().numpy()
        special = [self.vocabulary.pad_id, self.vocabulary.bos_id, self.vocabulary.eos_id]
        return [self.vocabulary.decode(row[~np.isin(row, special)]) for row in found]

    def _nats(self, rows: Sequence[np.ndarray]) -> list[Any]:
        """Each row holds the token before the scored ones, and these."""
        batch = padded_blocks([row[:-1] for row in rows], [row[1:] for row in rows], 0)
        inputs: dict[str, Any] = {name: x.to(self.device) for name, x in batch.items()} | {"use_cache": False}
        wanted = inputs.pop("shift_labels")
        if self.config.model_type == "cosformer":
            losses = self.model(**inputs, shift_labels=wanted, reduction="none").loss
        else:
            logits = self.model(**inputs).logits.float()
            losses = F.cross_entropy(logits.mT, wanted, ignore_index=IGNORED, reduction="none")
        return list(zip(losses.double().sum(1).tolist(), (wanted != IGNORED).sum(1).tolist(), strict=True))

    def _combined(self, values: list[Any], text: Any) -> dict[str, Any]:
        """The answer to a text from what its parts gave."""
        if self.scores_text:
            nats, tokens = (sum(column) for column in zip(*values, strict=True))
            size = tokens if self.bits == "bits_per_token" else len(text.encode("utf-8"))
            return {"log_likelihood": -nats, "tokens": tokens, self.bits: nats / math.log(2) / size}
        if self.task in self._kinds:  # such rows are not read in parts
            found = values[0] if self.task == "forecast" else [values[0]]
            return dict(zip(self.columns, found, strict=True))
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

    ``model``: a run's folder, a saved model or a name on the hub, or a :class:`Predictor`, to load it once for several
    calls, which then has its own ``device`` and ``batch``. See :class:`Predictor` for what an answer holds.
    """
    predictor = model if isinstance(model, Predictor) else Predictor(model, device=device, batch=batch)
    for number, answer in enumerate(predictor.answers(texts), start=1):
        if isinstance(answer, Bad):
            raise ValueError(f"text {number}: {answer.problem}")
        yield answer


def _windows(texts: Iterable[Any]) -> Iterator[list[Any]]:
    window, letters = [], 0
    for text in texts:
        window.append(text)
        letters += sum(map(len, sides_of(text)))
        if len(window) == _WINDOW_ROWS or letters >= _WINDOW_LETTERS:
            yield window
            window, letters = [], 0
    if window:
        yield window


def _is_causal(kind: str) -> bool:
    return kind.endswith(("ForCausalLM", "LMHeadModel"))


def _load(source: str) -> Any:
    kind = (read_config(source).architectures or [""])[0]
    if _is_causal(kind):
        return AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    if kind.endswith("ForSequenceClassification"):
        return AutoModelForSequenceClassification.from_pretrained(source, dtype=torch.float32)
    raise ValueError(
        f"{source} holds a {kind or 'model without a head'}; wanted a classifier or a causal language model"
    )
