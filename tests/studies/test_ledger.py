"""The ledger from made-up lines with known answers."""

import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cosformer.commands.train import parse
from cosformer.json_files import write_lines
from cosformer.runs import Run, read_runs, run_of_line, write_runs
from report.made_up import run_line
from studies.cosformer2022 import rates
from studies.cosformer2022.blocks import BLOCKS
from studies.cosformer2022.cells import Cell, ledger_cells, search_cells
from studies.cosformer2022.claims import CLAIMS, LM, MLM, PARITY, PRETRAIN, SST2, Measure
from studies.cosformer2022.ledger import ledger, needed, seed_scores, sides
from studies.cosformer2022.verdict import FAILS, HOLDS, NOT_RUN, NOT_TESTABLE, UNDECIDED

SCRIPT = Path(__file__).parents[2] / "studies" / "cosformer2022" / "recompute.py"
RESULTS = SCRIPT.parent / "results"
LOSS = Measure("mlm", "loss", higher_is_better=False, unit="nats")
ACCURACY = Measure("a", "accuracy", higher_is_better=True, unit="points")


def line(recipe: str, attention: str, seed: int, score: float, metric: str = "loss", **more: Any) -> Run:
    base = {"loss": 7.0, "accuracy": 0.5}[metric]
    learned = score < base if metric == "loss" else score > base
    scores = {"valid": {metric: score - 0.5}, "test": {metric: score}}
    made = {"scores": scores, "learned": {"valid": learned, "test": learned}}
    return run_of_line(run_line(recipe, attention, seed, {metric: score}, base, **made | more))


def diverged(recipe: str, attention: str, seed: int, **more: Any) -> Run:
    gone: dict[str, Any] = {"status": "diverged", "reason": "the loss is not a number", "scores": {}, "baseline": {}}
    return line(recipe, attention, seed, 0.0, **gone, learned={}, **more)


def attend(scores: dict[str, list[float]], recipe: str = LM) -> list[Run]:
    """Lines of attentions by their losses, seed by seed; softmax, cosformer and the control among them unless given."""
    plain = {
        "softmax": [3.0, 3.1, 3.2, 3.3, 3.4],
        "cosformer": [3.005, 3.106, 3.207, 3.305, 3.404],
        "uniform": [4.0, 4.2, 4.1],
    }
    return [line(recipe, name, seed, loss) for name, row in (plain | scores).items() for seed, loss in enumerate(row)]


GATES = {recipe: {"name": "table", "score": 3.5} for recipe in (LM, MLM)}


def entry(key: str, lines: list[Run], gates: Any = GATES) -> dict[str, Any]:
    return next(found for found in ledger(lines, gates)["claims"] if found["key"] == key)


def test_the_score_is_the_test_split_s_or_else_the_validation_split_s() -> None:
    lines = [line("mlm", "relu", seed, 3.0 + seed) for seed in range(3)]
    assert seed_scores(lines, LOSS, "relu").values == (3.0, 4.0, 5.0)
    for one in lines:
        del one.scores["test"]
    assert seed_scores(lines, LOSS, "relu").values == (2.5, 3.5, 4.5)
    assert seed_scores(lines, LOSS, "softmax").values == ()


def test_accuracies_are_in_points_and_those_that_learned_are_counted() -> None:
    lines = [line("a", "relu", seed, accuracy, "accuracy") for seed, accuracy in enumerate((0.6, 0.5, 0.7))]
    found = seed_scores(lines, ACCURACY, "relu")
    assert found.values == pytest.approx((60.0, 50.0, 70.0)) and found.learned == 2


def test_a_run_below_its_baseline_counts_with_the_baseline() -> None:
    lines = [line("mlm", "identity", 0, 9.5), line("mlm", "identity", 1, 6.0), diverged("mlm", "identity", 2)]
    found = seed_scores(lines, LOSS, "identity")
    assert found.values == (7.0, 6.0, 7.0) and found.learned == 1


def test_a_run_that_diverged_takes_the_baseline_of_another_attention_and_waits_for_one() -> None:
    lines = [diverged("mlm", "identity", 0)]
    assert seed_scores(lines, LOSS, "identity").values == ()
    assert seed_scores([*lines, line("mlm", "relu", 0, 3.0)], LOSS, "identity").values == (7.0,)


def test_area_is_the_mean_training_loss_and_a_run_that_diverged_has_none() -> None:
    area = Measure("mlm", "loss", higher_is_better=False, unit="nats", area=True)
    lines = [line("mlm", "relu", 0, 3.0, mean_train_loss=4.5), diverged("mlm", "relu", 1, mean_train_loss=9.0)]
    assert seed_scores(lines, area, "relu").values == (4.5,)


