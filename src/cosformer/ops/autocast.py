"""Autocast, asked so that every device has an answer: torch raises for devices that know none, such as meta."""

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast_enabled(device: torch.device) -> bool:
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A region in which tensors of this device keep their dtypes."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)
