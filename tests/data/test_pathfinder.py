"""Pathfinder: the generator's geometry and labels, the official layout, bad files."""

import io
import math
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cosformer.data import load_dataset
from cosformer.data.pathfinder import CHUNK, FOLDERS, draw_chunk, read_folder, write_official
from cosformer.data.pathfinder_draw import LENGTH, LEVELS, MARGIN, Images, draw


def label_from_geometry(targets: np.ndarray, markers: np.ndarray) -> int:
    """1 if one unbroken snake joins the two markers, else 0; [2, P, 2, 2] and [2, 2] of one image."""
    ends = []
    for marker in markers:
        found = {s for s in range(2) for end in (targets[s, 0, 0], targets[s, -1, 1]) if (end == marker).all()}
        if len(found) != 1:
            raise ValueError(f"marker {marker.tolist()} stands at the end of {len(found)} snakes, not of one")
        ends.append(found.pop())
    for snake in set(ends):
        gaps = targets[snake, 1:, 0] - targets[snake, :-1, 1]
        # a pivot lies LENGTH + 2 MARGIN on, and places are rounded to whole pixels
        if (widest := math.sqrt((gaps**2).sum(1).max())) > LENGTH + 2 * MARGIN + 1:
            raise ValueError(f"the snake is broken: {widest:.1f} pixels between two of its paddles")
    return int(ends[0] == ends[1])


@pytest.fixture(scope="module", params=LEVELS)
def drawn(request: pytest.FixtureRequest) -> tuple[str, Images]:
    return request.param, draw(64, request.param, 5)


def test_labels_follow_from_the_geometry(drawn: tuple[str, Images]) -> None:
    _, images = drawn
    found = [label_from_geometry(t, m) for t, m in zip(images.targets, images.markers, strict=True)]
    assert found == images.labels.tolist()
    assert 10 < sum(found) < 54


def test_images_show_what_the_geometry_says(drawn: tuple[str, Images]) -> None:
    """Paddles and discs are bright where they were put; the background is black."""
    level, images = drawn
    size = 12 if level == "tiny" else 32
    assert images.pixels.shape == (64, size, size) and images.pixels.dtype == np.uint8
    assert images.targets.shape == (64, 2, LEVELS[level].paddles, 2, 2)
    assert (images.pixels.max((1, 2)) == 255).all()
    assert 0.4 < (images.pixels == 0).mean() < 0.8
    for pixels, targets, markers in zip(images.pixels, images.targets, images.markers, strict=True):
        heads = targets[:, 1:, 1].reshape(-1, 2)
        assert (pixels[heads[:, 0], heads[:, 1]] > 40).all()
        assert all(pixels[y, x] > 80 for y, x in markers)
        centre = np.concatenate([heads, heads[:0]])
        assert (centre > 0).all() and (centre < size).all()


def test_a_snake_keeps_clear_of_itself(drawn: tuple[str, Images]) -> None:
    """Paddles that do not follow one another are apart; the first was placed before there was anything to avoid."""
    level, images = drawn
    if level == "tiny":
        pytest.skip("both of its paddles follow one another")
    middles = images.targets.mean(3)[:, :, 1:]
    distance = np.sqrt(((middles[:, :, :, None] - middles[:, :, None]) ** 2).sum(-1))
    first, second = np.triu_indices(LEVELS[level].paddles - 1, 2)
    assert distance[:, :, first, second].min() > 1.4


def test_a_wrong_label_or_a_broken_snake_is_noticed() -> None:
    images = draw(64, "easy", 6)
    apart = int(np.flatnonzero(images.labels == 0)[0])
    joined = images.markers[apart].copy()
    origin = next(s for s in range(2) if (images.targets[apart, s, 0, 0] == joined[0]).all())
    joined[1] = images.targets[apart, origin, -1, 1]
    assert label_from_geometry(images.targets[apart], joined) == 1
    broken = images.targets[apart].copy()
    broken[:, 3] = broken[:, 3] + 6
    with pytest.raises(ValueError, match="the snake is broken"):
        label_from_geometry(broken, images.markers[apart])
    with pytest.raises(ValueError, match="stands at the end of 0 snakes"):
        label_from_geometry(images.targets[apart], images.markers[apart] + 1)


def test_the_result_depends_on_seed_level_and_chunk_alone() -> None:
    first = draw_chunk(1, level="easy", seed=0).pixels
    assert (first == draw_chunk(1, level="easy", seed=0).pixels).all()
    for other in (draw_chunk(2, level="easy", seed=0), draw_chunk(1, level="easy", seed=1)):
        assert (first != other.pixels).any()


def test_sets_do_not_depend_on_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes = {"level": "easy", "train": CHUNK + 30, "valid": 10, "test": 10}
    one = load_dataset("pathfinder", workers=1, **sizes)
    monkeypatch.setenv("COSFORMER_HOME", str(tmp_path / "other"))
    two = load_dataset("pathfinder", workers=2, **sizes)
    assert one.folder != two.folder
    for split in ("train", "valid", "test"):
        assert (one.splits[split].tokens.flat == two.splits[split].tokens.flat).all()
        assert len(one.splits[split]) == sizes[split]