def test_on_par_is_judged_by_the_margin_and_paired_by_seed() -> None:
    found = entry("lm", attend({}))
    assert found["outcome"] == HOLDS and found["primary"]
    (part,) = found["parts"]
    assert part["seeds"] == 5 and part["margin"] == 0.01 and part["mean"] == pytest.approx(-0.0054)
    assert -0.01 < part["low"] < part["mean"] < part["high"]
    assert part["p_holm"] == pytest.approx(min(1, 7 * part["p"]), rel=1e-3)
    worse = {"cosformer": [3.02, 3.121, 3.22, 3.321, 3.42]}
    assert entry("lm", attend(worse))["outcome"] == FAILS


def test_a_missed_gate_and_a_control_that_does_not_lose_make_a_claim_untestable() -> None:
    missed = entry("lm", attend({}), {LM: {"name": "trigram table", "score": 3.1}})
    assert missed["outcome"] == NOT_TESTABLE
    assert missed["reason"] == "softmax misses the gate: 3.2 against 3.1 (trigram table)"
    below = attend({"cosformer": [3.6, 3.6, 3.6, 3.7, 3.7]})
    assert "cosformer misses the gate" in entry("lm", below)["reason"]
    same = entry("lm", attend({"uniform": [3.01, 3.09, 3.21]}))
    assert same["outcome"] == NOT_TESTABLE and "says nothing about attention" in same["reason"]


def test_without_gate_control_or_runs_nothing_is_judged() -> None:
    assert entry("lm", attend({}), {})["outcome"] == NOT_RUN
    assert entry("lm", attend({"uniform": [4.0, 4.1]}))["reason"] == "the control uniform has 2 of 3 seeds"
    assert entry("lm", attend({"cosformer": []}))["reason"] == "no run with cosformer"
    assert entry("lm", [])["outcome"] == NOT_RUN
    assert entry("linear-lm", attend({}))["outcome"] == NOT_RUN


def test_a_primary_claim_needs_five_seeds_and_another_three() -> None:
    four = attend({"cosformer": [3.0, 3.1, 3.2, 3.3], "linear": [3.3, 3.42, 3.5]})
    assert entry("lm", four)["outcome"] == UNDECIDED
    assert entry("lm", four)["reason"] == "cosformer and softmax have 4 of 5 seeds"
    assert entry("linear-lm", four)["outcome"] == HOLDS


def test_holm_runs_over_the_primary_comparisons() -> None:
    """p = 0.03 alone would do; as the smallest of seven it does not."""
    relu = [3.0, 3.11, 3.2, 3.32, 3.4]
    better = [a - d for a, d in zip(relu, (0.004, 0.011, 0.013, 0.002, 0.016), strict=True)]
    found = entry("reweighting-lm", attend({"relu": relu, "cosformer": better}))
    (part,) = found["parts"]
    assert 0.02 < part["p"] < 0.05 and part["low"] > 0 and part["p_holm"] == pytest.approx(7 * part["p"], rel=1e-3)
    assert found["outcome"] == UNDECIDED


def test_a_claim_may_compare_two_recipes() -> None:
    lines = attend({}) + [line("evidence-lm-m2", "cosformer", seed, 2.9 + seed / 10) for seed in range(3)]
    found = entry("flatter-2", lines)
    assert found["outcome"] == HOLDS and found["parts"][0]["mean"] == pytest.approx(0.106, abs=1e-3)


@pytest.mark.parametrize(("cosformer", "outcome"), [(3.4, "holds here"), (3.6, "not testable at this size")])
def test_a_variant_is_judged_only_where_cosformer_beats_the_gate_with_it(cosformer: float, outcome: str) -> None:
    others = {"cosformer": [cosformer - 0.01, cosformer, cosformer + 0.01], "relu": [5.0, 5.02, 5.01]}
    found = entry("cosine-is-position", [*attend({}), *attend(others, "evidence-lm-nopos")])
    assert found["outcome"] == outcome and found["parts"][0]["outcome"] == outcome


