"""A training run as a value: frozen dataclasses, written to ``experiment.json`` and enough to rebuild everything."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cosformer import json_files
from cosformer.renamed import TASKS, with_current_names

__all__ = [
    "EXPERIMENT_FILE",
    "METRICS_FILE",
    "RESULT_FILE",
    "RUN_FILE",
    "DataConfig",
    "Experiment",
    "ModelConfig",
    "Option",
    "TrainConfig",
    "from_json",
    "load_experiment",
]

Option = str | int | float | bool | None
Schedule = Literal["constant", "linear", "cosine", "cosine_cycles", "inverse_sqrt"]
SCHEDULES: tuple[str, ...] = get_args(Schedule)
# what a run's folder holds
EXPERIMENT_FILE = "experiment.json"
RUN_FILE, METRICS_FILE, RESULT_FILE = "run.json", "metrics.jsonl", "result.json"
LOCK_FILE = ".lock"


# `cosformer train RECIPE --help` and the reference pages show the docstring below each field


@dataclass(frozen=True)
class DataConfig:
    """Which data: a name of ``cosformer data list`` and that set's own options."""

    name: str
    """name of the data set, from `cosformer data list`"""
    options: dict[str, Option] = field(default_factory=dict)
    """data set option, e.g. --data.options.path FILE"""
    length: int | None = None
    """tokens per row (None: the data set's own)"""
    eval_rows: int | None = None
    """score at most this many rows of each split, spread evenly over its documents (None: all)"""
    full_test: bool = False
    """score the whole test split after training; for a token stream also report the loss by position"""
    masked: float = 0.15
    """masked language modelling: fraction of tokens hidden in training (evaluation always hides 15 %)"""
    long: Literal["refuse", "cut", "windows"] = "refuse"
    """refuse, cut or split longer rows"""

    def __post_init__(self) -> None:
        if self.long not in ("refuse", "cut", "windows"):
            raise ValueError(f"long={self.long!r}; known: refuse, cut, windows")
        if self.length is not None and self.length < 1:
            raise ValueError(f"length={self.length}; it must be at least 1")


@dataclass(frozen=True)
class ModelConfig:
    """Which model: a preset's architecture (see ``cosformer.models.presets``) with the fields that are not None
    changed. The vocabulary and the classes come from the data."""

    preset: str
    """base architecture, which the other fields modify"""
    attention: str = "cosformer"
    """attention, or several for alternating layers, e.g. local,cosformer"""
    attention_options: dict[str, Option] = field(default_factory=dict)
    """attention option; with several attentions KEY is NAME.KEY, e.g. local.window"""
    num_hidden_layers: int | None = None
    """number of layers (None: the preset's)"""
    hidden_size: int | None = None
    """size of the hidden states (None: the preset's)"""
    num_attention_heads: int | None = None
    """attention heads per layer (None: the preset's)"""
    intermediate_size: int | None = None
    """inner size of the feed-forward blocks (None: the preset's)"""
    max_len: int | None = None
    """longest input, the paper's M (None: row length)"""
    hidden_dropout_prob: float | None = None
    """dropout probability, never applied to attention weights (None: the preset's)"""
    short_convolution: int | None = None
    """width of a convolution over the tokens of queries, keys and values, 0 for none (None: the preset's)"""
    output_gate: bool | None = None
    """multiply the attention output by silu of a linear map of its input (None: the preset's)"""
    fields: dict[str, Option] = field(default_factory=dict)
    """any other field of CosformerConfig"""


