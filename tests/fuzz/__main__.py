"""Random calls of the operator against an oracle written apart from it: ``make fuzz SEED=1 COUNT=2000``."""

import argparse
import json
import sys
import time
import traceback
from collections import defaultdict
from pathlib import Path

import numpy as np

from cosformer import machine
from fuzz.cases import draw, run_case


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000, help="cases (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (default: %(default)s)")
    parser.add_argument("--decay", action="store_true", help="leave out the cases without decay, about three quarters")
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="append a line of what was run, as tests/fuzz/ran.jsonl has it"
    )
    args = parser.parse_args()
    start, failures = time.monotonic(), 0
    worst: dict[tuple[str, str], tuple[float, float, int]] = {}
    forms: dict[str, int] = defaultdict(int)
    decay = 0
    for number in range(args.first, args.first + args.count):
        if args.decay and not draw(np.random.default_rng([args.seed, number])).decay:
            continue
        reproduce = f"make fuzz SEED={args.seed} FIRST={number} COUNT=1"
        try:
            case, errors = run_case(args.seed, number)
        except Exception as error:  # a call that raises is a failure like any other
            failures += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"FAILED {reproduce}: {type(error).__name__}: {error} ({where.name})", flush=True)
            continue
        forms[case.form] += 1
        decay += case.decay > 0
        wrong = {name: f"{error.allowed:.1e}" for name, error in errors.items() if not error.allowed <= 1}
        if wrong:
            failures += 1
            print(f"FAILED {reproduce}: {wrong} times what is allowed to {case}", flush=True)
        for name, error in errors.items():
            kind = (case.dtype, {"out": "output", "kv": "state", "z": "state"}.get(name, "gradient"))
            worst[kind] = max(worst.get(kind, (0.0, 0.0, 0)), (error.allowed, error.relative, number))
    print(
        f"seed {args.seed}, numbers {args.first:,} to {args.first + args.count - 1:,}, {sum(forms.values()):,} cases, "
        f"{decay:,} with decay, {failures} failed, {time.monotonic() - start:.0f} s"
    )
    print("by form: " + ", ".join(f"{form} {count:,}" for form, count in sorted(forms.items())))
    for (dtype, what), (allowed, relative, number) in sorted(worst.items()):
        print(
            f"  {dtype:8} {what:8} worst {relative:.1e} of its magnitude, {allowed:.2f} of what is allowed (case "
            f"{number})"
        )
    if args.log:
        ran = {"seed": args.seed, "first": args.first, "count": args.count, "failed": failures}
        ran |= {"with_decay": decay, "forms": forms}
        ran["worst"] = {f"{dtype} {what}": [f"{x:.2g}" for x in found[:2]] for (dtype, what), found in worst.items()}
        with args.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(ran | machine.provenance(sys.argv[1:], "python -m fuzz")) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