def test_the_entry_has_the_numbers_and_a_command() -> None:
    found = entry("linear-lm", attend({"linear": [3.3, 3.4, 3.5]}))
    numbers = {"seeds": 3, "learned": 3, "mean": 3.4, "values": [3.3, 3.4, 3.5], "error": 0.058}
    assert found["rows"][1] == {"attention": "linear", **numbers}
    assert [row["attention"] for row in found["rows"]] == ["cosformer", "linear", "uniform"]
    assert found["gate"] == {"recipe": LM, "name": "table", "score": 3.5}
    assert found["control"]["mean"] == pytest.approx(1.0)
    assert (
        found["command"]
        == "python -m studies.cosformer2022 ledger --recipes evidence-lm --attentions cosformer,linear,softmax,uniform"
    )


def test_the_primary_claims_are_those_of_the_protocol() -> None:
    keys = [claim.key for claim in CLAIMS]
    assert len(set(keys)) == len(keys)
    found = [(c.family, p.measure.recipe, p.first, p.kind, p.second) for c in CLAIMS if c.primary for p in c.parts]
    assert found == [
        (1, LM, "cosformer", "on_par", "softmax"),
        (1, LM, "cosformer", "better", "relu"),
        (1, MLM, "cosformer", "better", "relu"),
        (1, MLM, "cosformer", "on_par", "softmax"),
        (1, "evidence-sst2-reviews", "cosformer", "on_par", "softmax"),
        (1, MLM, "relu", "better", "leaky_relu"),
        (1, MLM, "leaky_relu", "better", "identity"),
        (2, PARITY, "multiscale-nopos-gated", "on_par", "softmax-rotary-gated"),
        (2, PARITY, "multiscale-nopos-gated", "on_par", "softmax-gated"),
        (2, f"{PARITY}-long", "multiscale-nopos-gated", "on_par", "softmax-rotary-gated"),
        (2, f"{PARITY}-long", "multiscale-nopos-gated", "on_par", "softmax-gated"),
    ]


def test_the_runs_of_the_ledger() -> None:
    cells = ledger_cells(5)
    assert len(set(cells)) == len(cells)
    count = Counter((cell.recipe, cell.attention) for cell in cells)
    for claim in CLAIMS:
        for part in claim.parts:
            assert all(count[side] >= (5 if claim.primary else 3) for side in sides(part)), claim.key
        assert count[claim.gate, "uniform"] >= 3 and count[claim.gate, "softmax"] >= 3
    first = ledger_cells(5, "P")
    recipes = list(dict.fromkeys(cell.recipe for cell in first))
    assert recipes[:4] == [LM, MLM, PRETRAIN, SST2] and recipes[-1] == "evidence-listops" and len(first) == 172
    assert cells == [cell for block in BLOCKS for cell in ledger_cells(5, block)]
    for before, cell in itertools.pairwise(cells):
        if cell.start is not None:
            assert cell.before == before, "a fine-tuning follows its pre-training at once"


def test_every_cell_is_what_its_command_trains() -> None:
    for cell in (*ledger_cells(1), *search_cells()):
        words = cell.words(Path("x"), None, 1)
        assert parse(words[1], words[2:])[0] == cell.experiment(), cell.name


def test_a_variant_changes_positions_and_additions_and_leaves_the_rest_of_the_recipe() -> None:
    plain, gated = (Cell(PARITY, name, 0).experiment().model for name in ("softmax", "softmax-rotary-gated"))
    assert (gated.attention, gated.short_convolution, gated.output_gate) == ("softmax", 4, True)
    assert gated.fields["position_embedding_type"] == "none" and "rotary" in gated.fields
    assert plain.fields | {key: gated.fields[key] for key in ("position_embedding_type", "rotary")} == gated.fields
    assert "rotary" not in plain.fields and plain.short_convolution is None


