"""Kills, flipped bytes, commands at once, downloads, full disks and misuses: ``make torture``, or ``make torture
ALL=1``.

Nothing may be lost, nothing wrong without a word, and no command may show a traceback. A tenth of the cases by default:
seeds 0 to 9 together are as many as all of them, and a run that was stopped loses one section of one seed at most.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cosformer import machine, processor

processor.prepare()
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # commands are forked

import torch  # noqa: E402
import transformers  # noqa: E402, F401

import cosformer.hf  # noqa: E402
import cosformer.prediction.model  # noqa: E402
import cosformer.train  # noqa: E402, F401
from cosformer.report.table import Table, insert_into  # noqa: E402
from torture.downloads import downloads  # noqa: E402
from torture.lab import Lab  # noqa: E402
from torture.misuses import misuses  # noqa: E402
from torture.on_runs import flips, full_disk, kills, pairs  # noqa: E402

SECTIONS = {
    "kills": (
        kills,
        100,
        "`kill -9` and resume: half at random times, half right after a file of the run was touched",
    ),
    "flips": (
        flips,
        200,
        "one bit of one file of a run flipped; the run is then listed, reported, evaluated, used, resumed",
    ),
    "pairs": (pairs, 40, "two commands on the same run at once"),
    "downloads": (
        downloads,
        20,
        "two processes download one file from a server that disconnects or returns a login page",
    ),
    "full disk": (full_disk, 20, "the disk fills up during a run; then space is freed and the run resumed"),
    "misuses": (misuses, 200, "commands with invalid arguments and files"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="all cases, not a tenth")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this section; may be given again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="put the counts there, beside those of other seeds")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="run nothing, put the table of --json into this page")
    args = parser.parse_args()
    if args.into:
        insert_into(args.into, "torture", table(json.loads(args.json.read_text(encoding="utf-8"))).markdown)
        return 0
    torch.set_num_threads(1)
    words = [word for word in sys.argv[1:] if word != "--json" and word != str(args.json)]
    ran = {"seed": args.seed, **machine.provenance(words, "python -m torture")}
    cases = failed = 0
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        lab = Lab(Path(folder))
        for name, (section, count, what) in SECTIONS.items():
            if name in (args.only or SECTIONS):
                chance = random.Random(f"{args.seed} {name}")
                found = _run(name, section(lab, chance, count if args.all else max(count // 10, 2)))
                cases, failed = cases + found["cases"], failed + found["failed"]
                if args.json:
                    _record(args.json, name, what, ran | found)
    print(f"seed {args.seed}: {cases} cases, {failed} failed")
    return 1 if failed else 0


def _record(path: Path, name: str, what: str, ran: dict) -> None:
    """A section of a seed in place of what the file has of it."""
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"sections": {}}
    record["machine"] = machine.describe(1)
    section = record["sections"].setdefault(name, {"what": what, "ran": []})
    section["ran"] = [*(one for one in section["ran"] if one["seed"] != ran["seed"]), ran]
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def table(record: dict) -> Table:
    """What ran of each section and failed, all seeds together."""
    rows = []
    for name, section in record["sections"].items():
        cases, failed = (sum(one[key] for one in section["ran"]) for key in ("cases", "failed"))
        rows.append([section["what"], f"{cases:,} of {SECTIONS[name][1]:,}", f"{failed:,}"])
    return Table("", ["case", "cases", "failed"], rows)


def _run(name: str, cases: Iterator[str]) -> dict:
    started, count, failures = time.monotonic(), 0, []
    for number, wrong in enumerate(cases):
        count += 1
        if wrong:
            failures.append(f"case {number}: {wrong}")
            print(f"FAILED {name}, case {number}: {wrong}", flush=True)
    print(f"{name}: {count} cases, {len(failures)} failed, {time.monotonic() - started:.0f} s", flush=True)
    return {"cases": count, "failed": len(failures), "failures": failures}


if __name__ == "__main__":
    sys.exit(main())