@dataclass(frozen=True)
class TrainConfig:
    """How to train."""

    steps: int
    """number of updates"""
    batch: int
    """rows per update over all processes"""
    lr: float
    """peak learning rate"""
    optimizer: Literal["adam", "nag"] = "adam"
    """Adam with decoupled weight decay, or Nesterov's accelerated gradient"""
    beta1: float = 0.9
    """adam: decay of the running mean of the gradients"""
    beta2: float = 0.98
    """adam: decay of the running mean of the squared gradients"""
    eps: float = 1e-8
    """adam: term added to the denominator"""
    momentum: float = 0.99
    """nag: momentum"""
    weight_decay: float = 0.0
    """weight decay"""
    schedule: Schedule = "linear"
    """learning-rate schedule after the warmup; see docs/training.md"""
    warmup: int = 0
    """updates of learning-rate warmup"""
    cycle: int | None = None
    """updates in the first cycle of the cosine schedules (None: all updates after the warmup)"""
    min_lr: float = 0.0
    """final learning rate of the linear and cosine schedules"""
    clip: float = 0.0
    """clip gradients to this norm (0: no clipping)"""
    seed: int = 0
    """seed of weights, order and dropout"""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: each class counts alike in the loss, whatever its number of training rows"""
    early_stopping: int | None = None
    """stop after this many evaluations without a better score (None: never)"""
    group_by_length: bool = False
    """fill each batch with rows of similar length, which saves padding"""
    micro_batch: int | None = None
    """rows per forward pass (None: all)"""
    eval_batch: int = 32
    """rows per forward pass during evaluation"""
    eval_every: int = 1000
    """updates between evaluations"""
    save_every: int = 1000
    """updates between checkpoints"""
    log_every: int = 50
    """updates between lines of metrics.jsonl"""
    keep: int = 2
    """number of recent checkpoints to keep besides the best"""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """precision of the forward pass"""
    gradient_checkpointing: bool = False
    """recompute activations in the backward pass: less memory, more time"""
    compile: bool = False
    """compile the model with torch.compile"""
    sequence_parallel: int = 1
    """processes that each row is split over (1: every process has rows of its own)"""
    window: int | None = None
    """process a row in windows of this many tokens, carrying the state between them (None: the whole row at once)"""
    window_gradients: Literal["full", "truncated"] = "full"
    """let gradients flow between windows; truncated stops them, which saves a third of the work"""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """with several processes: replicate the model (ddp) or shard it (fsdp)"""
    tracker: Literal["tensorboard", "wandb", "trackio", "none"] = "tensorboard"
    """where to log curves, in addition to metrics.jsonl"""
    diagnostics: bool = False
    """log each layer's smallest denominator, fraction of zero denominators and gradient norm"""
    threads: int | None = None
    """number of torch threads (None: torch's default)"""
    workers: int = 0
    """extra processes that prepare rows (0: the training process does it)"""

    def __post_init__(self) -> None:
        for choice in (f for f in dataclasses.fields(self) if get_origin(f.type) is Literal):
            value, known = getattr(self, choice.name), get_args(choice.type)
            if value not in known:
                raise ValueError(f"{choice.name}={value!r}; known: {', '.join(known)}")
        counts = ("steps", "batch", "eval_batch", "eval_every", "save_every", "log_every", "keep", "sequence_parallel")
        for name in (*counts, *(n for n in ("window", "early_stopping") if getattr(self, n) is not None)):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; it must be at least 1")
        for name in ("lr", "warmup", "clip", "weight_decay", "workers", "min_lr"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}; it cannot be negative")
        if self.class_weights != "none" and (self.sequence_parallel > 1 or self.window is not None):
            raise ValueError(
                "class_weights='balanced' needs whole rows: leave out train.sequence_parallel and train.window"
            )
        if self.early_stopping is not None and self.strategy == "fsdp":
            raise ValueError("early_stopping does not resume with strategy='fsdp'; use strategy='ddp'")
        if self.micro_batch is not None and (self.micro_batch < 1 or self.batch % self.micro_batch):
            raise ValueError(f"micro_batch={self.micro_batch} must divide batch={self.batch}")


@dataclass(frozen=True)
class Experiment:
    """One run."""

    recipe: str
    """name used in tables and for the run's folder"""
    task: str
    """what to train for, a name in cosformer.tasks.TASKS: lm, mlm, classify, match"""
    data: DataConfig
    model: ModelConfig
    train: TrainConfig
    start: str | None = None
    """initial weights: a run's folder or a Hugging Face checkpoint (None: random)"""
    note: str = ""
    """what the recipe scales down or leaves open, shown in tables"""

    def to_json(self) -> str:
        """As text; :func:`from_json` gives the same value back."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n"


_PARTS: dict[str, type] = {"data": DataConfig, "model": ModelConfig, "train": TrainConfig}


def from_json(text: str) -> Experiment:
    """The experiment that ``to_json`` of this or an earlier version wrote; ValueError on wrong fields."""
    values = json_files.loads(text)
    if not isinstance(values, dict):
        raise ValueError("an experiment is a JSON object")
    for name, part in _PARTS.items():
        saved = values.get(name)
        values[name] = _build(part, with_current_names(name, saved) if isinstance(saved, dict) else saved, name)
    if isinstance(task := values.get("task"), str):
        values["task"] = TASKS.get(task, task)
    return _build(Experiment, values, "experiment")


def load_experiment(run: Path) -> Experiment:
    """The experiment of the run in the folder ``run``, or in a file that ends in .json."""
    path = run if run.suffix == ".json" else run / EXPERIMENT_FILE
    if path == run and not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give an experiment's file, as runs/NAME/{EXPERIMENT_FILE}")
    if not path.is_file():
        raise FileNotFoundError(f"{run} is not a run: it holds no {EXPERIMENT_FILE}; see `cosformer runs`")
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _build(kind: type, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise ValueError(f"{where} is missing or no JSON object")
    known = {f.name for f in dataclasses.fields(kind)}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise ValueError(f"{where} has no field {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error
