"""What fixed decays cost: `python -m benchmarks.decay`, beside cosFormer without them, in turn in one process.

A row is a ratio of medians over interleaved repeats: cosFormer with decays over cosFormer without (causal), and the
non-causal form with decays over the causal one.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cosformer import cosformer_attention
from cosformer.attention import build_attention
from cosformer.bench.measure import interleaved

HEADS, CHANNELS = 8, 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", type=Path, help="a file for the results, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = {}
    for length in options.lengths:
        for kind in ("forward", "forward and backward"):
            actions = {name: action(name, kind, length) for name in ("plain", "decay", "both directions")}
            times = interleaved(actions, repeats=options.repeats, settle=True)
            middle = {name: statistics.median(samples) for name, samples in times.items()}
            rows[f"{length}, {kind}, causal with decay over plain"] = middle["decay"] / middle["plain"]
            rows[f"{length}, {kind}, non-causal over causal with decay"] = middle["both directions"] / middle["decay"]
    times = interleaved({name: one_token(name) for name in ("plain", "decay")}, repeats=options.repeats, settle=True)
    middle = {name: statistics.median(samples) for name, samples in times.items()}
    rows["one token, with decay over plain"] = middle["decay"] / middle["plain"]
    for name, ratio in rows.items():
        print(f"{name:<58} {ratio:6.3f}")
    if options.write:
        record = {"repeats": options.repeats, "threads": options.threads, "ratios": rows}
        options.write.write_text(json.dumps(record, indent=1) + "\n")
    return 0


def rates(causal: bool, length: int) -> torch.Tensor:
    """The rates of ``multiscale`` for these heads."""
    sizes: dict[str, Any] = {"num_heads": HEADS, "head_dim": CHANNELS, "max_len": length}
    return build_attention("multiscale", **sizes, causal=causal).rates_single  # pyright: ignore


def action(name: str, kind: str, length: int) -> Callable[[], object]:
    causal = name != "both directions"
    decay = None if name == "plain" else rates(causal, length)
    q, k, v = (torch.randn(1, HEADS, length, CHANNELS, requires_grad=kind != "forward") for _ in range(3))

    def forward() -> torch.Tensor:
        return cosformer_attention(q, k, v, causal=causal, max_len=length, decay=decay)

    return forward if kind == "forward" else lambda: forward().sum().backward()


def one_token(name: str) -> Callable[[], object]:
    q, k, v = (torch.randn(1, HEADS, 1, CHANNELS) for _ in range(3))
    settings = {"causal": True, "max_len": 4096, "return_state": True}
    settings["decay"] = None if name == "plain" else rates(True, 4096)
    _, state = cosformer_attention(q, k, v, **settings)  # pyright: ignore
    return lambda: cosformer_attention(q, k, v, state=state, **settings)  # pyright: ignore


if __name__ == "__main__":
    sys.exit(main())
