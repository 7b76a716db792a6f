"""Kills, flipped bytes, commands at once, downloads, full disks and misuses: ``make torture``, or ``make torture
ALL=1``.

Nothing may be lost, nothing wrong without a word, and no command may show a traceback. A tenth of the cases by default.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from cosformer import machine, processor

processor.prepare()
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # commands are forked

import torch  # noqa: E402
import transformers  # noqa: E402, F401

import cosformer.hf  # noqa: E402
import cosformer.prediction.model  # noqa: E402
import cosformer.train  # noqa: E402, F401
from torture.downloads import downloads  # noqa: E402
from torture.lab import Lab  # noqa: E402
from torture.misuses import misuses  # noqa: E402
from torture.on_runs import flips, full_disk, kills, pairs  # noqa: E402

SECTIONS = {
    "kills": (
        kills,
        100,
        "kill -9 and a resume: half at random moments, half a moment after a file of the run was touched",
    ),
    "flips": (flips, 200, "one bit of one file of a run flipped, then listed, reported, scored, used and resumed"),
    "pairs": (pairs, 40, "two commands on one run at once"),
    "downloads": (downloads, 20, "two processes bring one file, from a server that breaks off or sends a login page"),
    "full disk": (full_disk, 20, "no room in the middle of a run, then room and a resume"),
    "misuses": (misuses, 200, "commands with words and files that make no sense"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="all cases, not a tenth")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this section; may be given again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there")
    args = parser.parse_args()
    torch.set_num_threads(1)
    words = [word for word in sys.argv[1:] if word != "--json" and word != str(args.json)]
    origin = machine.provenance(words, "python -m torture")
    found = {}
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        lab = Lab(Path(folder))
        for name, (section, cases, what) in SECTIONS.items():
            if name in (args.only or SECTIONS):
                count = cases if args.all else max(cases // 10, 2)
                found[name] = _run(name, section(lab, random.Random(f"{args.seed} {name}"), count), what)
    failed = sum(each["failed"] for each in found.values())
    print(f"seed {args.seed}: {sum(each['cases'] for each in found.values())} cases, {failed} failed")
    if args.json:
        record = {"seed": args.seed, **origin, "machine": machine.describe(1), "sections": found}
        args.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if failed else 0


def _run(name: str, cases, what: str) -> dict:
    started, count, failures = time.monotonic(), 0, []
    for number, wrong in enumerate(cases):
        count += 1
        if wrong:
            failures.append(f"case {number}: {wrong}")
            print(f"FAILED {name}, case {number}: {wrong}", flush=True)
    print(f"{name}: {count} cases, {len(failures)} failed, {time.monotonic() - started:.0f} s", flush=True)
    return {"what": what, "cases": count, "failed": len(failures), "failures": failures}


if __name__ == "__main__":
    sys.exit(main())
