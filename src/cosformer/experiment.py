"""A training run as a value: frozen dataclasses, written to ``experiment.json`` and enough to rebuild everything."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Option = str | int | float | bool | None

OPTIMIZERS = ("adam", "nag")
SCHEDULES = ("constant", "linear", "cosine", "cosine_cycles", "inverse_sqrt")
PRECISIONS = ("fp32", "bf16", "fp16")
STRATEGIES = ("ddp", "fsdp")
TRACKERS = ("tensorboard", "wandb", "trackio", "none")
# what a run's folder holds
EXPERIMENT_FILE = "experiment.json"
RUN_FILE, METRICS_FILE, RESULT_FILE = "run.json", "metrics.jsonl", "result.json"


@dataclass(frozen=True)
class DataConfig:
    """Which data: a name of ``cosformer data list`` and that set's own options.

    length: tokens of one training row (blocks of a stream, or the longest document); None: the set's own.
    eval_rows: rows of a split that are scored at most (of a stream the first, of documents spread evenly); None: all.
    full_test: score all of the test split at the end, whatever ``eval_rows`` says, and of a stream the loss by position too.
    """

    name: str
    options: dict[str, Option] = field(default_factory=dict)
    length: int | None = None
    eval_rows: int | None = None
    full_test: bool = False


@dataclass(frozen=True)
class ModelConfig:
    """Which model: a preset's architecture (see ``cosformer.models.presets``) with the fields that are not None changed.

    attention: a name of ``cosformer list attentions``, with its own attention_options. max_len: the paper's M; None: as long
    as the data's rows. fields: any other field of CosformerConfig. The vocabulary and the classes come from the data.
    """

    preset: str
    attention: str = "cosformer"
    attention_options: dict[str, Option] = field(default_factory=dict)
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    feed_forward: int | None = None
    max_len: int | None = None
    dropout: float | None = None
    fields: dict[str, Option] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    steps: updates. batch: rows of one update, over all processes; micro_batch: rows of one forward pass of one process
    (None: its whole share; less means gradient accumulation). lr: the peak. schedule and warmup: see ``cosformer.train.schedules``.
    clip: largest gradient norm, 0 for none. save_every, eval_every, log_every: in updates; keep: checkpoints besides the best.
    diagnostics: log each layer's smallest denominator, share of zero denominators and gradient norm.
    threads: of torch, None for its own choice.
    """

    steps: int
    batch: int
    lr: float
    optimizer: str = "adam"
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-8
    momentum: float = 0.99
    weight_decay: float = 0.0
    schedule: str = "linear"
    warmup: int = 0
    cycle: int | None = None
    min_lr: float = 0.0
    clip: float = 0.0
    seed: int = 0
    micro_batch: int | None = None
    eval_batch: int = 32
    eval_every: int = 1000
    save_every: int = 1000
    log_every: int = 50
    keep: int = 2
    precision: str = "fp32"
    gradient_checkpointing: bool = False
    compile: bool = False
    strategy: str = "ddp"
    tracker: str = "tensorboard"
    diagnostics: bool = False
    threads: int | None = None
    workers: int = 0

    def __post_init__(self) -> None:
        choices = {"optimizer": OPTIMIZERS, "schedule": SCHEDULES, "precision": PRECISIONS}
        choices |= {"strategy": STRATEGIES, "tracker": TRACKERS}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}; known: {', '.join(known)}")
        for name in ("steps", "batch", "eval_batch", "eval_every", "save_every", "log_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; it must be at least 1")
        for name in ("lr", "warmup", "clip", "weight_decay", "workers", "min_lr"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}; it cannot be negative")
        if self.micro_batch is not None and (self.micro_batch < 1 or self.batch % self.micro_batch):
            raise ValueError(f"micro_batch={self.micro_batch} must divide batch={self.batch}")


@dataclass(frozen=True)
class Experiment:
    """One run. task: a name of ``cosformer.tasks.TASKS``. start: a run's folder or a Hugging Face checkpoint whose body the
    model starts from; None: from scratch. note: what the recipe shrinks or leaves open, for the tables."""

    recipe: str
    task: str
    data: DataConfig
    model: ModelConfig
    train: TrainConfig
    start: str | None = None
    note: str = ""

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
