"""Fixtures: a home of its own for every test, and files in the forms they come in."""

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("COSFORMER_HOME", str(folder))
    return folder


@pytest.fixture
def pack() -> Callable[[Path, dict[str, bytes]], Path]:
    """Write files as a folder, a zip or a tar, as the end of the path says."""

    def packed(path: Path, files: dict[str, bytes]) -> Path:
        if not path.suffix:
            for name, content in files.items():
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                (path / name).write_bytes(content)
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in files.items():
                    archive.writestr(name, content)
        else:
            compression = path.suffix.removeprefix(".").replace("tar", "")
            with tarfile.open(path, f"w:{compression}") as tar:  # type: ignore[call-overload]
                for name, content in files.items():
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        return path

    return packed
