"""The page in a real browser: headings, pictures, no complaint, no request, and no scrolling sideways on a phone."""

from pathlib import Path
from typing import Any

import pytest

from cosformer.lab.render import write_report
from cosformer.lab.render.page import HEADINGS

PHONE, DESK = 390, 1280


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_page_looks_right(browser: Any, results: Path, run: Path, tmp_path: Path, width: int, scheme: str) -> None:
    page = tmp_path / "report.html"
    assert write_report(page, [run], results) == []
    browser.open(page, width, scheme)
    assert browser.run("Array.from(document.querySelectorAll('h2'), h => h.textContent)") == list(HEADINGS)
    images = browser.run(
        "Promise.all(Array.from(document.images, i => i.decode().then(() => [i.naturalWidth, i.clientWidth, i.alt.length])))"
    )
    assert len(images) == 20 and all(natural > 0 and shown > 100 and alt > 40 for natural, shown, alt in images)
    # also with everything unfolded
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.run("document.documentElement.scrollWidth") == width
    sticking_out = (
        "Array.from(document.querySelectorAll('main *'))"
        ".filter(e => !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert browser.run(sticking_out) == []
    assert browser.errors() == []
    assert browser.requests() == [page.as_uri()]


def test_dark_and_light_differ_and_text_stands_out(browser: Any, results: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report(page, [], results)
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

    from cosformer.lab.render.heat_maps import Panel, heat_maps, write_maps

    panels = [Panel(f"layer 1, head {i}", np.eye(12)) for i in range(1, 5)]
    figure = heat_maps(panels, name="layer-1", title="Layer 1", caption="c")
    page = tmp_path / "maps.html"
    write_maps(page, "a text", ["a"] * 200, {"Layer 1": figure})
    browser.open(page, PHONE, "dark")
    assert browser.run("document.documentElement.scrollWidth") == PHONE and browser.errors() == []
    assert browser.run("document.images[0].decode().then(() => document.images[0].naturalWidth)") > 0
