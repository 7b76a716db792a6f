"""The pictures of docs/how-to/reproduce.md are those of the committed results, and so are the numbers beside them."""

import json
from pathlib import Path

from cosformer.lab.paper.cells import TRIO, recipes_of
from cosformer.lab.records import read_runs
from cosformer.lab.render.frequency import frequency_figures
from cosformer.lab.render.loss_curves import loss_curves

DOCS = Path(__file__).parents[3] / "docs"
PICTURES = DOCS / "images" / "paper"
PAGE = (DOCS / "how-to" / "reproduce.md").read_text(encoding="utf-8")


def test_figure3_is_that_of_its_result() -> None:
    document = json.loads((DOCS / "results" / "figure3.json").read_text(encoding="utf-8"))
    maps, _ = frequency_figures(document)
    assert (PICTURES / "figure3.svg").read_bytes() == maps.data, (
        "run: cosformer reproduce figure3, copy its svg and json"
    )
    panels = {panel["attention"]: panel for panel in document["panels"]}
    most = document["thresholds"].index(0.9)
    cosformer, relu, softmax = (panels[name] for name in ("cosformer", "relu", "softmax"))
    assert (
        f"lies {cosformer['distance']:.1f} positions away on average, without re-weighting {relu['distance']:.1f}"
        in PAGE
    )
    assert f"{softmax['counts'][most]:.1f} of {document['size']} for 90 %" in PAGE
    assert f"cosFormer needs {cosformer['counts'][most]:.1f}" in PAGE


def test_figure4_is_that_of_the_committed_runs() -> None:
    runs, problems = read_runs([DOCS / "results" / "runs-v1.jsonl"])
    (recipe,) = recipes_of("figure4", "small")
    assert not problems
    for figure in loss_curves([run for run in runs if run.recipe == recipe], TRIO):
        again = "run: cosformer reproduce figure4 --show --from docs/results/runs-v1.jsonl, copy its svg"
        assert (PICTURES / f"{figure.name}.svg").read_bytes() == figure.data, again
        assert f"images/paper/{figure.name}.svg" in PAGE
