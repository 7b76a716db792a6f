"""What a task is: data, head, loss and score in one object. The training engine knows nothing else."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedModel

from cosformer.data import load_dataset
from cosformer.data.dataset import Dataset
from cosformer.experiment import DataConfig, ModelConfig
from cosformer.models.config import CosformerConfig
from cosformer.models.presets import preset

# fields of CosformerConfig -> those of ModelConfig that set them
ARCHITECTURE = {
    "num_hidden_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_len",
    "short_convolution": "short_convolution",
    "output_gate": "output_gate",
}


@dataclass(frozen=True)
class Baseline:
    """What a model must beat to have learned: ``score`` of a model that ignores its input, on one split.

    error: the standard error of the score on that split.
    """

    name: str
    score: float
    error: float


class Task(ABC):
    """Data + head + loss + score. ``metric``: the score a model is chosen by; ``higher_is_better`` says which way."""

    name: ClassVar[str]
    metric: ClassVar[str]
    higher_is_better: ClassVar[bool]
    head: ClassVar[type[PreTrainedModel]]
    length: int  # tokens that a row may have

    def __init__(self, data: DataConfig, seed: int = 0) -> None:
        """Loads the data (prepared and cached on first use). ``seed`` is for what training draws from it."""
        if data.masked != DataConfig.masked and self.name != "mlm":
            raise ValueError(
                f"data.masked={data.masked}: task {self.name!r} hides no tokens; leave it out, or use task 'mlm'"
            )
        self.data = data
        self.seed = seed
        self.dataset: Dataset = load_dataset(data.name, **data.options)

    # --- the model

    def model_fields(self) -> dict[str, Any]:
        """Fields of CosformerConfig that the data decides: vocabulary, classes, longest row, special tokens."""
        vocabulary = self.dataset.vocabulary
        return {
            "vocab_size": vocabulary.size,
            "max_position_embeddings": self.length,
            "pad_token_id": vocabulary.pad_id,
            "bos_token_id": vocabulary.bos_id,
            "eos_token_id": vocabulary.eos_id,
        }

    def config(self, model: ModelConfig) -> CosformerConfig:
        """The architecture that ``model`` names, fitted to this task's data."""
        changes = self.model_fields()
        named = {field: getattr(model, ours) for field, ours in ARCHITECTURE.items()} | {
            "hidden_dropout_prob": model.hidden_dropout_prob
        }
        changes |= {key: value for key, value in named.items() if value is not None}
        layers = model.num_hidden_layers or preset(model.preset).num_hidden_layers
        changes |= _attentions(model.attention, dict(model.attention_options), layers)
        return fitted(preset(model.preset, **changes | model.fields), model, self.length)

    # --- training rows

    @property
    def train_rows(self) -> int:
        """How many rows one pass over the training split has."""
        return len(self.dataset.splits["train"])

    def train_lengths(self) -> np.ndarray:
        """Tokens of each training row."""
        raise ValueError(f"group_by_length: the rows of task {self.name!r} are of one length; leave it out")

    @abstractmethod
    def train_row(self, index: int, epoch: int) -> dict[str, Any]:
        """Row ``index`` of pass ``epoch``, from (seed, epoch, index) alone: unaffected by resuming and processes."""

    @abstractmethod
    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Rows to the keyword arguments of the model's forward, labels among them."""

    @abstractmethod
    def tokens(self, batch: dict[str, Tensor]) -> int:
        """Tokens of a batch, padding apart: for tokens per second."""

    # --- scores

    @property
    def selection(self) -> str:
        """The evaluation by which the best checkpoint is chosen, during training."""
        return self.dataset.selection_split

    @property
    def final(self) -> list[str]:
        """The evaluations made at the end of a run: splits, and what a task adds (``test@400``)."""
        return [name for name in ("valid", "test") if name in self.dataset.splits]

    def most_rows(self, name: str) -> int | None:
        """How many rows of evaluation ``name`` may be scored; None: all."""
        return None if self.data.full_test and name.startswith("test") else self.data.eval_rows

    def at_most(self, name: str, rows: int) -> int:
        """``rows``, or as many of them as evaluation ``name`` may score."""
        most = self.most_rows(name)
        return rows if most is None else min(rows, most)

    @abstractmethod
    def eval_size(self, name: str) -> int:
        """Rows of evaluation ``name``, after :meth:`most_rows`."""

    @abstractmethod
    def eval_batch(self, name: str, start: int, stop: int) -> dict[str, Tensor]:
        """Rows ``start:stop`` of evaluation ``name``, as ``sums`` wants them."""

    @abstractmethod
    def sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        """What adds up over batches and processes: losses, counts, hits. The model is in eval mode and on the batch's
        device, gradients are off."""

    @abstractmethod
    def scores(self, name: str, sums: dict[str, float]) -> dict[str, float]:
        """The metrics of evaluation ``name`` from the summed ``sums``, among them ``self.metric`` and ``error``, the
        standard error of that score over rows (or tokens)."""

    @abstractmethod
    def baseline(self, name: str) -> Baseline:
        """The majority class, or the unigram model of the training split, scored on evaluation ``name``."""

    def class_weights(self) -> Tensor:
        """Class weights, float [classes]: every class has the same total weight, and a training row 1 on average."""
        raise ValueError(
            f"class_weights='balanced': the rows of task {self.name!r} do not have one class each; leave it out"
        )

    def text_baseline(self, name: str) -> Baseline | None:
        """A simple model that reads its input, scored on evaluation ``name``; None where the task has none."""
        return None


def fitted(config: CosformerConfig, model: ModelConfig, longest: int) -> CosformerConfig:
    """``config`` with room for ``longest`` tokens (and a CLS vector); a max_len set in ``model`` is checked."""
    needed = longest + int(config.cls_token)
    if model.max_len is None and not {"max_len", "max_position_embeddings"} & model.fields.keys():
        config.max_position_embeddings = needed
    if needed > config.max_position_embeddings:
        cls = " with the CLS vector" if config.cls_token else ""
        raise ValueError(
            f"rows of {needed} tokens{cls} exceed max_len={config.max_position_embeddings}; set model.max_len to"
            f" {needed} or more, or data.length (for documents, the set's option max_length) to less"
        )
    return config


def _attentions(names: str, options: dict[str, Any], layers: int) -> dict[str, Any]:
    """The fields of the config for one attention, or for several by turns: layer i of ``local,cosformer`` takes name i
    mod 2.

    An option of one of several is given with its name, as ``local.window``.
    """
    if "," not in names:
        return {"attention": names, "attention_options": options or None}
    turns = names.split(",")
    strange = [key for key in options if key.partition(".")[0] not in turns or "." not in key]
    if strange:
        raise ValueError(
            f"attention_options {', '.join(strange)}: of {names} say whose they are, as {turns[0]}.{strange[0]}"
        )
    mine = {
        name: {key.partition(".")[2]: options[key] for key in options if key.startswith(f"{name}.")} for name in turns
    }
    chosen = [turns[i % len(turns)] for i in range(layers)]
    return {"attention": chosen, "attention_options": [mine[name] for name in chosen]}
