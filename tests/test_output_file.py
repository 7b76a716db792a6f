"""Atomic output files; links are followed, devices and pipes are written to and never replaced."""

import os
import platform
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cosformer.cli import main
from cosformer.output_file import open_output, write_output


def test_a_file_is_replaced_in_one_step_or_stays(tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    write_output(file, "old")
    file.chmod(0o600)
    with pytest.raises(ZeroDivisionError), open_output(file) as out:
        out.write(b"new")
        assert file.read_text() == "old"
        raise ZeroDivisionError
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["out.txt"]
    write_output(str(file), b"new")
    assert file.read_text() == "new" and stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    for name in ("there", "to_come"):
        (tmp_path / name).symlink_to(tmp_path / "far" / name)
    (tmp_path / "far" / "there").write_text("old")
    for name in ("there", "to_come"):
        write_output(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink() and (tmp_path / "far" / name).read_text() == "new"
    (tmp_path / "round").symlink_to(tmp_path / "round")
    with pytest.raises(ValueError, match="round is a link that leads back to itself"):
        write_output(tmp_path / "round", "new")


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_output(pipe, "through")
    reader.join(10)
    assert read == ["through"] and stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.fixture
def full_device(tmp_path: Path) -> Path:
    """A device node of the kind of /dev/full, of our own: nothing is lost where it is replaced."""
    node = tmp_path / "full.html"
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        open(node, "rb").close()
    except OSError as error:
        pytest.skip(f"a device node needs a privileged user and a folder for devices: {error}")
    return node


def test_a_device_is_written_to_and_never_replaced(full_device: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "runs").mkdir()
    assert main(["report", str(tmp_path / "runs"), "-o", str(full_device)]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert stat.S_ISCHR(full_device.stat().st_mode)


def test_dev_stdout_is_standard_output() -> None:
    code = "from cosformer.output_file import write_output; write_output('/dev/stdout', 'seen')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "seen"


def test_what_cannot_be_a_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder; name a file in it"):
        write_output(tmp_path, "x")
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist; make it first"):
        write_output(tmp_path / "nowhere" / "x", "x")


def test_parts_of_killed_processes_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / f".out.{platform.node()}-{dead.pid}.part").write_text("half")
    other = tmp_path / f".out.{platform.node()}-{os.getppid()}.part"
    other.write_text("of a living process")
    write_output(tmp_path / "out", "x")
    assert sorted(os.listdir(tmp_path)) == [other.name, "out"]
