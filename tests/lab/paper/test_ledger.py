"""The ledger from made-up lines with known answers."""

from collections import Counter
from typing import Any

import pytest

from cosformer.lab.paper import ledger as module
from cosformer.lab.paper.cells import ledger_cells
from cosformer.lab.paper.claims import CLAIMS, Claim, Comparison, Measure
from cosformer.lab.paper.verdict import FAILS, HOLDS, NOT_RUN, UNDECIDED
from cosformer.lab.records import Sample, run_of_line

LOSS = Measure(("mlm",), "loss", higher_is_better=False, unit="nats", resolution=0.05)
ACCURACY = Measure(("a", "b"), "accuracy", higher_is_better=True, unit="points", resolution=2.5)


def line(recipe: str, attention: str, seed: int, score: float, metric: str = "loss", **more: Any) -> dict[str, Any]:
    base = {"loss": 7.0, "accuracy": 0.5}[metric]
    learned = score < base if metric == "loss" else score > base
    values = {
        "recipe": recipe,
        "task": "mlm" if metric == "loss" else "classify",
        "attention": attention,
        "seed": seed,
        "status": "done",
        "reason": None,
        "score": metric,
        "scores": {"valid": {metric: score - 0.5}, "test": {metric: score}},
        "baseline": {split: {"name": "unigram", "score": base, "error": 0.01} for split in ("valid", "test")},
        "learned": {"valid": learned, "test": learned},
        "steps": 100,
        "valid_loss": [[25, 6.0], [50, 5.0], [75, 1.0], [100, 1.0]],
        "cpu_seconds": 10.0,
        "machine": {"cpu": "made up"},
        "command": "cosformer train …",
    }
    return values | more


def sample(lines: list[dict[str, Any]], measure: Measure, attention: str) -> Sample:
    return module.sample([run_of_line(one) for one in lines], measure, attention)


def ledger(lines: list[dict[str, Any]], claims: list[Claim]) -> dict[str, Any]:
    return module.ledger([run_of_line(one) for one in lines], claims)


def diverged(recipe: str, attention: str, seed: int) -> dict[str, Any]:
    gone = {"status": "diverged", "reason": "the loss is not a number", "scores": {}, "baseline": {}, "learned": {}}
    return line(recipe, attention, seed, 0.0) | gone


def verdict(lines: list[dict[str, Any]], *parts: Comparison) -> tuple[str, str]:
    (entry,) = ledger(lines, [Claim("key", "says", "where", "test", parts)])["claims"]
    return entry["outcome"], entry["reason"]


def test_the_score_is_the_test_split_s_or_else_the_validation_split_s() -> None:
    lines = [line("mlm", "relu", seed, 3.0 + seed) for seed in range(3)]
    assert sample(lines, LOSS, "relu").values == (3.0, 4.0, 5.0)
    for one in lines:
        del one["scores"]["test"]
    assert sample(lines, LOSS, "relu").values == (2.5, 3.5, 4.5)
    assert sample(lines, LOSS, "softmax").values == ()


def test_several_recipes_are_averaged_seed_by_seed_where_all_are_there() -> None:
    lines = [line(r, "relu", seed, v + seed / 10, "accuracy") for r, v in (("a", 0.6), ("b", 0.7)) for seed in range(3)]
    found = sample(lines[:-1], ACCURACY, "relu")
    assert found.values == pytest.approx((65.0, 75.0)) and found.learned == 2


def test_a_run_below_its_baseline_counts_with_the_baseline() -> None:
    lines = [line("mlm", "identity", 0, 9.5), line("mlm", "identity", 1, 6.0), diverged("mlm", "identity", 2)]
    found = sample(lines, LOSS, "identity")
    assert found.values == (7.0, 6.0, 7.0) and found.learned == 1


def test_a_run_that_diverged_takes_the_baseline_of_another_attention_and_waits_for_one() -> None:
    lines = [diverged("mlm", "identity", 0)]
    assert sample(lines, LOSS, "identity").values == ()
    assert sample([*lines, line("mlm", "relu", 0, 3.0)], LOSS, "identity").values == (7.0,)


