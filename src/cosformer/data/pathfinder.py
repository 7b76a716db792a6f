"""Pathfinder (Long Range Arena): are the two discs on one dashed line? Made here, or read from the official folders."""

import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from cosformer.data.archive import members, text_lines
from cosformer.data.cache import prepare
from cosformer.data.dataset import SPLITS, Dataset, Description, Writer
from cosformer.data.download import locate
from cosformer.data.parallel import in_order
from cosformer.data.pathfinder_draw import LENGTH, LEVELS, MARGIN, SIZE, Images, draw
from cosformer.data.vocabulary import Pixels
from cosformer.extras import require
from cosformer.output_file import write_output
from cosformer.terminal import progress_bar

FOLDERS = {"easy": "curv_baseline", "intermediate": "curv_contour_length_9", "hard": "curv_contour_length_14"}
CLASSES = ("apart", "joined")
CHUNK = 256  # images drawn at once, from one seed


def pathfinder(
    *,
    path: str | None = None,
    level: str = "hard",
    train: int = 160_000,
    valid: int = 20_000,
    test: int = 20_000,
    lra_padding: bool = False,
    seed: int = 0,
    workers: int | None = None,
) -> Dataset:
    """Pathfinder: rows of 1024 grey values, label 1 if both discs are on one contour; 144 of them at ``level`` "tiny".

    With ``path`` (a folder or archive in the release's layout) the images of ``level`` are read and cut 80/10/10 in
    order; without, ``train`` + ``valid`` + ``test`` images are drawn. ``lra_padding`` masks pixels of value 0, as the
    benchmark does.
    """
    if level not in LEVELS:
        raise ValueError(f"level={level!r}; it is one of {', '.join(LEVELS)}")
    vocabulary = Pixels(lra_padding)
    size = LEVELS[level].size
    about = partial(Description, vocabulary, 2, size * size, class_names=CLASSES, image_size=(size, size))
    if path is not None:
        _check_official(level)
        source = locate("pathfinder", "lra", path)

        def read(writer: Writer) -> Description:
            pixels, labels, skipped = read_folder(source.files(), level)
            tenth = len(labels) // 10
            cuts = [len(labels) - 2 * tenth, len(labels) - tenth]
            for name, rows, own in zip(SPLITS, np.split(pixels, cuts), np.split(labels, cuts), strict=True):
                writer.split(name, np.uint8).add_many(rows, [SIZE * SIZE] * len(own), own.tolist())
            return about(notes={"empty images skipped": skipped})

        return prepare("pathfinder", {"source": source.identity, "level": level, "lra": lra_padding}, read)

    sizes = {"train": train, "valid": valid, "test": test}

    def build(writer: Writer) -> Description:
        count = sum(sizes.values())
        with progress_bar(f"pathfinder {level}", count, "images") as bar:
            writer.take(sizes, _images(count, level, seed, workers), bar)
        return about()

    return prepare("pathfinder", {"sizes": sizes, "level": level, "lra": lra_padding, "seed": seed}, build)


def pathfinder_small(
    *,
    level: str = "easy",
    train: int = 2_000,
    valid: int = 250,
    test: int = 250,
    lra_padding: bool = False,
    seed: int = 0,
) -> Dataset:
    """Pathfinder by the same rules, small enough to be made while you wait."""
    return pathfinder(level=level, train=train, valid=valid, test=test, lra_padding=lra_padding, seed=seed)


def _check_official(level: str) -> None:
    if level not in FOLDERS:
        raise ValueError(f"level={level!r} is not in the release, which has {', '.join(FOLDERS)}; leave out the path")


def draw_chunk(chunk: int, *, level: str, seed: int) -> Images:
    """Chunk number ``chunk`` of the images of ``seed``: always CHUNK images."""
    return draw(CHUNK, level, [seed, list(LEVELS).index(level), chunk])


