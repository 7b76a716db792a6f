"""Trainer callbacks: progress bar, stop on a signal, a check of the start."""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cosformer.terminal import training_bar
from cosformer.train import checkpoints
from cosformer.train.engine import TrainingFailed


class Progress(TrainerCallback):
    """One bar for one run, on stderr: loss, tokens per second and remaining time; plain lines where no terminal is."""

    def __init__(self, title: str, metric: str) -> None:
        self.title, self.metric = title, metric
        self._bar: Any = None
        self._latest: dict[str, str] = {"loss": "", "held_out": "", "speed": ""}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            self._bar = training_bar(self.title, state.max_steps, state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        if "loss" in logs and "tokens_per_second" in logs:
            self._latest |= {"loss": f"loss {logs['loss']:.4f}", "speed": f"{logs['tokens_per_second']:,.0f} tokens/s"}
            line = f"{self._latest['loss']}  {self._latest['speed']}"
        elif f"eval_{self.metric}" in logs:
            line = self._latest["held_out"] = f"held out: {self.metric} {logs[f'eval_{self.metric}']:.4f}"
        else:
            return
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(filter(None, self._latest.values())))
        else:
            print(f"{self.title}  {state.global_step}/{state.max_steps}  {line}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was, also after an error."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class StopOnSignal(TrainerCallback):
    """SIGTERM and SIGINT end a run after the update that is under way, with a checkpoint. A context, too: inside it the
    first signal asks for a stop, the second interrupts at once."""

    def __init__(self) -> None:
        self.received: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopOnSignal":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        if self._any_process_signalled(args):
            self.received = self.received or "a signal to another process"
            control.should_save = control.should_training_stop = True
        return control

    def _any_process_signalled(self, args: TrainingArguments) -> bool:
        """Whether any process received a signal: all must stop after the same update."""
        if args.world_size == 1:
            return self.received is not None
        told = torch.tensor(float(self.received is not None), device=args.device)
        dist.all_reduce(told)
        return bool(told > 0)


class StartsAt(TrainerCallback):
    """Stops before the first update unless all of ``checkpoint`` was loaded: Trainer ignores missing files."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint, self.loaded = checkpoint, False

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._check(state)
        self.loaded = state.global_step >= state.max_steps  # there is no update to come

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if not self.loaded:  # again, as the random states are loaded last; later it may be pruned
            self._check(state)
            self.loaded = True

    def _check(self, state: TrainerState) -> None:
        step = checkpoints.step_of(self.checkpoint)
        if state.global_step != step:
            raise TrainingFailed(
                f"{self.checkpoint} is of update {step}, but training would begin at {state.global_step}; remove this "
                "checkpoint, or put back the file that is missing in it, and resume again"
            )
        if not checkpoints.is_whole(self.checkpoint):
            raise TrainingFailed(f"{self.checkpoint} was changed by another process while it was loaded")
