"""CIFAR-10: every byte of the files, both archives, and no foreign code."""

import lzma
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cosformer.data import load_dataset
from cosformer.data.cifar10 import grey, read_rows

RNG = np.random.default_rng(0)


def _rows(count: int) -> np.ndarray:
    rows = RNG.integers(0, 256, (count, 3073), dtype=np.uint8)
    rows[:, 0] %= 10
    return rows


TRAIN, TEST = [_rows(10) for _ in range(5)], _rows(7)


def _binary() -> dict[str, bytes]:
    # out of order: the numbers decide
    files = {f"cifar-10-batches-bin/data_batch_{n}.bin": TRAIN[n - 1].tobytes() for n in (3, 1, 2, 5, 4)}
    return {**files, "cifar-10-batches-bin/test_batch.bin": TEST.tobytes(), "readme.html": b""}


def _pickled(rows: np.ndarray, protocol: int, text_keys: bool) -> bytes:
    entries = {"data": rows[:, 1:].copy(), "labels": rows[:, 0].tolist(), "batch_label": "x", "filenames": ["a"]}
    return pickle.dumps(entries if text_keys else {k.encode(): v for k, v in entries.items()}, protocol)


def _python(protocol: int = 2, text_keys: bool = True) -> dict[str, bytes]:
    files = {f"cifar-10-batches-py/data_batch_{n}": _pickled(TRAIN[n - 1], protocol, text_keys) for n in range(1, 6)}
    test = _pickled(TEST, protocol, text_keys)
    return {**files, "cifar-10-batches-py/test_batch": test, "cifar-10-batches-py/batches.meta": b"?"}


@pytest.mark.parametrize(
    "files",
    [_binary(), _python(), _python(text_keys=False), _python(protocol=4)],
    ids=["binary", "python", "python, bytes as keys", "python, protocol 4"],
)
def test_both_archives_give_every_row_in_order(files: dict[str, bytes], pack: Callable, tmp_path: Path) -> None:
    path = pack(tmp_path / "cifar-10.tar.gz", files)
    found = {(split, n): (labels, colours) for split, n, labels, colours in read_rows(path)}
    for n, rows in enumerate(TRAIN, start=1):
        assert (found["train", n][0] == rows[:, 0]).all() and (found["train", n][1] == rows[:, 1:]).all()
    assert (found["test", 0][1] == TEST[:, 1:]).all()
    dataset = load_dataset("image", path=str(path))
    assert {name: len(split) for name, split in dataset.splits.items()} == {"train": 45, "valid": 5, "test": 7}
    everything = np.concatenate(TRAIN)
    assert (dataset.splits["train"].tokens.flat.reshape(-1, 1024) == grey(everything[:45, 1:])).all()
    assert dataset.splits["valid"].labels is not None
    assert dataset.splits["valid"].labels.tolist() == everything[45:, 0].tolist()
    assert (dataset.vocab_size, dataset.pad_id, dataset.num_classes, dataset.max_length) == (256, None, 10, 1024)


def test_pixel_0_is_padding_only_when_asked(pack: Callable, tmp_path: Path) -> None:
    assert load_dataset("image", path=str(pack(tmp_path / "c.tar.gz", _binary())), lra_padding=True).pad_id == 0


def test_grey_is_the_benchmark_s_luma() -> None:
    colours = np.zeros((6, 3, 1024), np.uint8)
    colours[1], colours[2, 0], colours[3, 1], colours[4, 2] = 255, 255, 255, 255
    colours[5] = np.array([10, 20, 30])[:, None]
    # 0.2989, 0.587, 0.114 of 255.5, the fraction cut off
    assert grey(colours.reshape(6, -1))[:, 0].tolist() == [0, 255, 76, 149, 29, 18]
    shades = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3 * 1024, 1)
    assert (np.diff(grey(shades)[:, 0].astype(int)) >= 0).all()


class _Evil:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.trace}'",)


def test_foreign_code_in_a_pickle_is_refused_and_not_run(pack: Callable, tmp_path: Path) -> None:
    content = pickle.dumps({"data": _Evil(tmp_path / "trace"), "labels": []}, 2)
    path = pack(tmp_path / "p.tar.gz", {"cifar-10-batches-py/data_batch_1": content})
    with pytest.raises(
        ValueError, match=r"data_batch_1 is not a CIFAR-10 batch that can be read safely .it asks for posix.system"
    ):
        list(read_rows(path))
    assert not (tmp_path / "trace").exists()
    pickle.loads(content)
    assert (tmp_path / "trace").exists(), "the file is harmless, so the test shows nothing"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"data": np.zeros((2, 3072), np.uint8)}, "lacks 'data' or 'labels'"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, r"shape \(2, 3072\) for 1 labels"),
        ({"data": np.zeros((1, 3000), np.uint8), "labels": [1]}, r"shape \(1, 3000\) for 1 labels"),
        ({"data": np.zeros((1, 3072), np.float32), "labels": [1]}, "not a plain array of bytes"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, "row 0: label 10 is not 0..9"),
        ([1, 2], "lacks 'data' or 'labels'"),
    ],
)
def test_bad_python_batches_are_named(entries: object, message: str, tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(entries, 2))
    with pytest.raises(ValueError, match=f"data_batch_1.*{message}"):
        list(read_rows(tmp_path))


def test_bad_binary_files_are_named(tmp_path: Path) -> None:
    bad = TRAIN[0].copy()
    bad[4, 0] = 11
    (tmp_path / "data_batch_1.bin").write_bytes(bad.tobytes())
    with pytest.raises(ValueError, match=r"data_batch_1.bin, row 4: label 11 is not 0\.\.9"):
        list(read_rows(tmp_path))
    (tmp_path / "data_batch_1.bin").write_bytes(bad.tobytes()[:-5])
    with pytest.raises(ValueError, match="30725 bytes are not whole rows of 3073"):
        list(read_rows(tmp_path))


def test_a_truncated_archive_is_named_and_leaves_nothing(pack: Callable, tmp_path: Path, home: Path) -> None:
    path = pack(tmp_path / "c.tar.gz", _binary())
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(ValueError, match=r"c.tar.gz is truncated or damaged"):
        load_dataset("image", path=str(path))
    assert not [p for p in (home / "prepared").iterdir() if p.is_dir()]


def test_real_rows_equal_the_bytes_of_the_file(real: Callable[[str], Path]) -> None:
    raw = lzma.decompress(real("cifar10/data_batch_1.bin.xz").read_bytes())
    (first, second) = list(read_rows(real("cifar10")))
    split, number, labels, colours = first
    assert (split, number, second[0], len(second[2])) == ("train", 1, "test", 1000)
    assert bytes(np.concatenate([labels[:, None].astype(np.uint8), colours], 1).tobytes()) == raw
    assert len(labels) == 10_000