def _images(count: int, level: str, seed: int, workers: int | None) -> Iterator[tuple[np.ndarray, int]]:
    for images in in_order(partial(draw_chunk, level=level, seed=seed), workers, -(-count // CHUNK)):
        yield from zip(images.pixels.reshape(CHUNK, -1), images.labels.tolist(), strict=True)


def write_official(dataset: Dataset, folder: Path) -> list[Path]:
    """Write the splits in the release's layout (PNG files and text metadata); return the metadata."""
    image = require("data", "PIL.Image")
    level = dataset.options["level"]
    _check_official(level)
    root = folder / FOLDERS[level]
    (root / "imgs" / "0").mkdir(parents=True, exist_ok=True)
    (root / "metadata").mkdir(exist_ok=True)
    paddles = LEVELS[level].paddles
    lines: list[str] = []
    for part in dataset.splits.values():
        assert part.labels is not None
        for pixels, label in zip(part.tokens, part.labels.tolist(), strict=True):
            n = len(lines)
            image.fromarray(np.array(pixels.reshape(SIZE, SIZE))).save(root / "imgs" / "0" / f"sample_{n}.png")
            lines.append(f"imgs/0 sample_{n}.png {n} {label} 1.0 {paddles} {paddles // 3} {LENGTH} 0.5 {MARGIN} 1\n")
    metadata = root / "metadata" / "0.npy"
    write_output(metadata, "".join(lines))
    return [metadata]


def read_folder(path: Path, level: str) -> tuple[np.ndarray, np.ndarray, int]:
    """(pixels uint8 [N, 1024], labels int64 [N], empty images skipped) of ``level``, in the metadata's order."""
    labels: dict[str, int] = {}
    batches: list[tuple[int, list[tuple[str, int]]]] = []
    for name, stream in members(path, lambda n: _part(n, level, "metadata") is not None):
        rows = [_metadata_row(name, number, line) for number, line in text_lines(stream, name) if line]
        batches.append((int(PurePosixPath(name).stem), rows))
    for _, rows in sorted(batches):
        labels.update(rows)
    if not labels:
        raise ValueError(f"{path} holds no {FOLDERS[level]}/metadata/*.npy with rows in it (level {level!r})")
    order = {image: i for i, image in enumerate(labels)}
    pixels = np.zeros((len(labels), SIZE * SIZE), np.uint8)
    state = np.zeros(len(labels), np.int8)  # 0 not found, 1 read, 2 empty
    with progress_bar("reading", len(labels), "images") as bar:
        for name, stream in members(path, lambda n: (_part(n, level, "imgs") or "") in order):
            place = order[_part(name, level, "imgs") or ""]
            content = stream.read()
            state[place] = 1 if content else 2
            if content:
                pixels[place] = _pixels(name, content)
            bar.update(1)
    if missing := int((state == 0).sum()):
        first = next(image for image, i in order.items() if state[i] == 0)
        raise ValueError(f"{path}: {missing} of {len(labels)} images of the metadata are missing, the first is {first}")
    kept = state == 1
    return pixels[kept], np.fromiter(labels.values(), np.int64, len(labels))[kept], int((~kept).sum())


def _part(name: str, level: str, kind: str) -> str | None:
    """``kind/...`` of a member's name if it belongs to ``level`` at this size, else None."""
    parts = PurePosixPath(name).parts
    if kind not in parts or any(p.startswith("pathfinder") and p != f"pathfinder{SIZE}" for p in parts):
        return None
    at = parts.index(kind)
    return "/".join(parts[at:]) if at == 0 or parts[at - 1] == FOLDERS[level] else None


def _metadata_row(name: str, number: int, line: str) -> tuple[str, int]:
    fields = line.split(" ")
    if len(fields) < 4:
        raise ValueError(f"{name}, line {number}: {len(fields)} columns; folder, file, index and label are needed")
    if fields[3] not in ("0", "1"):
        raise ValueError(f"{name}, line {number}: label {fields[3]!r} is not 0 or 1")
    return f"{fields[0]}/{fields[1]}", int(fields[3])


def _pixels(name: str, content: bytes) -> np.ndarray:
    image = require("data", "PIL.Image")
    try:
        picture = image.open(io.BytesIO(content)).convert("L")
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{name} is not a readable image ({error}); get the archive again") from error
    if picture.size != (SIZE, SIZE):
        raise ValueError(f"{name} has {picture.size[0]}x{picture.size[1]} pixels, not {SIZE}x{SIZE}")
    return np.asarray(picture, np.uint8).reshape(-1)
