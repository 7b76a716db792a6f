"""Prepared sets: made once, whole or not at all, one key per set of options."""

import errno
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from cosformer.data import cache
from cosformer.data.cache import clean, fingerprint, prepare, prepared_folder, prepared_sets
from cosformer.data.dataset import Description, Writer
from cosformer.data.vocabulary import Bytes


def _build(writer: Writer) -> Description:
    train = writer.split("train", np.uint16)
    for row in ([1, 2, 3], [], [4, 5]):
        train.add(row, len(row))
    writer.split("test", np.int32, pair=True, labels=False).add([70000], second=[1, 2])
    return Description(Bytes(special=False), 4, 100, ("a", "b", "c", "d"), (1, 3), {"odd": 7})


def _leftovers() -> list[str]:
    return sorted(p.name for p in prepared_folder().glob("*") if not p.name.endswith(".lock"))


def test_what_is_written_is_what_is_read_and_is_mapped() -> None:
    dataset = prepare("toy", {"a": 1}, _build)
    assert list(dataset.splits) == ["train", "test"]
    train, test = dataset.splits["train"], dataset.splits["test"]
    assert [row.tolist() for row in train.tokens] == [[1, 2, 3], [], [4, 5]]
    assert train.labels is not None and train.labels.tolist() == train.tokens.lengths.tolist() == [3, 0, 2]
    assert test.second is not None and test.second[0].tolist() == [1, 2] and test.tokens[-1].tolist() == [70000]
    assert isinstance(train.tokens.flat, np.memmap) and test.labels is None
    assert (dataset.vocab_size, dataset.pad_id, dataset.num_classes, dataset.max_length) == (257, 0, 4, 100)
    assert dataset.notes["odd"] == 7 and dataset.image_size == (1, 3) and dataset.class_names == ("a", "b", "c", "d")
    assert dataset.options == {"a": 1} and dataset.selection_split == "test"
    with pytest.raises(IndexError, match="sequence 3 of 3"):
        train.tokens[3]


def test_the_second_call_builds_nothing_and_other_options_do() -> None:
    calls = []

    def build(writer: Writer) -> Description:
        calls.append(1)
        return _build(writer)

    first = prepare("toy", {"seed": 0, "length": [1, 2]}, build)
    assert prepare("toy", {"length": [1, 2], "seed": 0}, build).folder == first.folder
    assert len(calls) == 1
    prepare("toy", {"seed": 1, "length": [1, 2]}, build)
    prepare("toy2", {"seed": 0, "length": [1, 2]}, build)
    assert len(calls) == 3


@pytest.mark.parametrize("error", [ValueError("bad row"), KeyboardInterrupt()])
def test_a_failed_preparation_leaves_nothing(error: BaseException) -> None:
    def build(writer: Writer) -> Description:
        _build(writer)
        raise error

    with pytest.raises(type(error)):
        prepare("toy", {}, build)
    assert _leftovers() == []
    assert len(prepare("toy", {}, _build).splits["train"]) == 3


@pytest.mark.parametrize("file", ["train.tokens.bin", "train.labels.bin"])
def test_a_full_disk_names_the_remedy_keeps_other_sets_and_leaves_nothing(file: str) -> None:
    """/dev/full takes no byte: a split written there must fail when it is flushed, not pass in silence."""
    kept = prepare("toy", {"other": 1}, _build)

    def build(writer: Writer) -> Description:
        (writer.folder / file).symlink_to("/dev/full")
        return _build(writer)

    with pytest.raises(OSError, match=r"No space left on device; nothing was kept.*COSFORMER_HOME") as caught:
        prepare("toy", {}, build)
    assert caught.value.errno == errno.ENOSPC
    assert _leftovers() == [kept.folder.name]


def _prepare_slowly(folder: str) -> None:
    os.environ["COSFORMER_HOME"] = folder

    def build(writer: Writer) -> Description:
        with open(Path(folder) / "builds", "a") as file:
            file.write("x")
        time.sleep(0.3)
        return _build(writer)

    prepare("toy", {}, build)


def test_of_several_processes_one_prepares(home: Path) -> None:
    home.mkdir()
    workers = [multiprocessing.get_context("fork").Process(target=_prepare_slowly, args=(str(home),)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert (home / "builds").read_text() == "x"


def _hang(folder: str) -> None:
    os.environ["COSFORMER_HOME"] = folder

    def build(writer: Writer) -> Description:
        _build(writer)
        (Path(folder) / "started").touch()
        time.sleep(60)
        raise AssertionError

    prepare("toy", {}, build)


def test_a_killed_preparation_is_no_set_and_the_next_one_succeeds(home: Path) -> None:
    home.mkdir()
    worker = multiprocessing.get_context("fork").Process(target=_hang, args=(str(home),))
    worker.start()
    while not (home / "started").exists():
        time.sleep(0.01)
    clean(None, downloads=False)
    assert len(_leftovers()) == 1, "a preparation under way must survive a clean"
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    assert prepared_sets() == []
    assert len(prepare("toy", {}, _build).splits["train"]) == 3
    assert len(_leftovers()) == 1


def test_clean_removes_one_set_or_all_and_half_made_ones() -> None:
    first, second = (prepare(name, {}, _build) for name in ("toy", "toy-small"))
    (prepared_folder() / ".making-toy-0").mkdir()
    assert clean("toy", downloads=False) > 0
    assert not first.folder.exists() and second.folder.exists()
    clean(None, downloads=False)
    assert _leftovers() == []


def test_damaged_arrays_are_noticed() -> None:
    folder = prepare("toy", {}, _build).folder
    file = folder / "train.tokens.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"train.tokens.bin holds 9 bytes, not 10: damaged; .*data clean"):
        prepare("toy", {}, _build)


def test_a_fingerprint_changes_with_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "x").write_text("1")
    first = fingerprint(folder)
    assert fingerprint(folder) == first
    (folder / "a" / "x").write_text("22")
    second = fingerprint(folder)
    (folder / "y").write_text("")
    assert len({str(f) for f in (first, second, fingerprint(folder), fingerprint(folder / "y"))}) == 4


def test_home_follows_the_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COSFORMER_HOME", "~/mine")
    assert cache.home() == tmp_path / "mine"
    monkeypatch.delenv("COSFORMER_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.home() == tmp_path / "xdg" / "cosformer"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.home() == tmp_path / ".cache" / "cosformer"