def test_the_search_tries_three_rates_for_a_share_of_the_length() -> None:
    for recipe, share in ((LM, 4), (PARITY, 2)):
        found = [cell for cell in search_cells() if (cell.recipe, cell.attention) == (recipe, "linear")]
        full = Cell(recipe, "linear", 0).experiment()
        assert (
            [cell.rate for cell in found] == [cell.experiment().train.lr for cell in found] == list(rates.TRIED[recipe])
        )
        assert all(cell.experiment().train.steps == full.train.steps // share and cell.seed == 9 for cell in found)
        assert not any(cell.experiment().data.full_test for cell in found)
    scored = {(cell.recipe, cell.attention) for cell in ledger_cells(5) if cell.recipe not in rates.SAME_AS}
    assert {(cell.recipe, cell.attention) for cell in search_cells()} == scored


@pytest.mark.parametrize(
    ("recipe", "tried", "then"),
    [
        (PARITY, {}, [0.002, 0.004, 0.008]),
        (PARITY, {0.002: 1.0, 0.004: 0.9}, [0.002, 0.004, 0.008]),  # not known yet
        (PARITY, {0.002: 1.0, 0.004: 0.9, 0.008: 1.1}, [0.002, 0.004, 0.008]),
        (PARITY, {0.002: 1.0, 0.004: 0.9, 0.008: 0.8}, [0.002, 0.004, 0.008, 0.016]),
        (PARITY, {0.002: 0.7, 0.004: 0.9, 0.008: 0.8}, [0.001, 0.002, 0.004, 0.008]),
        (PARITY, {0.002: 0.9, 0.004: 0.8, 0.008: 0.7, 0.016: float("inf")}, [0.002, 0.004, 0.008, 0.016]),
        (
            PARITY,
            {0.004 * 2**k: -float(k) for k in range(-1, 9)},
            [0.002, 0.004, 0.008, 0.016, 0.032, 0.064],
        ),  # the cap
        (LM, {0.002: 1.0, 0.004: 0.9, 0.008: 0.8}, [0.002, 0.004, 0.008]),  # scored before ranges grew
    ],
)
def test_the_range_of_rates_grows_until_the_best_lies_inside(recipe: str, tried: dict, then: list[float]) -> None:
    assert rates.to_try(recipe, tried) == then


def test_a_search_counts_when_it_has_ended() -> None:
    def tried(*losses: float) -> list[Run]:
        values = zip((0.002, 0.004, 0.008, 0.016), losses, strict=False)
        return [line(PARITY, "relu", 9, loss, rate=rate) for rate, loss in values]

    assert rates.best(tried(2.0, 1.9, 2.1)) == {PARITY: {"relu": 0.004}}
    assert rates.best(tried(2.0, 1.9, 1.8)) == {}
    assert rates.best(tried(2.0, 1.9, 1.8, 1.85)) == {PARITY: {"relu": 0.008}}
    gone = diverged(PARITY, "relu", 9, rate=0.016)
    assert rates.best([*tried(2.0, 1.9, 1.8), gone]) == {PARITY: {"relu": 0.008}}


def test_a_scored_run_trains_at_the_rate_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "RATES", {LM: {"relu": 0.007}})
    assert Cell(LM, "relu", 1).experiment().train.lr == Cell("evidence-lm-m2", "relu", 1).experiment().train.lr == 0.007
    words = Cell(LM, "relu", 1).words(Path("x"), None, 1)
    assert words[words.index("--train.lr") + 1] == "0.007"
    assert parse(words[1], words[2:])[0] == Cell(LM, "relu", 1).experiment()


def test_no_scored_run_starts_before_its_rate_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "RATES", {LM: {"relu": 0.007}})
    ready = {(cell.recipe, cell.attention) for cell in ledger_cells(1) if not rates.waits(cell.recipe, cell.attention)}
    variants = {(recipe, "relu") for recipe in (LM, "evidence-lm-long", "evidence-lm-nopos")}
    # of a pre-training one rate alone is tried, so it is known
    assert ready == variants | {(PRETRAIN, name) for name in BLOCKS["P"][PRETRAIN]}


def test_the_scored_runs_had_the_best_rates_of_the_committed_search() -> None:
    found = rates.best(rates.committed())
    scored, _ = read_runs([RESULTS / "runs.jsonl"])
    for run in scored:
        recipe = rates.SAME_AS.get(run.recipe, run.recipe)
        assert run.extra["lr"] == found[recipe][run.attention], run.name
    assert found.items() <= rates.RATES.items()


# --- what is run at all


def test_a_block_whose_gate_is_missed_or_whose_control_keeps_up_is_left() -> None:
    gates = {PARITY: {"name": "table", "score": 3.5}}
    assert needed(PARITY, "linear", 2, attend({}, PARITY), gates)
    assert not needed(PARITY, "linear", 2, attend({"softmax": [3.6]}, PARITY), gates)
    assert not needed(PARITY + "-long", "linear", 0, attend({"softmax": [3.6]}, PARITY), gates)
    assert not needed(PARITY, "linear", 2, attend({"uniform": [3.01, 3.09, 3.21]}, PARITY), gates)
    assert needed(PARITY, "linear", 0, [], {})


OURS, GATED, ROTARY = "multiscale-nopos-gated", "softmax-gated", "softmax-rotary-gated"


