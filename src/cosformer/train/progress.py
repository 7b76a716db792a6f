"""The progress bar: loss, tokens per second and remaining time; plain lines where no terminal is."""

import sys
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class Progress(TrainerCallback):
    """One bar for one run, on stderr."""

    def __init__(self, title: str, score: str) -> None:
        self.title, self.score = title, score
        self._bar: Any = None
        self._latest: dict[str, str] = {"loss": "", "held_out": "", "speed": ""}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not (state.is_world_process_zero and sys.stderr.isatty()):
            return
        self._bar = tqdm(
            desc=self.title,
            total=state.max_steps,
            initial=state.global_step,
            dynamic_ncols=True,
            bar_format="{desc} {bar} {n_fmt}/{total_fmt}{postfix}, {remaining} left",
        )

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
        elif f"eval_{self.score}" in logs:
            line = self._latest["held_out"] = f"held out: {self.score} {logs[f'eval_{self.score}']:.4f}"
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
