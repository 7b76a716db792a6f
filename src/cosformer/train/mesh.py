"""The rows of a run as one list, whatever the number of processes, and how those share it: a mesh of data ranks, which
have different rows, and sequence ranks, which split a row between them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from cosformer.models.windows import losses_in_windows
from cosformer.tasks.base import Task

TASKS = ("lm", "mlm")  # whose losses stand at positions; the others pool a whole row
_SEED_STEP = 1_000_003  # between the dropout seeds of neighbouring ranks


class Stream(Dataset):
    """``steps * batch`` rows: pass after pass over the task's rows, each in an order drawn from (seed, pass).
    ``alike``: rows of about the same length stand together, so many at a time, and are padded less. (Where that number
    does not divide the rows, updates of later passes may take from two groups.)

    Row i is the same whenever, wherever and however often it is asked for: a resumed run reads on at its place, and two
    processes that share the list see what one would see.
    """

    def __init__(self, task: Task, length: int, seed: int, bucket_size: int | None = None) -> None:
        if task.train_rows < 1:
            raise ValueError("the training split holds no row; is data.length longer than the whole text?")
        self.task, self.length, self.seed, self.bucket_size = task, length, seed, bucket_size
        self._lengths = None if bucket_size is None else task.train_lengths()
        self._pass, self._order = -1, np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        number, place = divmod(int(index), self.task.train_rows)
        if number != self._pass:
            rng = np.random.default_rng([self.seed, number])
            self._order = rng.permutation(self.task.train_rows)
            if self.bucket_size is not None and self._lengths is not None:
                self._order = bucket_by_length(self._order, self._lengths, self.bucket_size, rng)
            self._pass = number
        return self.task.train_row(int(self._order[place]), number)


def bucket_by_length(order: np.ndarray, lengths: np.ndarray, bucket_size: int, rng: np.random.Generator) -> np.ndarray:
    """Reorder ``order`` into buckets of rows of similar length: sort 50 buckets at a time, then shuffle them."""
    groups = []
    for start in range(0, len(order), 50 * bucket_size):
        some = order[start : start + 50 * bucket_size]
        some = some[np.argsort(lengths[some], kind="stable")]
        parts = [some[i : i + bucket_size] for i in range(0, len(some), bucket_size)]
        groups += [parts[i] for i in rng.permutation(len(parts))]
    return np.concatenate(groups)


class Mesh:
    """Process ``r`` of ``shards * D`` is data rank ``r // shards`` and holds shard ``r % shards`` of its rows."""

    def __init__(self, shards: int, device: torch.device) -> None:
        self.shards, self.group = shards, None
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.data_rank, self.shard = divmod(rank, shards)
        self.data_ranks = world // shards
        if shards > 1:
            names = ("data", "sequence")
            mesh = dist.init_device_mesh(device.type, (self.data_ranks, shards), mesh_dim_names=names)
            self.group = mesh.get_group("sequence")

    def loader(self, rows: Any, batch: int, collate: Any, workers: int) -> DataLoader:
        """This data rank's batches: one of every ``data_ranks`` consecutive ones, as accelerate deals them."""
        batches = [range(start, start + batch) for start in range(0, len(rows), batch)]
        mine = batches[self.data_rank :: self.data_ranks]
        return DataLoader(rows, batch_sampler=mine, collate_fn=collate, num_workers=workers)  # pyright: ignore[reportArgumentType]

    def cut(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """This rank's shard of each row: tensors are ``[B,N]``."""
        length = batch["input_ids"].shape[1]
        first, last = (length * (self.shard + i) // self.shards for i in (0, 1))
        return {name: x[:, first:last].contiguous() for name, x in batch.items()}

    def whole(self, x: Tensor, length: int) -> Tensor:
        """The shards ``[B,n]`` of all sequence ranks side by side, ``[B,length]``."""
        longest = -(-length // self.shards)
        every = [x.new_zeros(x.shape[0], longest) for _ in range(self.shards)]
        dist.all_gather(every, nn.functional.pad(x, (0, longest - x.shape[1])), group=self.group)
        ends = [length * rank // self.shards for rank in range(self.shards + 1)]
        return torch.cat([part[:, : b - a] for part, a, b in zip(every, ends, ends[1:], strict=False)], 1)

    def seed(self, seed: int) -> None:
        """Ranks that share rows hold different tokens, so they must not drop the same places."""
        if self.shards > 1:
            torch.manual_seed(seed + _SEED_STEP * (self.data_rank * self.shards + self.shard))


class Scored(nn.Module):
    """``model`` for scoring: takes whole rows and returns their losses, on a mesh or in windows."""

    def __init__(self, model: nn.Module, mesh: Mesh | None, window: int | None) -> None:
        super().__init__()
        self.model, self.mesh, self.window = model, mesh, window

    def forward(self, *, reduction: str, **batch: Any) -> Any:
        assert reduction == "none"
        batch.pop("use_cache", None)
        if self.window is not None:
            return SimpleNamespace(loss=losses_in_windows(self.model, batch, window=self.window))
        assert self.mesh is not None
        length = batch["input_ids"].shape[1]
        found = self.model(**self.mesh.cut(batch), reduction="none", sequence_group=self.mesh.group).loss
        return SimpleNamespace(loss=self.mesh.whole(found, length))


def check(train: Any, task: str, world: int) -> None:
    """Raise on sequence_parallel and window settings that do not go together, or not with this many processes."""
    shards = train.sequence_parallel
    if world % shards:
        raise ValueError(
            f"sequence_parallel={shards} does not divide {world} processes; start it with"
            f" `torchrun --nproc-per-node={shards * max(1, world // shards)}`, or use sequence_parallel=1"
        )
    for name, value in (("sequence_parallel", shards > 1), ("window", train.window is not None)):
        if value and task not in (TASKS if name == "sequence_parallel" else TASKS[:1]):
            raise ValueError(f"{name} does not go with task {task!r}, which looks at whole rows; leave it out")
        if value and train.strategy == "fsdp":
            raise ValueError(f"{name} goes with strategy='ddp', not with 'fsdp'")
    if train.window is not None:
        others: Sequence[tuple[str, bool]] = (
            ("sequence_parallel", shards > 1),
            ("gradient_checkpointing, as windows are computed again anyway", train.gradient_checkpointing),
            ("precision='fp16'", train.precision == "fp16"),
            ("diagnostics", train.diagnostics),
        )
        for name, given in others:
            if given:
                raise ValueError(f"window={train.window} does not go with {name}; leave one of them out")
