"""The Pathfinder generator, by the rules of the benchmark, many images at once.

Two snakes of paddles (short dashes) grow from near the middle without touching, shorter ones are strewn between them,
and a disc marks one end of a snake and another disc the far end of the same snake (label 1) or of the other one (label
0).
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from cosformer.extras import require

SIZE, PADDING = 32, 1  # of the benchmark's images; pixels of the border that stay black
LENGTH, MARGIN, FINE = 2, 1, 2  # of a paddle; room around it; drawing is FINE times finer and then reduced
LINE_WIDTH = 1  # at the finer scale: thickness 0.5
MARKER_RADIUS = 1.5
TARGET_CONTRAST, DISTRACTOR_CONTRAST = 2 * 0.75, 2.0
PADDLE_TRIALS, SNAKE_TRIALS = 3, 5
FULL = 0.01  # no more snakes once fewer than this share of pixels is free
OVERLAP = 1.8


@dataclass(frozen=True)
class Level:
    """How hard: ``paddles`` of a target snake, and ``distractors`` of a third as many each.

    The second snake starts ``seed_distance`` pixels from the first, which starts at least ``border`` pixels inside the
    image.
    """

    paddles: int
    distractors: int
    size: int = SIZE
    seed_distance: int = 7
    border: int = 14


LEVELS = {
    "easy": Level(6, 10),
    "intermediate": Level(9, 6),
    "hard": Level(14, 5),
    # not in the benchmark: a seventh of the pixels, and two short snakes alone
    "tiny": Level(2, 0, size=12, seed_distance=6, border=3),
}
_ATTEMPTS = 2048  # pairs of target snakes tried at once; of the hard ones one in 200 grows to full length
_HALF = LENGTH + 1 + MARGIN  # half the side of a stamp
_STAMP = 2 * _HALF + 1
_PAD = _HALF + 1  # room around the canvas, so that stamps and look-ups near the border need no clipping


@dataclass(frozen=True)
class Images:
    """A batch of drawn images and their geometry.

    ``pixels`` uint8 [B, size, size]; ``labels`` int64 [B]; ``targets`` [B, 2, P, 2, 2]: both ends (y, x) of every
    paddle of the two target snakes, the end that a snake grew from first; ``markers`` [B, 2, 2]: the two discs'
    centres.
    """

    pixels: np.ndarray
    labels: np.ndarray
    targets: np.ndarray
    markers: np.ndarray


@dataclass(frozen=True)
class _Tables:
    """Tables by orientation. Rows 0..359 are the degrees -180..179 of seeds, then one row per candidate step."""

    angle: np.ndarray  # [A]
    steps: np.ndarray  # [K, 2] from a pivot to the candidate heads around it
    turn: np.ndarray  # [A, K] chance of a step after an orientation, before occupancy
    line: np.ndarray  # [A, stamp, stamp] a paddle drawn from the centre along the orientation
    mask: np.ndarray  # [A, stamp, stamp] the area it takes
    footprint: np.ndarray  # [360, F, 2] offsets that must be free for a seed; short lists repeat their first entry


@cache
def _tables() -> _Tables:
    degrees = np.arange(-180, 180) * np.pi / 180
    radius = LENGTH + MARGIN
    around = np.arange(0, 360, 360 / (2 * radius * np.pi)) * np.pi / 180
    steps = np.unique(np.floor(radius * np.stack([np.sin(around), np.cos(around)], 1)).astype(np.int64), axis=0)
    toward = np.arctan2(steps[:, 0], steps[:, 1])
    # a paddle of an extension is drawn from its head back to the pivot
    back = np.where(toward < 0, toward + np.pi, toward - np.pi)
    angle = np.concatenate([degrees, toward])
    difference = np.abs(angle[:, None] - toward[None, :])
    difference = np.minimum(difference, 2 * np.pi - difference)
    turn = np.maximum(np.cos(np.minimum(difference, np.pi / 2)), 0) ** 2
    stamps = [_stamp(a) for a in (*degrees, *back)]
    line = np.stack([s[0] for s in stamps])
    mask = np.stack([s[1] for s in stamps])
    return _Tables(angle, steps, turn, line, mask, _footprints(mask[:360]))


def _stamp(angle: float) -> tuple[np.ndarray, np.ndarray]:
    """A paddle and the area it takes, float [stamp, stamp] in 0..1, starting at the centre."""
    image = require("data", "PIL.Image")
    draw = require("data", "PIL.ImageDraw")
    side, centre = 2 * _HALF * FINE + 1, _HALF * FINE
    fine = image.new("L", (side, side), 0)
    head = _advance(np.array([centre, centre]), angle, LENGTH * FINE)
    draw.Draw(fine).line([(centre, centre), (int(head[1]), int(head[0]))], fill=255, width=LINE_WIDTH)
    line = np.array(fine)
    area = np.zeros_like(line)
    reach = MARGIN * FINE
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            if dy * dy + dx * dx <= reach * reach:
                area = np.maximum(area, np.roll(line, (dy, dx), (0, 1)))
    return _reduced(line, _STAMP), _reduced(area, _STAMP)


def _reduced(fine: np.ndarray, size: int) -> np.ndarray:
    image = require("data", "PIL.Image")
    small = image.fromarray(fine).resize((size, size), image.Resampling.LANCZOS)
    return np.asarray(small, np.float32) / 255


def _footprints(masks: np.ndarray) -> np.ndarray:
    """Offsets from a seed's tail to the pixels its paddle covers within 3 pixels (off-centre by one, as published)."""
    reach = LENGTH + MARGIN
    lists = []
    for mask in masks:
        y, x = np.nonzero(mask >= 1.0)
        offsets = np.stack([y, x], 1) - _HALF + 1
        lists.append(offsets[(np.abs(offsets) <= reach).all(1)])
    longest = max(len(o) for o in lists)
    return np.stack([np.concatenate([o, np.repeat(o[:1], longest - len(o), 0)]) for o in lists])


