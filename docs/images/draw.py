"""Draw the pictures of the documentation as SVG: from the committed results, and from the formulas.

`make pictures` writes them beside this file. They are plain text made with the standard library, so that the same numbers give
the same bytes and a test can tell a stale picture. Colours follow the reader's light or dark setting.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "attention.json"

STYLE = """
  .paper { fill: #ffffff } .ink, text { fill: #1f2430 } .line { stroke: #1f2430 } .grid { stroke: #d5d9e2 }
  .muted { fill: #626b7c } .ours { fill: #2463c4 } .theirs { fill: #b3480f } .pale { fill: #dfe8f8 } .warm { fill: #f9e3d4 }
  .ours-line { stroke: #2463c4 } .theirs-line { stroke: #b3480f }
  path, line, circle, rect { stroke-width: 1.5 } path { fill: none } .thick { stroke-width: 3 }
  text { font: 15px system-ui, sans-serif } .small { font-size: 13px } .title { font-size: 17px; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #1b1e26 } .ink, text { fill: #e6e8ee } .line { stroke: #e6e8ee } .grid { stroke: #3a4050 }
    .muted { fill: #a3abbb } .ours { fill: #82b1ff } .theirs { fill: #ffab7a } .pale { fill: #263a5e } .warm { fill: #55331f }
    .ours-line { stroke: #82b1ff } .theirs-line { stroke: #ffab7a }
  }
"""


def svg(width: int, height: int, label: str, *parts: str) -> str:
    """A whole picture; ``label`` is what a screen reader says."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"',
            f' role="img" aria-label="{label}">',
            f"<title>{label}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{width}" height="{height}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{words}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str = "line") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def box(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="{style} line"/>'


def curve(points: list[tuple[float, float]], style: str) -> str:
    return f'<path class="{style}" d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    angle = math.atan2(y2 - y1, x2 - x1)
    tips = [(x2 - 9 * math.cos(angle + turn), y2 - 9 * math.sin(angle + turn)) for turn in (0.45, -0.45)]
    return curve([(x1, y1), (x2, y2), tips[0], (x2, y2), tips[1]], "line")


def speed() -> str:
    """Milliseconds of one causal forward pass against the length, both attentions, from the committed benchmark."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    found = sorted((length, row) for row in results["rows"] if (length := _causal_length(row)))
    left, right, top, bottom = 92, 700, 64, 350
    times = [value for _, row in found for value in row["milliseconds"].values()]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    first, last = math.log2(found[0][0]), math.log2(found[-1][0])

    def at(length: float, milliseconds: float) -> tuple[float, float]:
        x = left + (math.log2(length) - first) / (last - first) * (right - left)
        return x, bottom - (math.log10(milliseconds) - low) / (high - low) * (bottom - top)

    parts = [text(24, 34, "Time of one causal pass, by the length of the sequence", "title")]
    for power in range(low, high + 1):
        y = at(found[0][0], 10.0**power)[1]
        parts += [line(left, y, right, y, "grid"), text(left - 10, y + 5, f"{10.0**power:,g} ms", "small muted", "end")]
    for length, _ in found:
        x = at(length, 10.0**low)[0]
        parts.append(text(x, bottom + 22, f"{length:,}", "small muted", "middle"))
    parts.append(text(left, bottom + 46, "tokens (both scales are logarithmic)", "small muted"))
    for name, style, words in (("sdpa", "theirs", "softmax"), ("cosformer", "ours", "cosFormer")):
        points = [at(length, row["milliseconds"][name]) for length, row in found]
        parts.append(curve(points, f"{style}-line thick"))
        parts += [f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in points]
        parts.append(text(right + 12, points[-1][1] + 5, words, style))
    longest, row = found[-1]
    (x, y1), (_, y2) = (at(longest, row["milliseconds"][name]) for name in ("sdpa", "cosformer"))
    factor = f"{row['value']:.0f} times faster"
    parts += [line(x, y1 + 8, x, y2 - 8, "grid"), text(x - 10, (y1 + y2) / 2 + 26, factor, "", "end")]
    machine = results["machine"]
    where = f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}, float32, 8 heads of 64 channels"
    parts.append(text(left, bottom + 66, f"{where}; softmax is torch's SDPA", "small muted"))
    label = f"Time against length: at {longest:,} tokens cosFormer is {factor} than softmax attention"
    return svg(800, 440, label, *parts)


def _causal_length(row: dict[str, Any]) -> int | None:
    kind, *rest = row["id"].split("/")
    wanted = kind == "forward" and rest[0] == "causal" and rest[2] == "sdpa" and int(rest[1]) >= 64
    return int(rest[1]) if wanted else None


def order() -> str:
    """The same product in two orders: N x N in the middle, or D x D."""
    n, d, top = 130, 34, 76
    parts = [
        text(24, 34, "Softmax: every pair of tokens", "title theirs"),
        text(424, 34, "Linear: the sums come first", "title ours"),
        box(40, top, d, n, "pale"), text(40 + d / 2, top + n / 2, "Q", "", "middle"),
        box(100, top + n / 2 - d / 2, n, d, "pale"), text(100 + n / 2, top + n / 2 + 5, "Kᵀ", "", "middle"),
        text(242, top + n / 2 + 5, "="),
        box(262, top, n, n, "warm"), text(262 + n / 2, top + n / 2 + 5, "N × N", "", "middle"),
        text(40, top + n + 36, "(Q Kᵀ) V takes about N² · D multiplications", "small"),
        box(440, top, d, n, "pale"), text(440 + d / 2, top + n / 2, "Q", "", "middle"),
        text(490, top + n / 2 + 7, "(", "title"),
        box(504, top + n / 2 - d / 2, n, d, "pale"), text(504 + n / 2, top + n / 2 + 5, "Kᵀ", "", "middle"),
        box(648, top, d, n, "pale"), text(648 + d / 2, top + n / 2, "V", "", "middle"),
        text(694, top + n / 2 + 7, ")", "title"), text(710, top + n / 2 + 5, "="),
        box(730, top + n / 2 - d / 2, d, d, "warm"), text(730 + d / 2, top + n / 2 + d + 4, "D × D", "small", "middle"),
        text(440, top + n + 36, "Q (Kᵀ V) takes about N · D² multiplications", "small"),
    ]  # fmt: skip
    return svg(
        800,
        270,
        "Two orders of one product: (Q K) V goes through N by N pairs, Q (K V) through a D by D matrix",
        *parts,
    )


def distance() -> str:
    """The factor of a pair by distance, for two values of max_len, and where it would turn negative."""
    left, right, top, bottom = 80, 740, 60, 300
    farthest = 6144

    def at(d: float, weight: float) -> tuple[float, float]:
        return left + d / farthest * (right - left), bottom - (weight + 0.45) / 1.45 * (bottom - top)

    parts = [text(24, 34, "How much a token counts, by its distance", "title")]
    for weight in (0.0, 0.5, 1.0):
        (x1, y), (x2, _) = at(0, weight), at(farthest, weight)
        parts += [line(x1, y, x2, y, "grid"), text(left - 10, y + 5, f"{weight:g}", "small muted", "end")]
    for d in (0, 1024, 2048, 4096, 6144):
        parts.append(text(at(d, 0)[0], bottom + 22, f"{d:,}", "small muted", "middle"))
    parts.append(text(left, bottom + 44, "tokens between query and key", "small muted"))
    for max_len, style in ((2048, "theirs"), (4096, "ours")):
        points = [at(d, math.cos(math.pi / 2 * d / max_len)) for d in range(0, max_len + 1, 64)]
        parts.append(curve(points, f"{style}-line thick"))
        x, y = at(0.86 * max_len, math.cos(math.pi / 2 * 0.86))
        parts.append(text(x + 12, y - 4, f"max_len = {max_len:,}", style))
    beyond = [at(d, math.cos(math.pi / 2 * d / 4096)) for d in range(4096, farthest + 1, 64) if d < 5300]
    parts.append(f'<g stroke-dasharray="5 5">{curve(beyond, "ours-line")}</g>')
    parts.append(text(at(4600, 0)[0], at(0, -0.3)[1], "past max_len: negative, so refused", "small muted", "end"))
    return svg(800, 360, "The cosine factor falls from one to zero at max_len and would turn negative beyond", *parts)


def angles() -> str:
    """Positions on a quarter circle: the factor of a pair is the cosine of the angle between them."""
    cx, cy, radius = 70, 330, 260
    parts = [text(24, 34, "A position is an angle", "title")]

    def at(turn: float, r: float = radius) -> tuple[float, float]:
        return cx + r * math.cos(turn), cy - r * math.sin(turn)

    quarter = [at(math.pi / 2 * step / 60) for step in range(61)]
    parts += [curve(quarter, "line"), line(cx, cy, *at(0), "grid"), line(cx, cy, *at(math.pi / 2), "grid")]
    for i in range(17):
        x, y = at(math.pi / 2 * i / 16)
        parts.append(f'<circle class="muted" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
    key, query = math.pi / 2 * 4 / 16, math.pi / 2 * 10 / 16
    for turn, style, words in ((key, "theirs", "key j"), (query, "ours", "query i")):
        x, y = at(turn)
        parts += [arrow(cx, cy, x, y), f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="6"/>']
        parts.append(text(*at(turn, radius + 16), words, style))
    arc = [at(key + (query - key) * step / 20, 90) for step in range(21)]
    parts += [curve(arc, "ours-line thick"), text(*at((key + query) / 2, 104), "aᵢ − aⱼ", "small")]
    parts += [
        text(cx + radius + 4, cy + 22, "first token", "small muted", "end"),
        text(cx + 12, cy - radius - 8, "position max_len", "small muted"),
        text(410, 76, "angle of position i", "muted"),
        text(410, 104, "aᵢ = (π / 2) · i / max_len"),
        text(410, 146, "factor of the pair", "muted"),
        text(410, 174, "cos(aᵢ − aⱼ) = cos aᵢ · cos aⱼ + sin aᵢ · sin aⱼ"),
        text(410, 216, "features", "muted"),
        text(410, 244, "Φ(x) at angle a = [ x⁺ cos a ,  x⁺ sin a ]"),
        text(410, 280, "Both angles lie in the quarter circle, so every", "small muted"),
        text(410, 300, "feature and every weight is at least zero.", "small muted"),
    ]
    return svg(
        800,
        370,
        "Positions as angles of a quarter circle; a pair is weighted by the cosine of their difference",
        *parts,
    )


def chunks() -> str:
    """Causal attention: triangles of one chunk on the diagonal, one state for all that lies before."""
    size, left, top = 56, 40, 64
    parts = [text(24, 34, "Causal: small triangles and one state", "title")]
    for row in range(5):
        y = top + row * size
        if row:
            parts.append(box(left, y, row * size, size, "pale"))
            words = "state" if row == 1 else f"{row} chunks"
            parts.append(text(left + row * size / 2, y + size / 2 + 5, words, "small", "middle"))
        x = left + row * size
        parts.append(f'<polygon class="warm line" points="{x},{y} {x},{y + size} {x + size},{y + size}"/>')
    parts += [
        text(left, top + 5 * size + 26, "keys →", "small muted"),
        text(390, 100, "On the diagonal", "theirs"),
        text(390, 124, "the pairs of a chunk among themselves,", "small"),
        text(390, 144, "a small matrix that fits the cache", "small"),
        text(390, 190, "Left of it", "ours"),
        text(390, 214, "all earlier keys, as two sums of fixed size:", "small"),
        text(390, 234, "Σ Φ(k) vᵀ  and  Σ Φ(k)", "small"),
        text(390, 280, "Generation is the same with chunks of one token.", "small muted"),
    ]
    return svg(
        800,
        380,
        "Causal attention in chunks: triangles on the diagonal, and a state of fixed size for earlier keys",
        *parts,
    )


# file -> what draws it
PICTURES: dict[str, Callable[[], str]] = {
    "speed.svg": speed,
    "order.svg": order,
    "distance.svg": distance,
    "angles.svg": angles,
    "chunks.svg": chunks,
}


def main() -> None:
    for name, draw in PICTURES.items():
        (HERE / name).write_text(draw(), encoding="utf-8")
        print(HERE / name)


if __name__ == "__main__":
    main()
