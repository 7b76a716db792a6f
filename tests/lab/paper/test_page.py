"""docs/results.md: from made-up lines with known content, and equal to what the committed files give."""

import json
from pathlib import Path
from typing import Any

from cosformer.lab.paper import page
from cosformer.lab.paper.ledger import ledger
from cosformer.lab.paper.request import Request
from cosformer.lab.paper.speed import speed_claims
from cosformer.lab.records import Run, read_runs, run_of_line, write_runs
from cosformer.lab.render.table import insert

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
MACHINE = {
    "cpu": "Abacus",
    "instructions": "beads",
    "cores": 2,
    "threads": 1,
    "system": "Wood",
    "python": "3",
    "torch": "2",
}


def line(attention: str, seed: int, loss: float, recipe: str = "lm-wikitext2-small", **more: Any) -> Run:
    scores = {"loss": loss, "perplexity": 8.0, "word_perplexity": 900.0, "bits_per_byte": 3.0}
    values = {
        "recipe": recipe,
        "task": "lm",
        "attention": attention,
        "seed": seed,
        "status": "done",
        "reason": None,
        "score": "loss",
        "scores": {"valid": scores, "test": scores},
        "baseline": {name: {"name": "unigram", "score": 3.2, "error": 0.01} for name in ("valid", "test")},
        "learned": {"valid": True, "test": True},
        "steps": 4,
        "valid_loss": [[1, 3.0], [2, 2.5], [4, loss]],
        "train_loss": [[1, 3.1]],
        "cpu_seconds": 61.2,
        "machine": MACHINE,
        "date": "2026-11-15",
        "command": f"cosformer train {recipe} --model.attention {attention}",
    }
    return run_of_line(values | more)


def lines() -> list[Run]:
    return [line(name, seed, at + seed / 100) for name, at in (("cosformer", 2.0), ("relu", 2.2)) for seed in range(3)]


def test_the_page_holds_verdicts_numbers_and_runs() -> None:
    text = page.results_page(ledger(lines()), lines())
    assert "| **holds here** | cosformer is 0.2 nats better than relu; two standard errors are 0.016 |" in text
    assert "`cosformer reproduce ledger --recipes lm-wikitext2-small --attentions cosformer,relu`" in text
    assert "| cosformer | 2.0100 ± 0.0058 | 2, 2.01, 2.02 | 3 of 3 | 23.1 |" in text
    assert "| softmax | not run | - | - | 26.2 |" in text
    assert (
        "| lm-wikitext2-small | relu | 1 | test: loss 2.210 (perplexity 8.0, a word 900.0, 3.000 bits per byte) | "
        "unigram 3.2 | yes | 61 s | `cosformer train lm-wikitext2-small --model.attention relu` |"
    ) in text
    assert "6 runs, 2026-11-15, on Abacus (beads), 2 cores, 1 thread a run, Wood, Python 3, torch 2." in text


def test_without_runs_everything_says_not_run() -> None:
    found = ledger([])
    assert {entry["outcome"] for entry in found["claims"]} == {"not run"}
    text = page.results_page(found, [])
    assert "## Every run\n\nNot run.\n\nNot run." in text
    assert "holds" not in text.partition("## Verdicts")[2].replace("how the claims are judged", "")


def test_the_readme_part_goes_between_its_markers() -> None:
    part = page.readme_part(ledger(lines()), lines())
    assert (
        "| The cosine re-weighting helps (in causal models, which the paper does not ablate) | section 4.5 "
        "| language modelling, test loss | **holds here** |"
    ) in part
    text = insert("a\n<!-- results:start -->\nold words\n<!-- results:end -->\nb", page.MARKER, part)
    assert "old words" not in text and text.startswith("a\n") and text.endswith("\nb") and part in text


def test_the_readme_has_our_scores_beside_the_papers_and_no_row_twice() -> None:
    part = page.readme_part(ledger(lines()), lines())
    (header,) = [row for row in part.splitlines() if row.startswith("| attention |")]
    assert "| language modelling, test loss, nats (paper: test perplexity, table 2) |" in header
    assert "| `cosformer` | not run | 2.0100 ± 0.0058 (23.1) | not run (40.53) | not run (91.05) |" in part.splitlines()
    assert "| `leaky_relu` | not run (2.246) | not run | - | - |" in part.splitlines()
    rows = [row for row in part.splitlines() if row.startswith("| ") and "---" not in row]
    assert len(rows) == len(set(rows)) > 12


def test_scores_in_the_words_of_their_field() -> None:
    mlm = line("relu", 0, 2.0, task="mlm", scores={"test": {"loss": 2.0}})
    assert page.score_words(mlm) == "loss 2.000 (2.885 bits)"
    listops = line("relu", 0, 2.0, task="classify", scores={"valid": {"accuracy": 0.371}})
    assert page.score_words(listops) == "accuracy 37.1 %"
    gone = line("relu", 0, 2.0, status="diverged", reason="the loss is not a number at update 7")
    assert page.score_words(gone) == "diverged: the loss is not a number at update 7"


def test_writing_and_reading_back_gives_the_same_documents(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("<!-- results:start -->\n<!-- results:end -->\n")
    request = Request("ledger", "small", None, 3, tmp_path / "runs", DOCS, tmp_path / "docs", readme)
    page.show(request, lines())
    written, problems = read_runs([tmp_path / "docs" / "results" / "runs.jsonl"])
    assert not problems and written == lines()
    first = (tmp_path / "docs" / "results.md").read_text()
    page.show(request, written)
    assert (tmp_path / "docs" / "results.md").read_text() == first
    assert "**holds here**" in readme.read_text()
    entries = json.loads((tmp_path / "docs" / "results" / "ledger.json").read_text())["claims"]
    assert {"lm", "linear-time"} <= {entry["key"] for entry in entries}


def test_corrupt_lines_are_named_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    write_runs(path, lines())
    path.write_text(path.read_text() + '{"recipe": "lm"}\nnonsense\n\n[1]\n')
    found, problems = read_runs([path])
    assert len(found) == 6
    assert {problem.partition(" cannot")[0].rpartition(" ")[2] for problem in problems} == {"7", "8", "10"}
    assert any("it lacks task, attention, seed" in problem for problem in problems)


def test_the_committed_page_and_ledger_follow_from_the_committed_results() -> None:
    path = DOCS / "results" / "runs.jsonl"
    committed, problems = read_runs([path])
    assert not problems
    found = ledger(committed)
    found["claims"] += speed_claims(DOCS / "results")[0]
    again = f"run: {page.COMMAND}"
    assert (DOCS / "results.md").read_text(encoding="utf-8") == page.results_page(found, committed), again
    assert json.loads((DOCS / "results" / "ledger.json").read_text(encoding="utf-8")) == json.loads(
        json.dumps(found)
    ), again
