"""The page in a real browser: headings, pictures, no complaint, no request, and no scrolling sideways on a phone."""

from pathlib import Path
from typing import Any

import pytest

from cosformer.bench.runner import tables
from cosformer.report.page import write_report
from report import made_up

PHONE, DESK = 390, 1280


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_page_looks_right(browser: Any, results: Path, tmp_path: Path, width: int, scheme: str) -> None:
    page = tmp_path / "report.html"
    made_up.one(tmp_path / "runs")
    assert write_report(page, [tmp_path / "runs"], results, tables) == []
    browser.open(page, width, scheme)
    assert browser.run("Array.from(document.querySelectorAll('h2'), h => h.textContent)") == [
        "Summary",
        "Learning curves",
        "Runs",
        "Speed and memory",
        "Attention maps",
        "Exactness",
        "Environment and commands",
    ]
    images = browser.run(
        "Promise.all(Array.from(document.images, i => i.decode().then(() => [i.naturalWidth, i.clientWidth, "
        "i.alt.length])))"
    )
    assert len(images) == 8 and all(natural > 0 and shown > 100 and alt > 40 for natural, shown, alt in images)
    # also with everything unfolded
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.run("document.documentElement.scrollWidth") == width
    sticking_out = (
        "Array.from(document.querySelectorAll('main *'))"
        ".filter(e => !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 1).map(e => "
        "e.outerHTML.slice(0, 80))"
    )
    assert browser.run(sticking_out) == []
    assert browser.errors() == []
    assert browser.requests() == [page.as_uri()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_thirty_runs_and_broken_ones_scroll_inside_their_boxes(browser: Any, tmp_path: Path, scheme: str) -> None:
    made_up.thirty(tmp_path / "runs")
    made_up.broken(tmp_path / "more")
    page = tmp_path / "report.html"
    write_report(page, [tmp_path / "runs", tmp_path / "more"], None, tables)
    browser.open(page, PHONE, scheme)
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.run("document.documentElement.scrollWidth") == PHONE and browser.errors() == []


def test_a_heading_sorts_its_table(browser: Any, tmp_path: Path) -> None:
    made_up.thirty(tmp_path / "runs")
    page = tmp_path / "report.html"
    write_report(page, [tmp_path / "runs"], None, tables)
    browser.open(page, DESK)
    column = "Array.from(document.querySelector('table.sortable').tBodies[0].rows, r => r.cells[%d].textContent)"
    press = "document.querySelectorAll('table.sortable thead button')[%d].click()"
    scores = [float(score) for score in browser.run(column % 5)]
    assert len(scores) == 30 and scores == sorted(scores)  # the best first
    browser.run(press % 5)
    browser.run(press % 5)
    assert [float(score) for score in browser.run(column % 5)] == sorted(scores, reverse=True)
    browser.run(press % 0)
    names = browser.run(column % 0)
    assert names == sorted(names) and names != sorted(names, reverse=True)
    browser.run(press % 3)
    assert browser.run(column % 3)[-9:] == ["800"] * 9  # numbers as numbers


def test_dark_and_light_differ_and_text_stands_out(browser: Any, results: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report(page, [], results, tables)
    found = {}
    for scheme in ("light", "dark"):
        browser.open(page, PHONE, scheme)
        style = "(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))"
        found[scheme] = [sum(map(int, c.strip("rgb()").split(",")[:3])) / 765 for c in browser.run(style)]
    assert found["light"][1] > 0.95 > 0.2 > found["light"][0] and found["dark"][1] < 0.15 < 0.8 < found["dark"][0]


def test_the_browser_would_notice(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        '<meta name="viewport" content="width=device-width"><div style="width:900px">x</div><img src="none.png">'
    )
    browser.open(page, PHONE)
    assert browser.run("document.documentElement.scrollWidth") > PHONE
    assert browser.run("document.images[0].naturalWidth") == 0
    assert browser.errors() and len(browser.requests()) == 2


def test_maps_of_a_model_on_a_phone(browser: Any, tmp_path: Path) -> None:
    import numpy as np

    from cosformer.report.heat_maps import Panel, heat_maps
    from cosformer.report.page import write_maps

    panels = [Panel(f"layer 1, head {i}", np.eye(12)) for i in range(1, 5)]
    figure = heat_maps(panels, name="layer-1", title="Layer 1", caption="c")
    page = tmp_path / "maps.html"
    write_maps(page, "a text", ["a"] * 200, {"Layer 1": figure})
    browser.open(page, PHONE, "dark")
    assert browser.run("document.documentElement.scrollWidth") == PHONE and browser.errors() == []
    assert browser.run("document.images[0].decode().then(() => document.images[0].naturalWidth)") > 0