def _small() -> dict[str, int | str]:
    return {"level": "easy", "train": 16, "valid": 2, "test": 2}


@pytest.mark.parametrize("form", ["folder", "level folder", "tar"])
def test_the_official_layout_is_written_and_read(form: str, tmp_path: Path) -> None:
    made = load_dataset("pathfinder-small", **_small())
    root = tmp_path / "pathfinder32"
    (metadata,) = write_official(made, root)
    assert metadata == root / "curv_baseline" / "metadata" / "0.npy"
    first = metadata.read_text().splitlines()[0].split(" ")
    label = made.splits["train"].labels[0]  # type: ignore[index]
    assert first == ["imgs/0", "sample_0.png", "0", str(label), "1.0", "6", "2", "2", "0.5", "1", "1"]
    path = root
    if form == "level folder":
        path = root / "curv_baseline"
    if form == "tar":
        path = tmp_path / "release.gz"
        with tarfile.open(path, "w:gz") as tar:
            tar.add(root, "lra_release/pathfinder32")
    read = load_dataset("pathfinder", path=str(path), level="easy")
    for split in ("train", "valid", "test"):
        ours, theirs = made.splits[split], read.splits[split]
        assert (ours.tokens.flat == theirs.tokens.flat).all() and (ours.labels == theirs.labels).all()  # type: ignore[union-attr]


def test_the_release_has_no_tiny_level(tmp_path: Path) -> None:
    tiny = load_dataset("pathfinder", level="tiny", train=4, valid=2, test=2, workers=1)
    assert tiny.image_size == (12, 12) and tiny.max_length == 144
    for use in (
        lambda: write_official(tiny, tmp_path),
        lambda: load_dataset("pathfinder", level="tiny", path=str(tmp_path)),
    ):
        with pytest.raises(ValueError, match="level='tiny' is not in the release, which has easy, intermediate, hard"):
            use()


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    write_official(load_dataset("pathfinder-small", **_small()), tmp_path / "pf")
    return tmp_path / "pf"


def test_images_without_a_byte_are_skipped_and_counted(layout: Path) -> None:
    (layout / "curv_baseline/imgs/0/sample_3.png").write_bytes(b"")
    pixels, labels, skipped = read_folder(layout, "easy")
    assert (len(pixels), len(labels), skipped) == (19, 19, 1)
    assert load_dataset("pathfinder", path=str(layout), level="easy").notes["empty images skipped"] == 1


def test_batches_are_read_in_the_order_of_their_numbers(layout: Path) -> None:
    root = layout / FOLDERS["easy"]
    lines = (root / "metadata/0.npy").read_text().splitlines()
    (root / "metadata/0.npy").rename(root / "metadata/10.npy")
    (root / "metadata/10.npy").write_text("\n".join(lines[:10]) + "\n")
    (root / "metadata/9.npy").write_text("\n".join(lines[10:]) + "\n")
    expected = [int(line.split(" ")[3]) for line in lines[10:] + lines[:10]]
    assert read_folder(layout, "easy")[1].tolist() == expected


def _png(size: tuple[int, int]) -> bytes:
    out = io.BytesIO()
    Image.new("L", size).save(out, "png")
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [(_png((64, 32)), "sample_5.png has 64x32 pixels, not 32x32"), (b"no png", "sample_5.png is not a readable image")],
)
def test_bad_images_are_named(layout: Path, content: bytes, message: str) -> None:
    (layout / "curv_baseline/imgs/0/sample_5.png").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_folder(layout, "easy")


@pytest.mark.parametrize(
    ("line", "message"),
    [("imgs/0 sample_0.png 0", "line 1: 3 columns"), ("imgs/0 sample_0.png 0 2", "line 1: label '2' is not 0 or 1")],
)
def test_bad_metadata_is_named(layout: Path, line: str, message: str) -> None:
    (layout / "curv_baseline/metadata/0.npy").write_text(line + "\n")
    with pytest.raises(ValueError, match=f"metadata/0.npy, {message}"):
        read_folder(layout, "easy")


def test_missing_images_and_levels_are_named(layout: Path) -> None:
    (layout / "curv_baseline/imgs/0/sample_7.png").unlink()
    with pytest.raises(
        ValueError, match=r"1 of 20 images of the metadata are missing, the first is imgs/0/sample_7.png"
    ):
        read_folder(layout, "easy")
    with pytest.raises(ValueError, match="holds no curv_contour_length_14/metadata"):
        read_folder(layout, "hard")
    with pytest.raises(ValueError, match="level='medium'; it is one of easy, intermediate, hard"):
        load_dataset("pathfinder", level="medium")


@pytest.mark.parametrize("lra_padding", [False, True])
def test_black_is_data_unless_the_benchmark_s_padding_is_asked_for(lra_padding: bool) -> None:
    dataset = load_dataset("pathfinder-small", lra_padding=lra_padding, **_small())
    assert dataset.pad_id == (0 if lra_padding else None)
    assert dataset.image_size == (32, 32) and dataset.num_classes == 2 and dataset.max_length == 1024
