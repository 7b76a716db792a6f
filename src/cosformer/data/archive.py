"""Reads folders, tar, zip and single files, plain or compressed, without extracting to disk."""

import bz2
import gzip
import io
import lzma
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

_ZIP = b"PK\x03\x04"
_OPENERS: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
}
_DOWNLOADED = {".zip": _ZIP, ".gz": b"\x1f\x8b"}
_SUFFIXES = (".xz", ".gz", ".bz2")
_DAMAGE = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile)


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, IO[bytes]]]:
    """The files of a folder, an archive or a single file whose name is ``wanted``: (name, decompressed stream).

    Names are relative and without a compression suffix. Archives are read sequentially, so a stream must be read before
    the next one is requested. A damaged archive, or one with names that point outside of it, raises ValueError.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.is_dir():
        yield from _folder_members(path, wanted)
        return
    with _report_damage(path), open(path, "rb") as raw:
        if raw.read(4) == _ZIP:
            yield from _zip_members(path, wanted)
            return
        raw.seek(0)
        if path.suffix == ".zip":
            raise zipfile.BadZipFile("it is empty" if not raw.read(1) else "it does not begin as a zip file does")
        with _decompressed(raw) as stream:
            head = stream.read(512)
            stream.seek(0)
            if head[257:262] == b"ustar" or ".tar" in path.name:
                yield from _tar_members(path, stream, wanted)
            elif wanted(_plain_name(path.name)):
                yield _plain_name(path.name), _checked(stream, path)


def check(path: Path, name: str) -> None:
    """Read every byte of the download ``path``; ValueError unless it is a complete archive of ``name``'s type."""
    kind = Path(name).suffix
    with open(path, "rb") as raw:
        head = raw.read(60)
        if not head.startswith(_DOWNLOADED.get(kind, b"")):
            raise ValueError(f"it is no {kind} file and begins with {head!r}" if head else "it is empty")
        raw.seek(0)
        try:
            if kind == ".zip":
                with zipfile.ZipFile(raw) as archive:
                    if bad := archive.testzip():
                        raise zipfile.BadZipFile(f"{bad} in it is not as it was packed")
            else:
                with _decompressed(raw) as stream:
                    while stream.read(1 << 20):
                        pass
        except (*_DAMAGE, RuntimeError) as error:  # RuntimeError: zipfile's for what it cannot unpack
            raise ValueError(f"it is truncated or damaged ({error or type(error).__name__})") from error


def matching(path: Path, pattern: re.Pattern[str], wanted: str) -> Iterator[tuple[re.Match[str], IO[bytes]]]:
    """The :func:`members` whose name matches ``pattern``: (match, stream); the full name is ``match.string``. If none
    matches, a ValueError that says ``wanted``."""
    match = None
    for name, stream in members(path, lambda n: pattern.search(n) is not None):
        match = pattern.search(name)
        assert match is not None
        yield match, stream
    if match is None:
        raise ValueError(f"{path} holds {wanted}")


def _folder_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, IO[bytes]]]:
    for folder, subfolders, files in os.walk(path):
        subfolders.sort()
        for file in sorted(files):
            full = Path(folder) / file
            name = _plain_name(full.relative_to(path).as_posix())
            if wanted(name):
                with _report_damage(full), open(full, "rb") as raw, _decompressed(raw) as stream:
                    yield name, _checked(stream, full)


def _tar_members(path: Path, stream: IO[bytes], wanted: Callable[[str], bool]) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            _refuse_names_outside(path, member.name)
            if member.isfile() and wanted(_plain_name(member.name)):
                content = tar.extractfile(member)
                assert content is not None
                yield _plain_name(member.name), _checked(content, path)


def _zip_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            _refuse_names_outside(path, member.filename)
            if not member.is_dir() and wanted(_plain_name(member.filename)):
                with archive.open(member) as content:
                    yield _plain_name(member.filename), _checked(content, path)


class _CheckedReads(io.RawIOBase):
    """Passes reads on; damage met there is reported with the name of the file on disk."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream, self._path = stream, path

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _report_damage(self._path):
            data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _checked(stream: IO[bytes], path: Path) -> IO[bytes]:
    return io.BufferedReader(_CheckedReads(stream, path), 1 << 16)


@contextmanager
def _decompressed(raw: BinaryIO) -> Iterator[IO[bytes]]:
    head = raw.read(6)
    raw.seek(0)
    opener = next((o for magic, o in _OPENERS.items() if head.startswith(magic)), None)
    if opener is None:
        yield raw
    else:
        with opener(raw) as stream:
            yield stream


@contextmanager
def _report_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise ValueError(
            f"{path} is truncated or damaged ({error or type(error).__name__}); get it again "
            "(a downloaded file: 'cosformer data clean --downloads' first)"
        ) from error


def _plain_name(name: str) -> str:
    return next((name.removesuffix(s) for s in _SUFFIXES if name.endswith(s)), name)


def _refuse_names_outside(path: Path, name: str) -> None:
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts:
        raise ValueError(f"{path} holds a file named {name!r}, which climbs out of the archive; do not trust this file")


def text_lines(stream: IO[bytes], name: str, errors: str = "strict") -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its end) of UTF-8 text; only LF and CRLF end a line.

    ``errors`` is ``"strict"`` (a line that is not UTF-8 raises and is named) or ``"replace"``.
    """
    for number, raw in enumerate(stream, start=1):
        yield number, decoded(raw.removesuffix(b"\n").removesuffix(b"\r"), f"{name}, line {number}", errors)


def decoded(raw: bytes, where: str, errors: str, encoding: str = "UTF-8", remedy: str = "mend the file") -> str:
    """``raw`` as text; what is not raises with its place and the ``remedy``."""
    if errors not in ("strict", "replace"):
        raise ValueError(f"errors={errors!r}; it is 'strict' or 'replace'")
    try:
        return raw.decode(encoding, errors)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: byte {error.start} (0x{raw[error.start]:02x}) is not valid {encoding}; {remedy}, or accept "
            "replacement characters with the option errors=replace"
        ) from None
    except LookupError:
        raise ValueError(f"encoding={encoding!r} is unknown to Python; try utf-8, latin-1 or utf-16") from None
