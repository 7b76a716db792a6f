"""results.md: from made-up lines with known content, and equal to what the committed files give; so are the pictures
and numbers of docs/how-to/reproduce.md."""

import json
import re
from pathlib import Path
from typing import Any

from cosformer.report.table import insert
from cosformer.runs import Run, read_runs, run_of_line
from report.made_up import run_line
from studies.cosformer2022 import RECORDS, Request, context, gates, page
from studies.cosformer2022.cells import recipes_of
from studies.cosformer2022.claims import LM
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


def test_verdicts_gates_and_scores_follow() -> None:
    found = ledger(lines(), GATES)
    text = page.results_page(found, lines())
    first = text[text.index("## How sure we are") : text.index("## Verdicts")]
    assert "Language modelling, test loss: cosformer on par with softmax **holds here** (-0.00" in first
    assert "relu better than leaky_relu **not run**; leaky_relu better than identity **not run**." in first
    assert "not testable at this size" in first and "withdrawn" in first
    assert "20 of 172 runs are done (0.3 hours of one core)." in first and "Commits: abc123." in first
    assert "Of 6 primary claims: 2 hold here, 4 not run." in first
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
    assert "0 of 172 runs are done (0.0 hours of one core)." in text and text.count("Not run.") >= 3
    assert "**holds here**" not in text


def test_the_readme_part_is_the_same_five_sentences_between_its_markers() -> None:
    part = page.readme_part(ledger(lines(), GATES), lines())
    *sentences, blank, link = part.splitlines()
    assert len(sentences) == 5 and not blank and "studies/cosformer2022/results.md" in link
    assert " ".join(line.removeprefix("* ") for line in sentences) in page.results_page(ledger(lines(), GATES), lines())
    text = insert("a\n<!-- results:start -->\nold words\n<!-- results:end -->\nb", page.MARKER, part)
    assert "old words" not in text and text.startswith("a\n") and text.endswith("\nb") and part in text


def test_the_picture_has_every_comparison_and_says_it_in_words() -> None:
    found = ledger(lines(), GATES)
    drawn = page.picture(found)
    assert drawn.alt.count("against") == sum(len(entry["parts"]) for entry in found["claims"])
    assert "reweighting-lm: cosformer against relu, +0.199 nats" in drawn.alt and b"<svg" in drawn.data


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
