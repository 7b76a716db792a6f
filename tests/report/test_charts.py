"""Figures from made-up records: each line, label and number is known beforehand."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from cosformer.report import figure as palette
from cosformer.report.charts import Line, benchmark_charts, draw_curves, draw_lines, mean_curve
from cosformer.report.figure import Figure
from cosformer.report.heat_maps import Panel, as_png, colours, heat_maps
from cosformer.report.measurements import Measurement, Results

SVG = "{http://www.w3.org/2000/svg}"


def parsed(figure: Figure) -> ET.Element:
    assert figure.kind == "svg"
    return ET.fromstring(figure.data)


def style(element: ET.Element) -> dict[str, str]:
    return dict(part.strip().split(": ") for part in (element.get("style") or "").split(";") if part)


def labels(figure: Figure) -> list[str]:
    return [element.text or "" for element in parsed(figure).iter(f"{SVG}text")]


def chart(lines: list[Line], title: str = "t") -> Figure:
    return Figure("f", draw_lines(lines, title=title, x_label="x", y_label="y", alt="alt"), "svg", "alt", "c")


def test_loss_curves_name_each_attention_once_and_what_was_not_run() -> None:
    seeds = [[(1, 4.0), (2, 3.0)], [(1, 5.0), (2, 3.5)]]
    figure = draw_curves({"cosformer": seeds, "softmax": [seeds[0]], "relu": []}, name="f", title="Loss")
    assert "cosformer: from 4.500 at step 1 to 3.250 at step 2 (mean of 2 seeds)." in figure.alt
    assert "softmax: from 4.000 at step 1 to 3.000 at step 2 (one seed). relu: not run." in figure.alt
    assert labels(figure).count("cosformer") == labels(figure).count("softmax") == 1 and "relu" not in labels(figure)
    thin = [path for path in parsed(figure).iter(f"{SVG}path") if style(path).get("stroke-opacity") == "0.38"]
    assert len(thin) == 2


def test_the_mean_is_of_the_steps_that_all_have() -> None:
    assert mean_curve([[(1, 1.0), (2, 2.0), (3, 3.0)], [(1, 3.0), (3, 5.0)]]) == [(1, 2.0), (3, 4.0)]


def test_benchmarks_against_the_length() -> None:
    def m(kind: str, n: int, **more: object) -> Measurement:
        values = {
            "attention": "cosformer",
            "mode": "causal",
            "unit": "MB",
            "better": "lower",
            "length": n,
            "kind": kind,
        }
        return Measurement(**values | more)  # pyright: ignore[reportArgumentType]

    found = [m("forward", n, baseline="sdpa", milliseconds=n / 512, baseline_milliseconds=n / 64) for n in (1024, 2048)]
    found += [m("memory", n, value=size) for n, size in ((1024, 0.0), (2048, 3.0), (4096, 6.0))]
    time, memory = benchmark_charts(Results("zoo", "", "", {}, {}, tuple(found)))
    assert "cosformer: 2 at 1K, 4 at 2K. softmax: 16 at 1K, 32 at 2K." in time.alt and "causal" in time.alt.lower()
    assert "cosformer: 3 at 2K, 6 at 4K." in memory.alt  # zero has no place on a logarithmic axis
    assert {"1K", "2K", "softmax", "milliseconds"} <= set(labels(time))
    assert benchmark_charts(Results("train", "", "", {}, {}, ())) == []


def test_a_chart_without_points_is_refused_and_names_are_escaped() -> None:
    with pytest.raises(ValueError, match="nothing to draw in 't'"):
        chart([Line("a", [], "#123456")])
    assert "<a> & b" in labels(chart([Line("<a> & b", [(0, 0), (1, 1)], "#123456")], title="<t>"))


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
