"""SIGTERM and SIGINT end a run after the update that is under way, with a checkpoint."""

import signal
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopOnSignal(TrainerCallback):
    """A context, too: inside it the first signal asks for a stop, the second interrupts at once."""

    def __init__(self) -> None:
        self.received: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopOnSignal":
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if self._any_process_signalled(args):
            self.received = self.received or "a signal to another process"
            control.should_save = control.should_training_stop = True
        return control

    def _any_process_signalled(self, args: TrainingArguments) -> bool:
        """Whether any process was told: all must stop after the same update."""
        if args.world_size == 1:
            return self.received is not None
        told = torch.tensor(float(self.received is not None), device=args.device)
        dist.all_reduce(told)
        return bool(told > 0)
