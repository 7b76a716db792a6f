"""Figures from made-up result files: each line, label and number is known beforehand."""

import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cosformer.report import figure as palette
from cosformer.report.chart import Line, draw_lines
from cosformer.report.figure import Figure
from cosformer.report.heat_maps import Panel, as_png, colours, heat_maps
from cosformer.report.measurements import Measurement, Results
from cosformer.report.result_figures import TradeOff, draw_curves, mean_curve, operator_times, text, trade_off, zoo
from studies.cosformer2022.algorithms import algorithm2
from studies.cosformer2022.frequency import (
    cosine_matrix,
    frequency_document,
    frequency_figures,
    mean_distance,
    threshold_counts,
    threshold_frequency,
)

SVG = "{http://www.w3.org/2000/svg}"


def parsed(figure: Figure) -> ET.Element:
    assert figure.kind == "svg"
    return ET.fromstring(figure.data)


def groups(figure: Figure, name: str) -> list[ET.Element]:
    """What was drawn as ``name``: line, cross, bubble or leader."""
    return [group for group in parsed(figure).iter(f"{SVG}g") if (group.get("id") or "").startswith(f"{name}-")]


def paths(figure: Figure, name: str) -> list[ET.Element]:
    """The path of each; its markers are drawn once, in ``defs``."""
    return [next(path for path in group if path.tag == f"{SVG}path") for group in groups(figure, name)]