def _advance(point: np.ndarray, angle: np.ndarray | float, distance: float) -> np.ndarray:
    """``point`` [..., 2] moved along ``angle`` and rounded up, as published."""
    step = np.stack([np.sin(angle), np.cos(angle)], -1) * distance
    return np.ceil(point + step).astype(np.int64)


def _inside(point: np.ndarray, size: int) -> np.ndarray:
    return np.all((point >= 0) & (point < size), axis=-1, keepdims=True)[..., 0]


def _size(canvas: np.ndarray) -> int:
    """Of the picture on a canvas [B, ...]."""
    return canvas.shape[1] - 2 * _PAD


@cache
def _disc(y: int, x: int, size: int) -> np.ndarray:
    """A marker, float [size, size] in 0..1."""
    rows, columns = np.ogrid[: size * FINE, : size * FINE]
    inside = (rows - y * FINE) ** 2 + (columns - x * FINE) ** 2 <= (MARKER_RADIUS * FINE) ** 2
    return _reduced(inside.astype(np.uint8) * 255, size)


@dataclass
class _Snakes:
    """One growing snake in each row: where it stands, and the area of its last paddle, which does not yet block."""

    pivot: np.ndarray  # [B, 2]
    orientation: np.ndarray  # [B] row of the tables
    corner: np.ndarray  # [B, 2] canvas place of the last paddle's stamp
    stamp: np.ndarray  # [B] row of the tables whose mask that is


_WINDOW = np.arange(_STAMP)


def _windows(rows: np.ndarray, corner: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rows[:, None, None], (corner[:, :1] + _WINDOW)[:, :, None], (corner[:, 1:] + _WINDOW)[:, None, :]


def _raise_to(canvas: np.ndarray, rows: np.ndarray, corner: np.ndarray, values: np.ndarray) -> None:
    window = _windows(rows, corner)
    canvas[window] = np.maximum(canvas[window], values)


def _extend(
    rng: np.random.Generator, rows: np.ndarray, snakes: _Snakes, image: np.ndarray, mask: np.ndarray, contrast: float
) -> tuple[np.ndarray, np.ndarray]:
    """Grow the snakes of ``rows`` by one paddle; returns (which succeeded, the new heads)."""
    tables = _tables()
    pivot = _advance(snakes.pivot[rows], tables.angle[snakes.orientation[rows]], LENGTH + 2 * MARGIN)
    heads = pivot[:, None, :] + tables.steps[None]
    y, x = (heads + _PAD).clip(1, mask.shape[1] - 2).transpose(2, 0, 1)
    r = rows[:, None]
    near = [mask[r, y + dy, x + dx] for dy, dx in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))]
    free = (1 - np.maximum.reduce(near)) * _inside(heads, _size(mask))
    cumulative = np.cumsum(free * tables.turn[snakes.orientation[rows]], axis=1)
    total = cumulative[:, -1]
    alive = np.flatnonzero(total >= 1e-4)
    done = np.zeros(len(rows), bool)
    chosen = np.zeros(len(rows), np.int64)
    for _ in range(PADDLE_TRIALS):
        waiting = alive[~done[alive]]
        drawn = rng.random(len(waiting)) * total[waiting]
        choice = np.minimum((cumulative[waiting] <= drawn[:, None]).sum(1), len(tables.steps) - 1)
        corner = heads[waiting, choice] + _PAD - _HALF
        crowded = mask[_windows(rows[waiting], corner)] + tables.mask[360 + choice]
        fits = crowded.max(axis=(1, 2)) < OVERLAP
        done[waiting[fits]] = True
        chosen[waiting[fits]] = choice[fits]
    rows, pivot, chosen, heads = rows[done], pivot[done], chosen[done], heads[done, chosen[done]]
    corner = heads + _PAD - _HALF
    _raise_to(image, rows, corner, tables.line[360 + chosen] * contrast)
    _raise_to(mask, rows, snakes.corner[rows], tables.mask[snakes.stamp[rows]])
    snakes.pivot[rows], snakes.orientation[rows] = pivot, 360 + chosen
    snakes.corner[rows], snakes.stamp[rows] = corner, 360 + chosen
    return done, heads


