"""A training run as a value: frozen dataclasses, written to ``experiment.json`` and enough to rebuild everything."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

Option = str | int | float | bool | None
Schedule = Literal["constant", "linear", "cosine", "cosine_cycles", "inverse_sqrt"]
SCHEDULES: tuple[str, ...] = get_args(Schedule)
# what a run's folder holds
EXPERIMENT_FILE = "experiment.json"
RUN_FILE, METRICS_FILE, RESULT_FILE = "run.json", "metrics.jsonl", "result.json"


# `cosformer train RECIPE --help` shows the comment of each field


@dataclass(frozen=True)
class DataConfig:
    """Which data: a name of ``cosformer data list`` and that set's own options."""

    name: str  # the data set, as `cosformer data list` names it
    options: dict[str, Option] = field(default_factory=dict)  # of the data set, one by one: --data.options.path FILE
    length: int | None = None  # tokens of a training row (a block, or the longest document); None: the set's own
    eval_rows: int | None = None  # rows of a split that are scored at most, of documents spread evenly; None: all
    full_test: bool = False  # score all of the test split at the end, and of a stream the loss by position too
    masked: float = 0.15  # of mlm: share of the tokens that training hides and asks for; scores always hide 15 %


@dataclass(frozen=True)
class ModelConfig:
    """Which model: a preset's architecture (see ``cosformer.models.presets``) with the fields that are not None changed. The
    vocabulary and the classes come from the data."""

    preset: str  # the architecture that the other fields change
    attention: str = "cosformer"  # a name of `cosformer list`, or several for layers by turns: local,cosformer
    # its options, one by one: --model.attention-options.KEY VALUE; of several, KEY is as local.window
    attention_options: dict[str, Option] = field(default_factory=dict)
    layers: int | None = None  # how many; None: the preset's
    width: int | None = None  # of the hidden states; None: the preset's
    heads: int | None = None  # of the attention in each layer; None: the preset's
    feed_forward: int | None = None  # inner width of the feed-forward blocks; None: the preset's
    max_len: int | None = None  # the paper's M, at least the longest input; None: as long as the data's rows
    dropout: float | None = None  # share of values that are dropped, never of attention weights; None: the preset's
    # any other field of CosformerConfig, one by one: --model.fields.KEY VALUE
    fields: dict[str, Option] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainConfig:
    """How to train."""

    steps: int  # updates in all
    batch: int  # rows of one update, over all processes
    lr: float  # the peak of the learning rate
    optimizer: Literal["adam", "nag"] = "adam"  # Adam with decoupled weight decay, or Nesterov's accelerated gradient
    beta1: float = 0.9  # of adam: decay of the mean of the gradients
    beta2: float = 0.98  # of adam: decay of the mean of their squares
    eps: float = 1e-8  # of adam: what keeps it from dividing by zero
    momentum: float = 0.99  # of nag
    weight_decay: float = 0.0  # how strongly weights are drawn towards zero
    schedule: Schedule = "linear"  # of the learning rate after the warmup; see docs/training.md
    warmup: int = 0  # updates over which the learning rate rises from zero to its peak
    cycle: int | None = None  # updates of the first cycle of the cosine schedules; None: all after the warmup
    min_lr: float = 0.0  # the learning rate at the end of the linear and cosine schedules
    clip: float = 0.0  # largest gradient norm; 0: none
    seed: int = 0  # of the initial weights, the order of the rows and dropout
    group_by_length: bool = False  # an update takes rows of about the same length: less padding
    micro_batch: int | None = None  # rows of one forward pass of one process: fewer save memory; None: its share
    eval_batch: int = 32  # rows of one forward pass when scoring
    eval_every: int = 1000  # updates between evaluations
    save_every: int = 1000  # updates between checkpoints
    log_every: int = 50  # updates between lines of metrics.jsonl
    keep: int = 2  # checkpoints that stay, besides the best
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"  # of the forward pass; weights stay in float32
    gradient_checkpointing: bool = False  # compute activations again in the backward pass: less memory, more time
    compile: bool = False  # with torch.compile
    sequence_parallel: int = 1  # processes that share each row, a piece of it each; 1: each has rows of its own
    piece: int | None = None  # tokens of a row that one device works on at a time; None: the whole row
    # also from a piece to those before it; truncated: not, which saves a third of the work
    piece_gradients: Literal["full", "truncated"] = "full"
    strategy: Literal["ddp", "fsdp"] = "ddp"  # with several processes: a whole model in each, or shards of one
    tracker: Literal["tensorboard", "wandb", "trackio", "none"] = "tensorboard"  # where curves go besides metrics.jsonl
    diagnostics: bool = False  # log each layer's smallest denominator, share of zero denominators and gradient norm
    threads: int | None = None  # of torch; None: its own choice
    workers: int = 0  # processes that prepare rows; 0: none besides the training one

    def __post_init__(self) -> None:
        for choice in (f for f in dataclasses.fields(self) if get_origin(f.type) is Literal):
            value, known = getattr(self, choice.name), get_args(choice.type)
            if value not in known:
                raise ValueError(f"{choice.name}={value!r}; known: {', '.join(known)}")
        counts = ("steps", "batch", "eval_batch", "eval_every", "save_every", "log_every", "keep", "sequence_parallel")
        for name in (*counts, *(["piece"] if self.piece is not None else [])):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; it must be at least 1")
        for name in ("lr", "warmup", "clip", "weight_decay", "workers", "min_lr"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}; it cannot be negative")
        if self.micro_batch is not None and (self.micro_batch < 1 or self.batch % self.micro_batch):
            raise ValueError(f"micro_batch={self.micro_batch} must divide batch={self.batch}")


@dataclass(frozen=True)
class Experiment:
    """One run."""

    recipe: str  # the name that tables and folders use
    task: str  # a name of cosformer.tasks.TASKS: lm, mlm, classify, match
    data: DataConfig
    model: ModelConfig
    train: TrainConfig
    start: str | None = None  # a run's folder or Hugging Face checkpoint whose body to start from; None: none
    note: str = ""  # what the recipe shrinks or leaves open, for the tables

    def to_json(self) -> str:
        """As text; :func:`from_json` gives the same value back."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n"


_PARTS: dict[str, type] = {"data": DataConfig, "model": ModelConfig, "train": TrainConfig}


def from_json(text: str) -> Experiment:
    """The experiment that ``to_json`` wrote; unknown or missing fields raise ValueError."""
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("an experiment is a JSON object")
    for name, part in _PARTS.items():
        values[name] = _build(part, values.get(name), name)
    return _build(Experiment, values, "experiment")


def load_experiment(run: Path) -> Experiment:
    """The experiment of the run in the folder ``run``."""
    path = run / EXPERIMENT_FILE
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
