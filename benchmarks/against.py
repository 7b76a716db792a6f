"""``python -m benchmarks against --revision 28fd69c``: the speed of this tree over that of another commit.

The other commit is checked out and built in a temporary folder. Both trees run the same cases in processes of their
own, in turn, round after round, so that what else happens on the machine meets both. Times are the smallest of several
calls within a round.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cosformer import terminal
from cosformer.bench.measure import compared
from cosformer.report.measurements import Measurement

ROOT = Path(__file__).parents[1]
QUICK = {"repeats": 3}


def measurements(*, revision: str = "", repeats: int = 9, threads: int = 2) -> Iterator[Measurement]:
    if not revision:
        raise ValueError("give --revision, the commit to compare with")
    seconds: dict[str, list[dict[str, float]]] = {"this": [], "other": []}
    with tempfile.TemporaryDirectory(prefix="against-") as folder:
        trees = {"this": ROOT, "other": Path(folder) / "other"}
        _call("git", "-C", ROOT, "worktree", "add", "--detach", "--quiet", trees["other"], revision)
        try:
            for tree in trees.values():
                _call(sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", cwd=tree)
            for number in range(repeats):
                terminal.status(f"round {number + 1} of {repeats} ...")
                for name in sorted(trees, reverse=number % 2 == 1):
                    seconds[name].append(measure(trees[name], threads))
        finally:
            _call("git", "-C", ROOT, "worktree", "remove", "--force", trees["other"])
    for case in [case for case in seconds["this"][0] if case in seconds["other"][0]]:
        m = Measurement(kind=case, attention="cosformer", baseline=revision, unit="times the time", better="lower")
        yield compared(m, *([one[case] for one in rounds] for rounds in seconds.values()))


def measure(tree: Path, threads: int) -> dict[str, float]:
    """Seconds of every case, in a new process that imports ``tree``."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": str(threads)}
    words = [sys.executable, str(Path(__file__).with_name("against_cases.py"))]
    done = subprocess.run(words, env=environment, cwd=tree, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _call(*words: object, **options: object) -> None:
    subprocess.run([str(word) for word in words], check=True, **options)  # pyright: ignore