def _start(rows: np.ndarray, tail: np.ndarray, degree: np.ndarray, image: np.ndarray, contrast: float) -> _Snakes:
    """Draw the first paddle of a snake in each of ``rows``, from ``tail`` along ``degree`` (row of the tables)."""
    tables, batch = _tables(), len(image)
    snakes = _Snakes(
        np.zeros((batch, 2), np.int64),
        np.zeros(batch, np.int64),
        np.zeros((batch, 2), np.int64),
        np.zeros(batch, np.int64),
    )
    snakes.pivot[rows] = _seed_points(tail, degree)[1]
    snakes.orientation[rows] = snakes.stamp[rows] = degree
    snakes.corner[rows] = tail + _PAD - _HALF
    _raise_to(image, rows, snakes.corner[rows], tables.line[degree] * contrast)
    return snakes


def _seed_points(tail: np.ndarray, degree: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Head and pivot of a snake's first paddle."""
    angle = _tables().angle[degree]
    head = _advance(tail, angle, LENGTH)
    reversed_angle = np.where(angle < 0, angle + np.pi, angle - np.pi)
    return head, _advance(head, reversed_angle, LENGTH + MARGIN)


def _blank(batch: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Empty image and mask canvases; the outermost pixels of the picture are taken."""
    image = np.zeros((batch, size + 2 * _PAD, size + 2 * _PAD), np.float32)
    mask = np.zeros_like(image)
    mask[:, _PAD : _PAD + size, _PAD : _PAD + size] = 1
    inner = slice(_PAD + PADDING, _PAD + size - PADDING)
    mask[:, inner, inner] = 0
    return image, mask


def _free_tails(mask: np.ndarray, degree: np.ndarray) -> np.ndarray:
    """Where a seed of orientation ``degree`` may start: bool [B, size, size]."""
    size = _size(mask)
    taken = np.zeros((len(mask), size, size), np.float32)
    place = _PAD + np.arange(size)
    rows = np.arange(len(mask))[:, None, None]
    for offset in _tables().footprint[degree].transpose(1, 0, 2):
        y, x = place[None, :] + offset[:, :1], place[None, :] + offset[:, 1:]
        np.maximum(taken, mask[rows, y[:, :, None], x[:, None, :]], out=taken)
    return taken <= 0.3


@cache
def _first_tails(size: int, border: int) -> np.ndarray:
    """Where the first snake may start, away from the border, for every degree; bool [360, size, size]."""
    mask = _blank(1, size)[1]
    mask[:, _PAD : _PAD + size, _PAD : _PAD + size] = 1
    middle = slice(_PAD + border, _PAD + size - border)
    mask[:, middle, middle] = 0
    return _free_tails(np.broadcast_to(mask, (360, *mask.shape[1:])), np.arange(360))


def _pick(rng: np.random.Generator, free: np.ndarray) -> np.ndarray:
    """One uniform True place (y, x) of each [size, size] map; every map has one."""
    flat = free.reshape(len(free), -1)
    counts = flat.sum(1)
    rank = np.floor(rng.random(len(free)) * counts).astype(np.int64)
    index = (np.cumsum(flat, 1) > rank[:, None]).argmax(1)
    return np.stack(np.divmod(index, free.shape[2]), 1)


def _two_snakes(rng: np.random.Generator, batch: int, level: Level) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Try ``batch`` pairs of target snakes; (image, mask, geometry) of those that grew to full length."""
    paddles, size = level.paddles, level.size
    degrees = rng.integers(0, 360, (2, batch))
    free = _first_tails(size, level.border)[degrees[0]]
    ok = free.any((1, 2))
    free[~ok, size // 2, size // 2] = True
    tails = [_pick(rng, free)]
    around = rng.integers(0, 360, batch) * np.pi / 180
    apart = level.seed_distance * np.stack([np.sin(around), np.cos(around)], 1)
    tails.append(np.round(tails[0] + apart).astype(np.int64))
    for tail, degree in zip(tails, degrees, strict=True):
        head, pivot = _seed_points(tail, degree)
        ok &= _inside(tail, size) & _inside(head, size) & _inside(pivot, size)
    tails, degrees, batch = [tail[ok] for tail in tails], degrees[:, ok], int(ok.sum())
    image, mask = _blank(batch, size)
    rows = np.arange(batch)
    geometry = np.zeros((batch, 2, paddles, 2, 2), np.int64)
    snakes = []
    for s in range(2):
        snakes.append(_start(rows, tails[s], degrees[s], image, TARGET_CONTRAST))
        geometry[:, s, 0, 0] = tails[s]
        geometry[:, s, 0, 1] = _seed_points(tails[s], degrees[s])[0]
    for paddle in range(1, paddles):
        for s in range(2):
            done, heads = _extend(rng, rows, snakes[s], image, mask, TARGET_CONTRAST)
            rows = rows[done]
            geometry[rows, s, paddle, 1] = heads
            step = _tables().angle[snakes[s].orientation[rows]] + np.pi
            geometry[rows, s, paddle, 0] = _advance(heads, step, LENGTH)
    # two snakes that end in one pixel would leave the label open, which the published generator lets pass
    ends = geometry[rows][:, :, (0, -1), (0, 1)]
    rows = rows[~(ends[:, 0, :, None] == ends[:, 1, None]).all(-1).any((1, 2))]
    # as published, the last paddle of the second snake blocks the distractors and that of the first does not
    _raise_to(mask, rows, snakes[1].corner[rows], _tables().mask[snakes[1].stamp[rows]])
    return image[rows], mask[rows], geometry[rows]


def _add_distractors(rng: np.random.Generator, image: np.ndarray, mask: np.ndarray, paddles: int, snakes: int) -> None:
    """Strew short snakes over every image, in place; one that fails SNAKE_TRIALS times is left out."""
    batch, size = len(image), _size(image)
    made, trials = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
    while len(rows := np.flatnonzero(made < snakes)):
        trial_image, trial_mask = image[rows], mask[rows]
        success = np.zeros(len(rows), bool)
        inner = mask[rows, _PAD : _PAD + size, _PAD : _PAD + size]
        roomy = (inner <= 0.3).mean((1, 2)) >= FULL
        degree = rng.integers(0, 360, len(rows))
        free = _free_tails(trial_mask, degree)
        ok = roomy & free.any((1, 2))
        free[~ok, 0, 0] = True
        tail = _pick(rng, free)
        head, pivot = _seed_points(tail, degree)
        active = np.flatnonzero(ok & _inside(head, size) & _inside(pivot, size))
        grown = _start(active, tail[active], degree[active], trial_image, DISTRACTOR_CONTRAST)
        for _ in range(paddles - 1):
            done, _ = _extend(rng, active, grown, trial_image, trial_mask, DISTRACTOR_CONTRAST)
            active = active[done]
        _raise_to(trial_mask, active, grown.corner[active], _tables().mask[grown.stamp[active]])
        success[active] = True
        image[rows[active]], mask[rows[active]] = trial_image[active], trial_mask[active]
        trials[rows] += 1
        finished = rows[success | (trials[rows] == SNAKE_TRIALS)]
        made[finished] += 1
        trials[finished] = 0


def draw(count: int, level: str, seed: int | list[int]) -> Images:
    """``count`` images of ``level``; the same seed gives the same images."""
    if level not in LEVELS:
        raise ValueError(f"level={level!r}; it is one of {', '.join(LEVELS)}")
    rules = LEVELS[level]
    rng = np.random.default_rng(seed)
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    have = 0
    while have < count:
        part = _two_snakes(rng, _ATTEMPTS, rules)
        parts.append(part)
        have += len(part[0])
    image, mask, targets = (np.concatenate(arrays)[:count] for arrays in zip(*parts, strict=True))
    _add_distractors(rng, image, mask, rules.paddles // 3, rules.distractors)
    labels = rng.integers(0, 2, count)
    origin = rng.integers(0, 2, count)
    terminal = np.where(labels == 1, origin, 1 - origin)
    rows = np.arange(count)
    markers = np.stack([targets[rows, origin, 0, 0], targets[rows, terminal, -1, 1]], 1)
    pixels = np.zeros((count, rules.size, rules.size), np.uint8)
    for i in range(count):
        inner = image[i, _PAD : _PAD + rules.size, _PAD : _PAD + rules.size]
        marked = np.maximum.reduce([inner, *(_disc(int(y), int(x), rules.size) for y, x in markers[i])])
        # the original writer stretched each image to its full range
        pixels[i] = np.floor(marked * (255 / marked.max()) + 0.5)
    return Images(pixels, labels, targets, markers)