def test_early_is_the_mean_over_the_first_half_of_the_updates() -> None:
    early = Measure(("mlm",), "loss", higher_is_better=False, unit="nats", resolution=0.05, early=True)
    assert sample([line("mlm", "relu", 0, 3.0)], early, "relu").values == (5.5,)


def test_verdicts_from_lines() -> None:
    lines = [line("mlm", "cosformer", seed, 3.0 + seed / 100) for seed in range(3)]
    lines += [line("mlm", "softmax", seed, 3.01 + seed / 100) for seed in range(3)]
    lines += [line("mlm", "relu", seed, 4.0 + seed / 100) for seed in range(2)]
    assert verdict(lines, Comparison(LOSS, "cosformer", "on_par", "softmax"))[0] == HOLDS
    assert verdict(lines, Comparison(LOSS, "cosformer", "better", "softmax"))[0] == UNDECIDED
    assert verdict(lines, Comparison(LOSS, "cosformer", "better", "relu")) == (
        UNDECIDED,
        "relu has 2 of at least 3 seeds",
    )
    lines.append(line("mlm", "relu", 2, 4.02))
    assert verdict(lines, Comparison(LOSS, "cosformer", "better", "relu"))[0] == HOLDS
    assert verdict(lines, Comparison(LOSS, "relu", "better", "cosformer"))[0] == FAILS
    assert verdict([], Comparison(LOSS, "relu", "better", "cosformer"))[0] == NOT_RUN


def test_the_entry_has_the_numbers_and_a_command() -> None:
    lines = [line("mlm", "relu", seed, 3.0 + seed) for seed in range(3)]
    part = Comparison(LOSS, "relu", "better", "leaky_relu")
    (entry,) = ledger(lines, [Claim("key", "says", "where", "test", (part,))])["claims"]
    assert entry["rows"] == [
        {"attention": "relu", "seeds": 3, "learned": 3, "mean": 4.0, "values": [3.0, 4.0, 5.0], "error": 0.58},
        {"attention": "leaky_relu", "seeds": 0, "learned": 0},
    ]
    assert entry["command"] == "cosformer reproduce ledger --recipes mlm --attentions relu,leaky_relu"


def test_every_claim_of_the_paper_is_there_once() -> None:
    keys = [claim.key for claim in CLAIMS]
    assert len(set(keys)) == len(keys)
    assert {"lm", "mlm", "convergence", "finetune", "lra", "non-negative-mlm", "reweighting-mlm"} <= set(keys)


def test_each_claim_compares_what_the_protocol_says() -> None:
    found = {claim.key: [(part.first, part.kind, part.second) for part in claim.parts] for claim in CLAIMS}
    order = [("relu", "better", "leaky_relu"), ("leaky_relu", "better", "identity")]
    reweighting = dict.fromkeys([f"reweighting-{x}" for x in ("mlm", "lm", "lra", "finetune")], "relu")
    assert found == {
        "non-negative-mlm": order,
        "non-negative-lm": order,
        **{key: [("cosformer", "better", other)] for key, other in reweighting.items()},
        **{key: [("cosformer", "on_par", "softmax")] for key in ("lm", "mlm", "finetune")},
        "convergence": [("cosformer", "better", "softmax")],
        "lra": [("cosformer", "better", "softmax"), ("cosformer", "better", "relu")],
    }


def test_the_runs_of_the_ledger_by_seeds() -> None:
    cells = ledger_cells(3)
    count = Counter((cell.recipe, cell.attention) for cell in cells)
    assert count["lm-wikitext2-small", "identity"] == count["lra-image-small", "relu"] == 3
    assert count["lra-text-small", "softmax"] == count["lra-pathfinder-small", "cosformer"] == 1
    assert len(cells) == 61 and [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)
    starts = {cell.recipe: cell.start for cell in cells}
    assert starts["finetune-sst2-small"] == "mlm-wikitext2-small" and starts["lra-text-small"] is None
