"""Several processes under torchrun, each with its part of the rows; and a GPU where there is one."""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn


def start() -> torch.device:
    """Join the other processes, if torchrun started some; the device of this one."""
    local = int(os.environ.get("LOCAL_RANK", 0))
    if "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")


def stop() -> None:
    """Leave the other processes, once all are done."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def share(*rows: Tensor) -> list[Tensor]:
    """This process's rows of a batch."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    if len(rows[0]) % world:
        raise ValueError(f"batch={len(rows[0])} does not divide among {world} processes; give a multiple of it")
    return [x[rank() :: world] for x in rows]


def average(tensor: Tensor) -> None:
    """Make ``tensor`` its mean over all processes."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


def average_gradients(module: nn.Module) -> None:
    """The mean over all processes."""
    for parameter in module.parameters():
        if parameter.grad is not None:
            average(parameter.grad)


def of_first(value: float, device: torch.device) -> float:
    """The value that the first process has."""
    if not dist.is_initialized():
        return value
    shared = torch.tensor(value, dtype=torch.float64, device=device)
    dist.broadcast(shared, 0)
    return float(shared)
