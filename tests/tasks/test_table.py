"""The table of tasks, and standard errors by themselves."""

import ast
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cosformer.tasks
from cosformer.tasks import TASKS, task_class
from cosformer.tasks.base import Task
from cosformer.tasks.scores import mean_and_error, row_sums, unigram_nats


def test_every_task_is_in_its_table() -> None:
    found = {}
    for path in Path(cosformer.tasks.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & {
                "Task",
                "Classify",
                "Match",
            }:
                found[path.stem] = node.name
    assert found == {name: attribute for name, (_, attribute, _) in TASKS.items()}
    for name in TASKS:
        kind = task_class(name)
        assert issubclass(kind, Task) and kind.name == name and kind.metric in ("loss", "mae", "accuracy", "f1")
        assert kind.higher_is_better == (kind.metric in ("accuracy", "f1"))
    with pytest.raises(ValueError, match="unknown task 'zzz'; known: lm, mlm, classify, recall, regress"):
        task_class("zzz")


def test_the_table_alone_loads_nothing_heavy() -> None:
    code = "import sys, cosformer.tasks; print(*sorted({'torch', 'numpy', 'transformers'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_error_of_a_mean_covers_the_truth_as_often_as_it_should() -> None:
    """Rows of unequal size with correlated tokens: two standard errors cover the true mean in about 95 %."""
    rng = np.random.default_rng(0)
    covered = naive = 0
    for _ in range(400):
        tokens = rng.integers(5, 40, 60)
        losses = [3 + rng.normal() + rng.normal(size=n) for n in tokens]
        mean, error = mean_and_error(row_sums(np.array([row.sum() for row in losses]), tokens))
        covered += abs(mean - 3) < 1.96 * error
        every = np.concatenate(losses)
        naive += abs(every.mean() - 3) < 1.96 * every.std() / math.sqrt(len(every))
    assert 0.91 < covered / 400 < 0.98 and naive / 400 < 0.7, "errors over single tokens would be far too small"


def test_one_row_has_no_known_error() -> None:
    assert mean_and_error(row_sums(np.array([6.0]), np.array([3])))[0] == 2
    assert math.isnan(mean_and_error(row_sums(np.array([6.0]), np.array([3])))[1])


def test_the_unigram_model_is_a_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = np.array([1, 1, 3, 0, 1, 2], np.uint16)
    allowed = np.array([True, True, False, True, True])
    nats = unigram_nats(stream, allowed)
    assert np.exp(-nats) == pytest.approx([2 / 9, 4 / 9, 0, 2 / 9, 1 / 9])
    monkeypatch.setattr("cosformer.tasks.scores._AT_ONCE", 2)
    assert np.array_equal(nats, unigram_nats(stream, allowed))
