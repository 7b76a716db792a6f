"""A progress bar on a terminal, and nothing at all elsewhere."""

import sys
import time


class Progress:
    """``with Progress("generating", total) as bar: bar.advance(n)``. Writes to stderr, only where that is a terminal."""

    def __init__(self, label: str, total: int | None, unit: str = "rows") -> None:
        self.label, self.total, self.unit, self.done = label, total, unit, 0
        self._shown, self._start, self._last = sys.stderr.isatty(), time.monotonic(), 0.0

    def __enter__(self) -> "Progress":
        return self

    def advance(self, amount: int) -> None:
        self.done += amount
        now = time.monotonic()
        if self._shown and now - self._last > 0.1:
            self._last = now
            sys.stderr.write("\r\x1b[K" + self.line(now - self._start))
            sys.stderr.flush()

    def line(self, seconds: float) -> str:
        """The bar as text: share done, counts and rate."""
        rate = f"{self.done / max(seconds, 1e-9):,.0f} {self.unit}/s"
        if not self.total:
            return f"{self.label}: {self.done:,} {self.unit}, {rate}"
        share = min(self.done / self.total, 1.0)
        bar = "█" * int(30 * share) + "░" * (30 - int(30 * share))
        return f"{self.label} {bar} {share:4.0%} of {self.total:,} {self.unit}, {rate}"

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
