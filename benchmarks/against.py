"""The speed of this tree against another commit: `python -m benchmarks.against 28fd69c`.

The other commit is checked out and built in a temporary folder. Both trees run the same cases in processes of their
own, in turn, round after round, so that what else happens on the machine meets both. A row is a case: the median over
the rounds of this tree's time over the other's, its quartiles, and the median times. Times are the smallest of several
repeats within a round.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=9, help="how often each tree runs every case (default: 9)")
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default: 2)")
    parser.add_argument("--write", type=Path, help="a file for the results, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="against-") as folder:
        other = Path(folder) / "other"
        call("git", "-C", ROOT, "worktree", "add", "--detach", "--quiet", other, options.revision)
        try:
            for tree in (other, ROOT):
                call(sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", cwd=tree)
            rounds: list[dict[str, dict[str, float]]] = []
            for number in range(options.rounds):
                trees = {"this": ROOT, "other": other}
                order = sorted(trees, reverse=number % 2 == 1)
                rounds.append({name: measure(trees[name], options.threads) for name in order})
                print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        finally:
            call("git", "-C", ROOT, "worktree", "remove", "--force", other)
    rows = [summarize(case, rounds) for case in rounds[0]["this"] if case in rounds[0]["other"]]
    print(f"{'case':<34} {'ratio':>6}  {'quartiles':>13} {'this, us':>10} {'other, us':>10}")
    for row in rows:
        low, high = row["quartiles"]
        print(
            f"{row['case']:<34} {row['ratio']:6.3f}  {low:.3f} - {high:.3f} {row['this'] * 1e6:10.1f} "
            f"{row['other'] * 1e6:10.1f}"
        )
    if options.write:
        record = {"revision": options.revision, "rounds": options.rounds, "threads": options.threads, "rows": rows}
        options.write.write_text(json.dumps(record, indent=1) + "\n")
    return 0


def summarize(case: str, rounds: list[dict[str, dict[str, float]]]) -> dict:
    ratios = [pair["this"][case] / pair["other"][case] for pair in rounds]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    times = {name: statistics.median(pair[name][case] for pair in rounds) for name in ("this", "other")}
    return {"case": case, "ratio": statistics.median(ratios), "quartiles": (quartiles[0], quartiles[2]), **times}


def measure(tree: Path, threads: int) -> dict[str, float]:
    """Seconds of every case, in a new process that imports ``tree``."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": str(threads)}
    words = [sys.executable, Path(__file__).with_name("against_cases.py")]
    done = subprocess.run(
        list(map(str, words)), env=environment, cwd=tree, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def call(*words: object, **options: object) -> None:
    subprocess.run([str(word) for word in words], check=True, **options)  # pyright: ignore


if __name__ == "__main__":
    sys.exit(main())
