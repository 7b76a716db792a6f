"""results.md: from made-up lines with known content, and equal to what the committed files give; so are the pictures
and numbers of docs/how-to/reproduce.md."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cosformer.attention import build_attention
from cosformer.report.table import insert
from cosformer.runs import Run, read_runs, run_of_line
from report.made_up import run_line
from studies.cosformer2022 import RECORDS, Request, arena, certainty, context, gates, mqar, page
from studies.cosformer2022.cells import ledger_cells, recipes_of
from studies.cosformer2022.claims import ARENA, ARENA_TEXT, LM, MQAR
from studies.cosformer2022.figures import figure4
from studies.cosformer2022.frequency import frequency_figures
from studies.cosformer2022.ledger import ledger
from studies.cosformer2022.paper import FIGURE4
from studies.cosformer2022.speed import speed_claims

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STUDY = ROOT / "studies" / "cosformer2022"
PICTURES = STUDY / "images"
HOW_TO = (DOCS / "how-to" / "reproduce.md").read_text(encoding="utf-8")
MACHINE = {"cpu": "Abacus", "instructions": "beads", "cores": 2, "threads": 1}
MACHINE |= {"system": "Wood", "python": "3", "torch": "2"}


def line(attention: str, seed: int, loss: float, recipe: str = LM, **more: Any) -> Run:
    scores = {"loss": loss, "perplexity": 8.0, "word_perplexity": 900.0, "bits_per_byte": 3.0}
    made = {"train_loss": [[1, 3.1]], "valid_loss": [[4, loss]], "machine": MACHINE, "date": "2026-11-15"}
    return run_of_line(run_line(recipe, attention, seed, scores, 3.2, **made | more))


LEVELS = {"softmax": 1.6, "cosformer": 1.601, "relu": 1.8, "uniform": 2.4}
GATES = {LM: {"name": "trigram table", "score": 1.87}}
PLANNED = len(ledger_cells(5))


def lines() -> list[Run]:
    return [
        line(name, seed, round(at + seed / 50 + (seed * place % 3) / 2000, 5), commit="abc123")
        for place, (name, at) in enumerate(LEVELS.items())
        for seed in range(5)
    ]


def test_the_page_begins_with_five_sentences_a_short_table_and_a_picture() -> None:
    text = page.results_page(ledger(lines(), GATES), lines())
    title, sentences, table, picture = text.split("\n\n")[:4]
    assert title.startswith("# ") and len(re.findall(r"\.(?: |$)", sentences)) == 5
    assert "In language models, cosFormer predicts as well as softmax (by " in sentences
    assert "In masked language models, cosFormer has not been compared with softmax." in sentences
    assert "Pathfinder, ListOps and recall have not been run." in sentences
    assert "Its time and memory have not been measured" in sentences
    header, _, *rows = table.splitlines()
    assert header.count("|") == 6 and len(rows) <= 8
    assert rows[0].startswith("| As good as softmax in language models? | yes: perplexity 23.1 against 26.2 | yes (by ")
    assert rows[1].endswith("| not run | not run | We do not know yet. |")
    assert re.fullmatch(r"!\[[^.]+\.\]\(images/effects.svg\)", picture), "one sentence of alternative text"


def test_how_sure_we_are_is_said_in_words() -> None:
    text = page.results_page(ledger(lines(), GATES), lines())
    first = text[text.index("## How sure we are") : text.index("## Recall")]
    assert "- cosFormer against softmax: as good; at most 0.00" in first and "where 0.01 are allowed." in first
    assert "- cosFormer against ReLU without the cosine: better, by 0.2 to 0.2" in first
    assert "- ReLU without the cosine against leaky ReLU: not run yet." in first
    assert not re.search(r"p = |Holm|interval|\*\*holds|[0-9a-f]{7}", first)


@pytest.mark.parametrize(
    ("outcome", "kind", "low", "high", "words"),
    [
        ("does not hold here", "on_par", -0.14, -0.091, "worse, by 0.091 to 0.14 nats"),
        ("holds here", "on_par", -0.004, 0.01, "as good; at most 0.004 nats worse, where 0.01 are allowed"),
        ("holds here", "on_par", 0.004, 0.01, "better, by 0.004 to 0.01 nats"),
        ("holds here", "better", 0.004, 0.01, "better, by 0.004 to 0.01 nats"),
        ("undecided", "better", -0.004, 0.01, "too close to call; 0.02 nats would have shown"),
        ("not testable at this size", "better", 0.004, 0.01, "our task cannot tell"),
        ("not run", "better", 0.0, 0.0, "not run yet"),
    ],
)
def test_an_answer_in_words(outcome: str, kind: str, low: float, high: float, words: str) -> None:
    part = {"first": "cosformer", "second": "softmax-rotary-gated", "kind": kind, "outcome": outcome, "margin": 0.01}
    part |= {"low": low, "high": high, "mean": (low + high) / 2, "smallest": 0.02}
    entry = {"primary": True, "test": "language modelling, test loss", "unit": "nats", "parts": [part]}
    against = "softmax with rotary positions, with convolution and gate"
    assert certainty.text([entry]).endswith(f"**Language modelling**\n\n- cosFormer against {against}: {words}.")


def test_one_claim_holds_and_several_hold() -> None:
    outcomes = ["holds here", "not run", "does not hold here", "not run"]
    assert certainty.counted(outcomes) == "1 holds, 1 does not hold, 2 have not been run"


def test_verdicts_gates_and_scores_follow() -> None:
    found = ledger(lines(), GATES)
    text = page.results_page(found, lines())
    details = text[text.index("## Details") :]
    assert f"20 of {PLANNED} runs are done (0.3 hours of one core)." in details and "Commits: abc123." in details
    assert "Of 8 primary claims 2 hold, 6 have not been run." in details
    assert "Not run: `parity`, " in details
    (row,) = [row for row in text.splitlines() if row.startswith("| **reweighting-lm** | section 4.5 |")]
    assert "| cosformer better than relu | - | +0.199 (" in row and row.endswith("| **holds here** |")
    (gate,) = [row for row in text.splitlines() if row.startswith(f"| `{LM}` | trigram table: 1.87 nats |")]
    assert gate.endswith("| passed, and the control loses |") and "| not computed |" in text
    assert "| softmax | 1.640 ± 0.014 | 1.6, 1.62, 1.64, 1.66, 1.68 | 5 of 5 | 26.2 |" in text
    assert "20 runs, 2026-11-15, on Abacus (beads), 2 cores, 1 thread a run, Wood, Python 3, torch 2." in text


def test_loss_by_position_stands_on_the_page() -> None:
    scores = {"loss": 1.5, "perplexity": 8.0, "word_perplexity": 900.0, "bits_per_byte": 3.0}
    scores |= {"loss@0": 2.5, "loss@8": 1.25}
    text = page.results_page(ledger([], {}), [line("relu", seed, 1.5, scores={"test": scores}) for seed in range(2)])
    assert "| attention | from 0 | from 8 | seeds |" in text and "| relu | 2.500 | 1.250 | 2 |" in text


def test_loss_by_context_stands_on_the_page_where_it_was_scored() -> None:
    values = [{"recipe": LM, "attention": "relu", "seed": 0, "loss": {"4": 2.0, "8": 1.5}}]
    text = page.results_page(ledger([], {}), [], values)
    assert "| evidence-lm | relu | 2.0000 | 1.5000 | 8 to 15 | +0.0000 |" in text
    assert "python -m studies.cosformer2022 context" not in page.results_page(ledger([], {}), [])


def test_without_runs_everything_says_not_run() -> None:
    found = ledger([], {})
    assert {entry["outcome"] for entry in found["claims"]} == {"not run"}
    text = page.results_page(found, [])
    assert f"0 of {PLANNED} runs are done (0.0 hours of one core)." in text and text.count("Not run.") >= 3
    assert "**holds here**" not in text


def test_the_readme_part_is_the_same_five_sentences_between_its_markers() -> None:
    part = page.readme_part(ledger(lines(), GATES), lines())
    *sentences, blank, link = part.splitlines()
    assert len(sentences) == 5 and not blank and "studies/cosformer2022/results.md" in link
    assert " ".join(line.removeprefix("* ") for line in sentences) in page.results_page(ledger(lines(), GATES), lines())
    text = insert("a\n<!-- results:start -->\nold words\n<!-- results:end -->\nb", page.MARKER, part)
    assert "old words" not in text and text.startswith("a\n") and text.endswith("\nb") and part in text


def test_the_picture_has_every_comparison_that_was_run_and_says_so_in_one_sentence() -> None:
    found = ledger(lines(), GATES)
    drawn = page.picture(found)
    run = [part for entry in found["claims"] for part in entry["parts"] if "mean" in part]
    assert drawn.data.count(b"reweighting-lm") and not drawn.data.count(b"linear-lm")
    assert f"of {len(run)} comparisons of attentions: {len(run)} 'holds here'." in drawn.alt and b"<svg" in drawn.data


# --- the second part, from made-up runs


def scored(recipe: str, attention: str, seed: int, accuracy: float, **more: Any) -> Run:
    scores = {"accuracy": accuracy, "loss": 1.0} | more.pop("by_pairs", {})
    made = {"machine": MACHINE, "date": "2026-11-15", "cpu_seconds": 600.0, "tokens": 6_000_000}
    return run_of_line(run_line(recipe, attention, seed, scores, 0.1, **made | more))


def test_recall_is_drawn_against_what_is_kept() -> None:
    assert mqar.picture([]) is None and mqar.table([]) == "Not run."
    by_pairs = {"accuracy@4": 1.0, "accuracy@64": 0.5}
    runs = [scored(name, "cosformer", 0, 0.5 + head / 200, by_pairs=by_pairs) for head, name in MQAR.items()]
    drawn = mqar.picture([*runs, scored(MQAR[32], "softmax", 0, 1.0)])
    assert drawn is not None and b"softmax" in drawn.data and b"hybrid" not in drawn.data
    assert drawn.alt.endswith("for softmax, cosformer.") and drawn.alt.count(".") == 1
    assert "| cosformer | 16 | 2,176 | 100.0 % | not run | not run | not run | 50.0 % |" in mqar.table(runs)


@pytest.mark.parametrize("name", ["softmax", "cosformer", "linear", "multiscale"])
def test_the_sizes_of_the_states_are_those_of_the_attentions(name: str) -> None:
    import torch

    heads, head = mqar.HEADS, 16
    attention: Any = build_attention(name, num_heads=heads, head_dim=head, max_len=mqar.LENGTH, causal=True)
    q, k, v = torch.randn(3, 1, heads, mqar.LENGTH, head)
    _, state = attention.extend(q, k, v)
    kept = [getattr(state, field) for field in ("k", "v", "kv", "z") if hasattr(state, field)]
    assert sum(each.numel() for each in kept) == mqar.state_size(name, head) // mqar.LAYERS


def test_the_arena_s_table_has_time_and_memory_beside_the_score() -> None:
    assert arena.table([]) == "Not run." and arena.picture([]) is None
    runs = [scored(ARENA_TEXT, "cosformer", seed, 0.6 + seed / 100, peak_memory_mb=900.0) for seed in range(3)]
    rows = arena.table(runs).splitlines()
    assert rows[3] == "| cosformer | not run | 61.00 ± 0.58 %; 10.0 min; 900 MB | not run | not run |"
    assert rows[2].endswith("| not planned: hours a run | not run |"), "softmax at 4,096 bytes"
    assert arena.picture(runs) is None
    every = [scored(recipe, name, 0, 0.5) for recipe in ARENA for name in ("softmax", "cosformer")]
    drawn = arena.picture(every)
    assert drawn is not None and b"cosformer" in drawn.data and b"multiscale" not in drawn.data


def test_writing_and_reading_back_gives_the_same_documents(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("<!-- results:start -->\n<!-- results:end -->\n")
    request = Request("ledger", "small", None, 3, tmp_path / "runs", DOCS, write=tmp_path, into=readme)
    page.show(request, sorted(lines(), key=lambda run: run.key))
    written, problems = read_runs([tmp_path / "results" / "runs.jsonl"])
    assert not problems and written == sorted(lines(), key=lambda run: run.key)
    first = (tmp_path / "results.md").read_text()
    page.show(request, written)
    assert (tmp_path / "results.md").read_text() == first
    assert "(studies/cosformer2022/results.md)" in readme.read_text()
    assert (tmp_path / "images" / "effects.svg").exists()
    entries = json.loads((tmp_path / "results" / "ledger.json").read_text())["claims"]
    assert {"lm", "linear-time"} <= {entry["key"] for entry in entries}


def test_the_committed_page_and_ledger_follow_from_the_committed_results() -> None:
    committed, problems = read_runs([RECORDS / "runs.jsonl"])
    assert not problems
    found = ledger(committed, gates.read(RECORDS))
    found["claims"] += speed_claims(DOCS / "results")[0]
    again = f"run: {page.COMMAND}"
    assert (STUDY / "results.md").read_text(encoding="utf-8") == page.results_page(
        found, committed, context.read(RECORDS)
    ), again
    kept = json.loads((RECORDS / "ledger.json").read_text(encoding="utf-8"))
    assert kept == json.loads(json.dumps(found)), again
    assert (PICTURES / "effects.svg").read_bytes() == page.picture(found).data, again
    changed = [run.name for run in committed if (run.commit or "+").endswith("+")]
    assert not changed, "runs of sources that were changed"


def test_figure3_is_that_of_its_result() -> None:
    document = json.loads((RECORDS / "figure3.json").read_text(encoding="utf-8"))
    maps, _ = frequency_figures(document)
    again = "run: python -m studies.cosformer2022 figure3, copy its svg and json"
    assert (PICTURES / "figure3.svg").read_bytes() == maps.data, again
    panels = {panel["attention"]: panel for panel in document["panels"]}
    most = document["thresholds"].index(0.9)
    cosformer, relu, softmax = (panels[name] for name in ("cosformer", "relu", "softmax"))
    away = f"{cosformer['distance']:.1f} positions away on average, without re-weighting {relu['distance']:.1f}"
    assert f"lies {away}" in HOW_TO
    assert f"{softmax['counts'][most]:.1f} of {document['size']} for 90 %" in HOW_TO
    assert f"cosFormer needs {cosformer['counts'][most]:.1f}" in HOW_TO


def test_figure4_is_that_of_the_committed_runs() -> None:
    runs, problems = read_runs([RECORDS / "runs-v1.jsonl"])
    (recipe,) = recipes_of("figure4", "small")
    assert not problems
    for figure in figure4([run for run in runs if run.recipe == recipe], FIGURE4):
        again = (
            "run: python -m studies.cosformer2022 figure4 --show --from "
            "studies/cosformer2022/results/runs-v1.jsonl, copy its svg"
        )
        assert (PICTURES / f"{figure.name}.svg").read_bytes() == figure.data, again
        assert f"study/images/{figure.name}.svg" in HOW_TO
