"""The progress bar: loss, tokens per second and remaining time; plain lines where no terminal is."""

import sys
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cosformer.extras import require


class Progress(TrainerCallback):
    """One bar for one run, on stderr."""

    def __init__(self, title: str, score: str) -> None:
        require("train", "rich")
        self.title, self.score = title, score
        self._bar: Any = None
        self._task: Any = None
        self._latest: dict[str, str] = {"loss": "", "speed": "", "best": ""}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not (state.is_world_process_zero and sys.stderr.isatty()):
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]} {task.fields[best]} {task.fields[speed]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(self.title, total=state.max_steps, completed=state.global_step, **self._latest)
        self._bar.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=state.global_step)

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
        elif f"eval_{self.score}" in logs:
            self._latest["best"] = f"{self.score} {logs[f'eval_{self.score}']:.4f}"
            line = f"held out: {self._latest['best']}"
        else:
            return
        if self._bar is not None:
            self._bar.update(self._task, **self._latest)
        else:
            print(f"{self.title}  {state.global_step}/{state.max_steps}  {line}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was, also after an error."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
