"""The saved progress of a linearization, so that a killed one resumes with the same result."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from cosformer.linearize.settings import Settings
from cosformer.terminal import training_bar

FOLDER = "unfinished"  # inside OUT while it is worked on
SECONDS = 60.0  # between two saves


class Progress:
    """The folder of an unfinished linearization: its settings and the newest state of the stage it is in."""

    def __init__(self, out: Path, source: str, text: str, settings: Settings) -> None:
        self.folder = out / FOLDER
        self.asked = {"source": source, "text": text, **asdict(settings)}
        self.saved_at = time.monotonic()

    def check(self) -> None:
        """Raise where ``out`` holds something else than this linearization, unfinished."""
        out = self.folder.parent
        if not out.exists() or not any(out.iterdir()):
            return
        try:
            before = json.loads((self.folder / "settings.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise FileExistsError(f"{out} is not empty; choose another place for the linearized model") from None
        changed = [name for name, value in self.asked.items() if before.get(name) != value]
        if changed:
            was = ", ".join(f"{name}={before.get(name)!r}" for name in changed)
            raise FileExistsError(
                f"{out} holds an unfinished linearization with {was}; repeat it, or choose another place"
            )

    def begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "settings.json").write_text(json.dumps(self.asked, indent=1), encoding="utf-8")

    def load(self) -> dict[str, Any] | None:
        path = self.folder / "state.pt"
        return torch.load(path, weights_only=True) if path.exists() else None

    def save(self, state: Callable[[], dict[str, Any]], *, now: bool = False) -> None:
        """Every minute, or ``now``; the old state or the new one is there, whatever happens in between."""
        if not now and time.monotonic() - self.saved_at < SECONDS:
            return
        torch.save(state(), self.folder / "state.new")
        os.replace(self.folder / "state.new", self.folder / "state.pt")
        self.saved_at = time.monotonic()


class Bar:
    """Loss and remaining time: a bar on a terminal, a line every half minute elsewhere."""

    def __init__(self, title: str, first: int, total: int, quiet: bool) -> None:
        self.title, self.total, self.done, self.first = title, total, first, first
        self.began = self.told = time.monotonic()
        self.bar = None if quiet else training_bar(title, total, first)
        self.quiet = quiet

    def step(self, loss: float) -> None:
        self.done += 1
        now = time.monotonic()
        if self.bar is not None:
            self.bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
            self.bar.update()
        elif not self.quiet and (now - self.told > 30 or self.done == self.total):
            left = (now - self.began) / (self.done - self.first) * (self.total - self.done)
            line = f"{self.title} {self.done}/{self.total}, loss {loss:.4f}, {left / 60:.0f} min left"
            print(line, file=sys.stderr, flush=True)
            self.told = now

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