def points(path: ET.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", path.get("d") or "")]


def style(element: ET.Element) -> dict[str, str]:
    return dict(part.strip().split(": ") for part in (element.get("style") or "").split(";") if part)


def marks(figure: Figure, name: str) -> list[ET.Element]:
    """Where the markers of ``name`` are."""
    return [use for group in groups(figure, name) for use in group.iter(f"{SVG}use")]


def radius(group: ET.Element) -> float:
    """Of the circle that is drawn as a marker: curves go from 0 r."""
    return abs(float(re.findall(r"M 0 ([-\d.]+)", next(group.iter(f"{SVG}path")).get("d") or "")[0]))


def chart(lines: list[Line], title: str = "t", x_label: str = "x", y_label: str = "y", **more: Any) -> Figure:
    data = draw_lines(lines, title=title, x_label=x_label, y_label=y_label, alt="alt", **more)
    return Figure("f", data, "svg", "alt", "c")


def labels(figure: Figure) -> list[str]:
    return [element.text or "" for element in parsed(figure).iter(f"{SVG}text")]


def results(*found: dict[str, Any]) -> Results:
    made = [Measurement(**{"attention": "cosformer", "unit": "u", "better": "lower", **one}) for one in found]
    return Results("made up", "command", "2026-01-01", {}, {}, tuple(made))


def test_loss_curves_have_a_line_for_each_seed_and_each_mean() -> None:
    seeds = [[(50, 3.0 + seed), (100, 2.0 + seed)] for seed in range(3)]
    curves = {"softmax": [[(50, 3.5), (100, 2.5)]], "cosformer": seeds, "relu": [], "identity": [[]]}
    figure = draw_curves(curves, name="f", title="Training loss")
    lines = paths(figure, "line")
    assert len(lines) == 3 + 1 + 1
    assert sum(style(line).get("stroke-width", "1") == "1" for line in lines) == 3
    assert labels(figure).count("cosformer") == labels(figure).count("softmax") == 1
    assert "cosformer: from 4.000 at step 50 to 3.000 at step 100 (mean of 3 seeds)." in figure.alt
    assert "softmax: from 3.500 at step 50 to 2.500 at step 100 (one seed)." in figure.alt
    assert figure.alt.endswith("relu: not run. identity: not run.")
    with pytest.raises(ValueError, match="no line has a point"):
        draw_curves({"relu": []}, name="f", title="Training loss")


def test_ticks_tell_apart_what_lies_close_together() -> None:
    drawn = draw_lines([Line("a", [(1, 2.418), (2, 2.43)], "#000000")], title="t", x_label="x", y_label="y", alt="")
    labels = re.findall(r">(2\.4\d*)<", drawn.decode())
    assert len(labels) > 2 and len({*labels}) == len(labels)


def test_the_mean_is_of_the_steps_that_all_have() -> None:
    assert mean_curve([[(1, 2.0), (2, 4.0), (3, 9.0)], [(2, 6.0), (3, 1.0), (4, 7.0)]]) == [(2, 5.0), (3, 5.0)]


def test_times_of_the_operator() -> None:
    causal: dict[str, Any] = {"kind": "forward", "mode": "causal"}
    found = results(
        causal | {"length": 64, "baseline": "sdpa", "milliseconds": 1.0, "baseline_milliseconds": 2.0},
        causal | {"length": 128, "baseline": "sdpa", "milliseconds": 2.0, "baseline_milliseconds": 8.0},
        causal | {"length": 128, "baseline": "limit", "milliseconds": 2.0, "baseline_milliseconds": 0.5},
        causal | {"mode": "non-causal", "length": 128, "baseline": "sdpa", "milliseconds": 77.0},
    )
    figure = operator_times(found, "causal")
    assert len(groups(figure, "line")) == 2
    assert {"cosformer", "softmax", "64", "128"} <= set(labels(figure)) and "limit" not in labels(figure)
    assert figure.alt.endswith("cosformer: 1 at 64, 2 at 128. softmax: 2 at 64, 8 at 128.")


def test_the_zoo_and_what_was_not_run() -> None:
    def of(kind: str, name: str, *values: float | None) -> list[dict[str, Any]]:
        field = "milliseconds" if kind == "time" else "value"
        place: dict[str, Any] = {"kind": kind, "attention": name, "mode": "plain"}
        return [place | {"length": n, field: value} for n, value in zip((1024, 2048), values, strict=True)]

    found = results(
        *of("time", "cosformer", 3.0, 6.0),
        *of("memory", "cosformer", 5.0, 10.0),
        *of("memory", "linear", 0.0, 0.0),
        *of("time", "bigbird", None, None),
        *of("time", "linear", 4.0, 8.0),
    )
    figure = zoo(found, "plain", "time")
    assert len(groups(figure, "line")) == 2 and "linear: 4 at 1K, 8 at 2K." in figure.alt
    assert "bigbird" not in figure.alt
    assert len(groups(zoo(found, "plain", "memory"), "line")) == 1
    with pytest.raises(ValueError, match="nothing to draw"):
        zoo(found, "causal", "time")


def test_a_line_is_where_its_numbers_are() -> None:
    straight = chart([Line("a", [(0, 0), (10, 5), (20, 10)], "#123456")])
    logarithmic = chart([Line("a", [(1, 1), (10, 10), (100, 100)], "#123456")], lengths=(1, 10, 100))
    for figure in (straight, logarithmic):
        first, middle, last = points(paths(figure, "line")[0])
        assert middle == pytest.approx(((first[0] + last[0]) / 2, (first[1] + last[1]) / 2), abs=0.01)
        assert first[0] < last[0] and first[1] > last[1]  # up is more


def test_memory_that_ran_out_is_a_cross() -> None:
    lines = [Line("a", [(1, 1.0), (2, 2.0)], "#123456"), Line("b", [(1, 3.0)], "#654321", crosses=(2, 4))]
    assert len(marks(chart(lines), "cross")) == 2


def test_labels_do_not_cover_each_other() -> None:
    figure = chart([Line(f"line {i}", [(0, 0.0), (1, 1 + i * 1e-3)], "#123456") for i in range(8)])
    texts = [e for e in parsed(figure).iter(f"{SVG}text") if (e.text or "").startswith("line ")]
    heights = sorted(float(e.get("y") or 0) for e in texts)
    assert len(heights) == 8 and min(b - a for a, b in pairwise(heights)) >= 12


def test_the_same_numbers_give_the_same_bytes_and_a_readers_settings_do_not_matter() -> None:
    import matplotlib

    line = Line("a", [(0, 0), (1, 1)], "#123456")
    before = chart([line]).data
    with matplotlib.rc_context({"font.weight": "bold", "lines.linewidth": 9}):
        assert chart([line]).data == before
    assert chart([line]).data == before and b"Date" not in before


def test_ink_follows_the_page() -> None:
    figure = chart([Line("a", [(0, 0), (1, 1)], "#123456")])
    ink = {style(e)["fill"] for e in parsed(figure).iter(f"{SVG}text")} - {"#123456"}
    assert ink == {palette.INK}
    dark = (next(parsed(figure).iter(f"{SVG}style")).text or "").partition("prefers-color-scheme:dark")[2]
    assert f'[style*="fill: {palette.INK}"]{{fill:{palette.DARK[palette.INK]}!important}}' in dark


def test_bubbles_have_the_memory_as_their_area() -> None:
    found = [
        TradeOff("cosformer", 55.0, 10.0, 100.0),
        TradeOff("softmax", 54.0, 2.0, 400.0),
        TradeOff("relu", 53.0, 9.0, None),
    ]
    figure = trade_off(found, name="f", title="T")
    size = {group.get("id"): radius(group) for group in groups(figure, "bubble")}
    assert len(size) == 3
    assert size["bubble-softmax"] == pytest.approx(2 * size["bubble-cosformer"], abs=0.01)
    assert (
        "(%) 55, 10 training steps per second at 2,000, 100 MB." in figure.alt and "memory not measured" in figure.alt
    )
    assert {"cosformer", "softmax", "relu"} <= set(labels(figure))


def test_heat_maps_have_a_panel_each_and_say_how_far_they_look() -> None:
    panels = [Panel("a", np.eye(32)), Panel("b", np.full((32, 32), 1 / 32)), Panel("c", np.zeros((4, 4)))]
    figure = heat_maps(panels, name="f", title="T", caption="c")
    assert len(list(parsed(figure).iter(f"{SVG}image"))) == 3 and labels(figure) == ["a", "b", "c"]
    assert "a: 32 by 32, 100% of the weight within 2 positions of the diagonal, mean distance 0.0." in figure.alt
    assert "c: 4 by 4, all zero." in figure.alt
    single = heat_maps(panels[2:], name="f", title="T", caption="c", tokens=["a", " ", "\n", "b"])
    assert sorted(labels(single)) == sorted(["c", *2 * ["a", "·", "⏎", "b"]])


def test_the_sign_is_the_colour_and_the_size_the_opacity() -> None:
    pixels = colours(np.array([[1.0, 0.0], [-1.0, 0.5]]))
    assert tuple(pixels[0, 0]) == (*palette.POSITIVE, 255) and tuple(pixels[1, 0]) == (*palette.NEGATIVE, 255)
    assert pixels[0, 1, 3] == 0 and 125 <= pixels[1, 1, 3] <= 132
    assert colours(np.full((2, 2), np.nan))[..., 3].max() == 0
    assert colours(np.full((2, 2), 0.2), full=1.0)[..., 3].tolist() == [[51, 51]] * 2  # two panels on one scale


def test_large_matrices_are_averaged_in_blocks() -> None:
    matrix = np.repeat(np.repeat(np.eye(256), 2, axis=0), 2, axis=1)
    assert np.array_equal(colours(matrix), colours(np.eye(256)))
    assert colours(np.ones((1000, 300))).shape == (256, 256, 4)


def test_a_grid_as_png() -> None:
    data = as_png([Panel("a", np.eye(4)), Panel("b", np.eye(4))], title="T")
    assert data.startswith(b"\x89PNG") and len(data) > 1000


def test_figure_3_from_its_result_file() -> None:
    weights = {"softmax": [np.eye(8)] * 2, "cosformer": [np.eye(8), np.full((8, 8), 1 / 8)]}
    result = frequency_document(weights, threshold=0.9, command="made up")
    assert result["panels"][1]["percent"][0] == [100, 50, 50, 50, 50, 50, 50, 50]
    assert result["panels"][0]["counts"] == [1.0] * len(result["thresholds"]) and result["command"] == "made up"
    large = frequency_document({"softmax": [np.full((300, 300), 1 / 300)]}, threshold=0.5)
    assert np.shape(large["panels"][0]["percent"]) == (128, 128) and large["size"] == 300
    assert np.mean(large["panels"][0]["percent"]) == pytest.approx(50, abs=1.5)
    maps, keys = frequency_figures(result)
    assert labels(maps)[:3] == ["vanilla", "cosFormer", "cos, bare"] and "90%" in maps.alt
    away = np.abs(np.arange(8)[:, None] - np.arange(8))
    cosine = np.cos(np.pi / 16 * away)  # a quarter turn over the eight positions
    assert f"cos, bare: 8 by 8, {cosine.trace() / cosine.sum():.0%}" in maps.alt
    assert f"mean distance {(cosine * away).sum() / cosine.sum():.1f}." in maps.alt.partition("cos, bare")[2]
    assert labels(maps)[3:] == ["never", "always", "queries down, keys across"]
    assert result["panels"][0]["distance"] == 0 and result["panels"][1]["distance"] == pytest.approx(21 / 16, abs=1e-3)
    assert "softmax: half of it in 1.0 keys. cosformer: half of it in 3.0 keys." in keys.alt
    with pytest.raises(ValueError, match="attention-frequency"):
        frequency_figures({"format": 1, "rows": []})


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_stand_out_on_light_and_on_dark_pages_and_are_stable() -> None:
    looks = palette.styles(["a", "cosformer", "b", "softmax", "relu", "c", "d", "e"])
    assert len({colour for colour, _ in looks.values()}) == 8 and len({dashes for _, dashes in looks.values()}) == 8
    dark = luminance("#14171c")
    for colour, _ in looks.values():
        assert 1.05 / (luminance(colour) + 0.05) >= 3 and (luminance(colour) + 0.05) / (dark + 0.05) >= 3, colour
    assert palette.styles(["cosformer"]) == {"cosformer": looks["cosformer"]}
    many = palette.styles([*(f"n{i}" for i in range(20)), "cosformer"])
    assert len(many) == 21 and len(set(many.values())) == 2 and many["cosformer"] == looks["cosformer"]


def test_faster_is_to_the_right_and_better_is_up() -> None:
    found = [TradeOff("cosformer", 40.0, 8.0, None), TradeOff("softmax", 60.0, 2.0, None)]
    figure = trade_off(found, name="f", title="T")
    place = {group.get("id"): next(group.iter(f"{SVG}use")) for group in groups(figure, "bubble")}
    found = [place[f"bubble-{name}"] for name in ("cosformer", "softmax")]
    (fast_x, low_y), (slow_x, high_y) = ((float(use.get("x") or 0), float(use.get("y") or 0)) for use in found)
    assert fast_x > slow_x and high_y < low_y


def test_a_label_away_from_its_circle_has_a_line_to_it() -> None:
    crowd = [TradeOff(f"name{i}", 50 + 0.1 * i, 5 + 0.1 * i, None) for i in range(9)]
    near = [TradeOff("a", 40, 2, None), TradeOff("b", 60, 8, None)]
    assert groups(trade_off([*crowd, *near], name="f", title="T"), "leader")
    assert not groups(trade_off(near, name="f", title="T"), "leader")


def test_no_tick_covers_the_unit() -> None:
    figure = chart([Line("a", [(0, 0.0), (1, 1.0)], "#123456")], y_label="the unit")
    heights = {e.text: float(e.get("y") or 0) for e in parsed(figure).iter(f"{SVG}text")}
    assert heights["1"] - heights["the unit"] >= 11


def test_pictures_are_xml_whatever_the_names(tmp_path: Path) -> None:
    lines = [Line("<b>&\"'", [(0, 1.0), (1, math.pi)], "#123456")]
    figure = chart(lines, "a < b", "x & y", "")
    assert "<b>&\"'" in labels(figure)
    assert figure.save(tmp_path / "new").read_bytes() == figure.data
    assert figure.uri.startswith("data:image/svg+xml;base64,")


def test_the_text_model_with_crosses_where_memory_ran_out() -> None:
    def of(kind: str, name: str, length: int, **more: Any) -> dict[str, Any]:
        return {"kind": kind, "attention": name, "mode": "training", "length": length} | more

    found = results(
        of("speed", "softmax", 1000, milliseconds=500.0),
        of("speed", "cosformer", 1000, milliseconds=250.0),
        of("speed", "cosformer", 2000, milliseconds=500.0),
        of("speed", "cosformer", 1000, milliseconds=10.0, mode="inference"),
        of("memory", "softmax", 1000, value=80.0),
        of("memory", "softmax", 2000, note="out of memory: 8 GB"),
        of("memory", "linear", 2000, note="not run: it has no such form"),
        of("memory", "cosformer", 1000, value=30.0),
        of("memory", "cosformer", 2000, value=60.0),
        of("order", "", 1000, value=0.5),
    )
    speed = text(found, "training", "speed")
    assert speed.alt.endswith(
        "softmax: 2 at 1,000, 2 at 1,000. cosformer: 4 at 1,000, 2 at 2,000. softmax: out of memory at 2,000."
    )
    assert len(groups(speed, "line")) == 2 and len(marks(speed, "cross")) == 1 and "×" in speed.caption
    memory = text(found, "training", "memory")
    assert "cosformer: 30 at 1,000, 60 at 2,000." in memory.alt and len(marks(memory, "cross")) == 1
    heights = [float(marks(f, "cross")[0].get("y") or 0) for f in (speed, memory)]
    assert heights[0] > 200 > 60 > heights[1]  # the slowest is at the foot, the largest at the top
    assert "×" not in text(found, "inference", "speed").caption


# --- algorithm 2 against the paper's own loop, and what is known of the cosine matrix


def stochastic(n: int, count: int) -> list[np.ndarray]:
    scores = np.random.default_rng(0).exponential(size=(count, n, n)) ** 3
    return list(scores / scores.sum(-1, keepdims=True))


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_equals_the_papers_loop(threshold: float) -> None:
    signed = np.random.default_rng(1).normal(size=(9, 9))
    awkward = [np.zeros((9, 9)), np.full((9, 9), 1 / 9), np.eye(9), signed, np.triu(signed).T]  # zero rows, ties, signs
    for matrices in (stochastic(17, 5), awkward):
        assert np.array_equal(threshold_frequency(matrices, threshold), algorithm2(matrices, threshold))


def test_a_known_matrix() -> None:
    row = np.array([[0.5, 0.1, 0.4]])
    assert threshold_frequency([row], 0.45).tolist() == [[1, 0, 0]]
    assert threshold_frequency([row], 0.5).tolist() == [[1, 0, 1]]  # 0.5 does not exceed 0.5
    assert threshold_frequency([row, row[:, ::-1]], 0.45).tolist() == [[0.5, 0, 0.5]]


def test_counts_are_the_rows_sums_of_the_frequency() -> None:
    matrices = [*stochastic(12, 3), np.random.default_rng(1).normal(size=(12, 12))]
    thresholds = [0.2, 0.5, 0.8]
    expected = [threshold_frequency(matrices, t).sum(axis=1).mean() for t in thresholds]
    assert threshold_counts(matrices, thresholds) == pytest.approx(expected)


def test_the_mean_distance_by_hand() -> None:
    assert mean_distance([np.eye(5)]) == 0
    # query 0 looks half at itself and half three away; query 1 has no weight; query 2 looks one back, with a minus
    matrix = np.array([[0.5, 0, 0, 0.5], [0, 0, 0, 0], [0, -0.7, 0, 0]])
    assert mean_distance([matrix]) == pytest.approx((1.5 + 1) / 2)
    assert mean_distance([matrix, np.eye(3)]) == pytest.approx(2.5 / 5)
    with pytest.raises(ValueError, match="no weight"):
        mean_distance([np.zeros((2, 2))])


def test_the_cosine_matrix() -> None:
    matrix = cosine_matrix(4)
    assert matrix.shape == (4, 4) and np.allclose(np.diag(matrix), 1)
    assert matrix[0, 2] == matrix[3, 1] == pytest.approx(np.cos(np.pi / 4))
    assert (cosine_matrix(50) > 0).all()


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"threshold=1\.5"):
        threshold_frequency([np.eye(2)], 1.5)
    with pytest.raises(ValueError, match="no matrix"):
        threshold_frequency([], 0.5)
    with pytest.raises(ValueError, match="no matrix"):
        threshold_counts([], [0.5])
    with pytest.raises(ValueError, match="two axes"):
        threshold_frequency([np.zeros((1, 2, 2))], 0.5)
