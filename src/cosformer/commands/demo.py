"""``cosformer demo``: see it work in under a minute: every form exact, and how much faster than softmax attention."""

import argparse

from cosformer import terminal

LENGTHS = (1024, 4096, 16384)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=2, help="for the speed table (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    if args.threads < 1:
        raise ValueError(f"--threads {args.threads}; it must be at least 1")
    import torch

    torch.set_num_threads(args.threads)
    exact = _show_exactness()
    _show_speed()
    if not exact:
        print("Some forms are not exact on this machine: `cosformer check` shows which; please report its output.")
        return 1
    print(
        "Next: `cosformer check` shows each form, `cosformer bench attention` measures more, README.md has code to start."
    )
    return 0


def _show_exactness() -> bool:
    from cosformer.bench import exactness
    from cosformer.commands.check import verdict

    print(terminal.paint("1. Is it exact?", "bold"), "Every form against the definition, outputs and gradients.\n")
    findings = []
    for finding in exactness.measure():
        terminal.status(f"{finding.form} ({finding.backend}, {finding.dtype})")
        findings.append(finding.as_dict())
    terminal.status("")
    print(verdict(findings), "\n")
    return all(finding["passed"] for finding in findings)


def _show_speed() -> None:
    from cosformer.bench.operator import forward

    print(
        terminal.paint("2. Is it fast?", "bold"), "Causal attention, 8 heads of 64 channels, float32, no gradients.\n"
    )
    lines, times = [], []
    for n in LENGTHS:
        (row,) = forward(n, "causal", backend="auto", repeats=3, baselines=False)
        softmax, ours = row.milliseconds["sdpa"], row.milliseconds["cosformer"]
        times.append((softmax, ours))
        lines.append([f"{n:,}", f"{softmax:,.1f} ms", f"{ours:,.1f} ms", f"{row.value:.1f}x"])
    terminal.status("")
    print(terminal.table(["tokens", "softmax (torch SDPA)", "cosFormer", "faster by"], lines), "\n")
    softmax_growth, growth = (last / first for first, last in zip(times[0], times[-1], strict=True))
    print(
        f"From {LENGTHS[0]:,} to {LENGTHS[-1]:,} tokens, {LENGTHS[-1] / LENGTHS[0]:g} times as many, cosFormer took "
        f"{growth:.0f} times as long and softmax attention {softmax_growth:.0f} times.\n"
    )