@pytest.mark.parametrize(("gap", "more"), [(0.005, True), (0.2, False)])
def test_three_seeds_are_enough_where_every_primary_comparison_is_clear(gap: float, more: bool) -> None:
    rows = {GATED: [2.9, 3.0, 3.1], ROTARY: [2.8, 2.9, 3.0], OURS: [2.8 + gap, 2.9 + gap, 3.001 + gap]}
    lines, gates = attend(rows, PARITY), {PARITY: {"name": "table", "score": 3.5}}
    assert needed(PARITY, ROTARY, 3, lines, gates) == more
    assert needed(PARITY, ROTARY, 2, lines, gates)
    found = entry("parity", lines, gates)
    assert found["outcome"] == (UNDECIDED if more else FAILS)
    assert ("have 3 of 5 seeds" in found["reason"]) == more


def test_each_family_of_primary_claims_has_its_own_holm_correction() -> None:
    same = [3.0, 3.1, 3.2, 3.3, 3.4]
    rows = {GATED: same, ROTARY: same, OURS: [x - d for x, d in zip(same, (0, 0.01, -0.01, 0.02, 0.01), strict=True)]}
    first = entry("lm", attend({}))["parts"][0]
    found = entry("parity", [*attend({}), *attend(rows, PARITY)], GATES | {PARITY: GATES[LM]})["parts"]
    assert [part["p_holm"] for part in found] == pytest.approx([4 * part["p"] for part in found], rel=1e-3)
    assert entry("lm", [*attend({}), *attend(rows, PARITY)])["parts"][0]["p_holm"] == first["p_holm"]


# --- the committed verdicts follow from the committed runs, by a script that shares no code with the package


def recompute(folder: Path) -> tuple[int, str]:
    done = subprocess.run([sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_the_script_imports_nothing_of_the_package() -> None:
    assert "cosformer" not in "".join(text for text in SCRIPT.read_text().splitlines() if "import" in text)


def test_the_committed_ledger() -> None:
    code, said = recompute(RESULTS)
    assert code == 0, said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Runs of every block with verdicts of every kind, and the ledger the package makes of them."""
    levels = {"softmax": 1.6, "cosformer": 1.602, "relu": 1.65, "leaky_relu": 1.7, "identity": 7.5}
    levels |= {"linear": 1.651, "uniform": 2.2}
    runs = [line("evidence-lm-m2", "cosformer", 0, 1.5)]
    for place, (name, level) in enumerate(levels.items()):
        for seed in range(5):
            noise = ((7 * seed + 3 * place) % 5 - 2) / 1000
            runs.append(line(LM, name, seed, level + seed / 50 + noise))
            runs.append(line(MLM, name, seed, level + seed / 50 + 9 * noise, mean_train_loss=level + 30 * noise))
            runs.append(line("evidence-pathfinder", name, seed, (2.5 - level / 2) / 2 + 5 * noise, "accuracy"))
            recalled = 0.99 if name == "softmax" else 0.3 + noise
            runs.append(line("evidence-recall-16", name, seed, recalled, "accuracy"))
    scores = {LM: 1.87, MLM: 1.4, "evidence-pathfinder": 69.6, "evidence-recall-16": 95.0}
    gates = {recipe: {"name": "table", "score": score} for recipe, score in scores.items()}
    write_runs(tmp_path / "runs.jsonl", runs)
    write_lines(tmp_path / "gates.jsonl", ({"recipe": recipe} | gate for recipe, gate in gates.items()))
    (tmp_path / "ledger.json").write_text(json.dumps(ledger(runs, gates)))
    return tmp_path


def test_it_agrees_on_made_up_runs_of_every_kind(folder: Path) -> None:
    code, said = recompute(folder)
    assert code == 0, said
    outcomes = {row["outcome"] for row in json.loads((folder / "ledger.json").read_text())["claims"]}
    assert outcomes == {HOLDS, FAILS, UNDECIDED, NOT_TESTABLE, NOT_RUN}


def test_it_finds_a_changed_score_and_a_changed_verdict(folder: Path) -> None:
    runs, _ = read_runs([folder / "runs.jsonl"])
    changed = next(run for run in runs if (run.recipe, run.attention) == (LM, "cosformer"))
    changed.scores["test"]["loss"] += 0.1
    write_runs(folder / "runs.jsonl", runs)
    code, said = recompute(folder)
    assert code == 1 and "lm: mean" in said
    changed.scores["test"]["loss"] -= 0.1
    write_runs(folder / "runs.jsonl", runs)
    assert recompute(folder)[0] == 0
    text = (folder / "ledger.json").read_text()
    (folder / "ledger.json").write_text(text.replace(FAILS, HOLDS))
    assert recompute(folder)[0] == 1
