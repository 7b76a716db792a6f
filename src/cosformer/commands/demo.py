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

    from cosformer.bench import exactness
    from cosformer.commands.check import verdict

    torch.set_num_threads(args.threads)
    print(terminal.paint("1. Is it exact?", "bold"), "Every form against the definition, outputs and gradients")
    findings = []
    for finding in exactness.measure():
        terminal.status(f"{finding.form} ({finding.backend}, {finding.dtype})")
        findings.append(finding.as_dict())
    terminal.status("")
    print(verdict(findings), "\n")
    print(
        terminal.paint("2. Is it fast?", "bold"),
        "Causal attention, 8 heads of 64 channels, float32, without gradients\n",
    )
    speed = _speed_table()
    print(speed, "\n")
    exact = all(finding["passed"] for finding in findings)
    if not exact:
        print("Some forms are not exact on this machine: run `cosformer check` and report its output.")
        return 1
    print("Every form gives the same numbers, and the time grows with the length, not with its square.")
    print(
        "Next: `cosformer check` shows each form, `cosformer bench attention` measures more, README.md has code to start from."
    )
    return 0


def _speed_table() -> str:
    from cosformer.bench.operator import forward

    lines = []
    for n in LENGTHS:
        (row,) = forward(n, "causal", backend="auto", repeats=3, baselines=False)
        assert row.value is not None
        times = row.milliseconds
        lines.append([f"{n:,}", f"{times['sdpa']:,.1f} ms", f"{times['cosformer']:,.1f} ms", f"{row.value:.1f}x"])
    terminal.status("")
    return terminal.table(["tokens", "softmax (torch SDPA)", "cosFormer", "faster by"], lines)
