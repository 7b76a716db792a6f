"""``python -m benchmarks imports``: what importing the library costs above what it is built on, in new processes."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from cosformer import terminal
from cosformer.bench.measure import interleaved, measured, spread
from cosformer.report.measurements import Measurement

QUICK = {"repeats": 3}
#: what is imported, what it is compared with, and the code that both begin with and that is added
CASES = (
    (
        "cosformer_attention and its first call",
        "torch",
        "import torch; q = torch.randn(1, 2, 300, 8)",
        "from cosformer import cosformer_attention; cosformer_attention(q, q, q, causal=True)",
    ),
    # `import transformers` alone loads neither torch nor a model class
    ("cosformer.hf", "PreTrainedModel", "from transformers import PreTrainedModel", "import cosformer.hf"),
)


def measurements(*, repeats: int = 15, threads: int = 2) -> Iterator[Measurement]:
    for what, baseline, before, added in CASES:
        terminal.status(f"importing {what}")
        actions = {baseline: partial(start, before), what: partial(start, f"{before}; {added}")}
        for action in actions.values():
            action()  # the files are in the system's cache from now on
        times = interleaved(actions, repeats=repeats, budget=600.0, warm=True)
        m = Measurement(kind="import", variant=what, baseline=baseline, unit="s more", better="lower")
        m = measured(m, [ours - theirs for ours, theirs in zip(times[what], times[baseline], strict=True)])
        yield replace(
            m, milliseconds=1e3 * spread(times[what]).median, baseline_milliseconds=1e3 * spread(times[baseline]).median
        )


def start(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)
