"""The committed verdicts follow from the committed runs, by a script that shares no code with the package."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cosformer.lab.paper.ledger import ledger
from cosformer.lab.records import run_of_line
from lab.made_up import run_line

SCRIPT = Path(__file__).with_name("recompute.py")
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def recompute(folder: Path) -> tuple[int, str]:
    done = subprocess.run([sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_the_script_imports_nothing_of_the_package() -> None:
    assert "cosformer" not in "".join(line for line in SCRIPT.read_text().splitlines() if "import" in line)


def test_the_committed_ledger() -> None:
    code, said = recompute(RESULTS)
    assert code == 0, said


def line(recipe: str, attention: str, seed: int, **scores: float) -> dict[str, Any]:
    metric, base = ("accuracy", 0.5) if "accuracy" in scores else ("loss", 6.0)
    made = {"scores": {"valid": {metric: 0.9}, "test": {metric: scores[metric]}}}
    return run_line(recipe, attention, seed, scores, base, **made, mean_train_loss=scores.get("area", 1.0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Runs of every block with verdicts of every kind, and the ledger the package makes of them."""
    runs = []
    levels = {"softmax": 1.6, "cosformer": 1.602, "relu": 1.65, "leaky_relu": 1.7, "identity": 6.5}
    levels |= {"linear": 1.651, "uniform": 2.2}
    for place, (name, level) in enumerate(levels.items()):
        for seed in range(5):
            noise = ((7 * seed + 3 * place) % 5 - 2) / 1000
            runs.append(line("evidence-lm", name, seed, loss=level + seed / 50 + noise))
            runs.append(line("evidence-mlm", name, seed, loss=level + seed / 50 + 9 * noise, area=level + 30 * noise))
            runs.append(line("evidence-pathfinder", name, seed, accuracy=(2.5 - level / 2) / 2 + 5 * noise))
            runs.append(line("evidence-recall-16", name, seed, accuracy=0.99 if name == "softmax" else 0.3 + noise))
    runs.append(line("evidence-lm-m2", "cosformer", 0, loss=1.5))
    gates = {"evidence-lm": 1.87, "evidence-mlm": 1.4, "evidence-pathfinder": 69.6, "evidence-recall-16": 95.0}
    table = {name: {"name": "table", "score": score} for name, score in gates.items()}
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs))
    (tmp_path / "gates.jsonl").write_text(
        "".join(json.dumps({"recipe": name} | gate) + "\n" for name, gate in table.items())
    )
    (tmp_path / "ledger.json").write_text(json.dumps(ledger([run_of_line(run) for run in runs], table)))
    return tmp_path


def test_it_agrees_on_made_up_runs_of_every_kind(folder: Path) -> None:
    code, said = recompute(folder)
    assert code == 0, said
    outcomes = {row["outcome"] for row in json.loads((folder / "ledger.json").read_text())["claims"]}
    assert outcomes == {"holds here", "does not hold here", "undecided", "not testable at this size", "not run"}


def test_it_finds_a_changed_score_and_a_changed_verdict(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("copy"))
    text = (copy / "runs.jsonl").read_text()
    runs = [json.loads(row) for row in text.splitlines()]
    changed = next(run for run in runs if (run["recipe"], run["attention"]) == ("evidence-lm", "cosformer"))
    changed["scores"]["test"]["loss"] += 0.1
    (copy / "runs.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs))
    code, said = recompute(copy)
    assert code == 1 and "lm: mean" in said
    (copy / "runs.jsonl").write_text(text)
    ledger_text = (copy / "ledger.json").read_text()
    (copy / "ledger.json").write_text(ledger_text.replace("does not hold here", "holds here"))
    assert recompute(copy)[0] == 1
