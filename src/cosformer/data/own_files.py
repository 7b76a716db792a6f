"""The user's own files: a file, folder, glob or set of the hub, plain, compressed or archived, and the split of
each."""

import glob
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from cosformer.data import hub
from cosformer.data.archive import decoded, members

LONGEST_LINE = 10_000_000  # bytes; a longer line is almost always a file of another format
# how splits are spelt in file names and in a table's split column
SPELLINGS = {"train": "train", "training": "train", "valid": "valid", "validation": "valid", "val": "valid"}
SPELLINGS |= {"dev": "valid", "test": "test", "testing": "test"}
_COMPRESSED = (".xz", ".gz", ".bz2")


@dataclass(frozen=True)
class OwnFile:
    """One file: where it is on disk (of an archive: the archive), its name below that, and its decompressed content."""

    path: Path
    name: str
    stream: IO[bytes]

    @property
    def shown(self) -> str:
        """The name for messages: short, and unlike the full path safe to quote in a report."""
        return self.name

    @property
    def ending(self) -> str:
        return PurePosixPath(self.name).suffix.lower()


def own_files(path: str, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[OwnFile]:
    """The files below ``path`` in the order of their names; hidden ones are left out. A stream must be used before the
    next file is asked for. ``wanted`` filters the names found in folders and archives; a file that is named itself is
    always wanted."""
    for place in _places(path):
        single = place.is_file()
        if single and place.suffix.lower() == ".npz":  # a zip file, but numpy reads it whole
            with open(place, "rb") as stream:
                yield OwnFile(place, place.name, stream)
            continue

        def visible(name: str, single: bool = single) -> bool:
            parts = PurePosixPath(name).parts
            return (single and len(parts) == 1) or (not any(p.startswith(".") for p in parts) and wanted(name))

        for name, stream in members(place, visible):
            full = place if single else _on_disk(place, name)
            yield OwnFile(full, name, stream)


def _places(path: str) -> list[Path]:
    """``path`` itself, what it matches as a glob, or the files of the hub's set that it names."""
    if path.startswith(hub.PREFIX):
        return [hub.hub_folder(path.removeprefix(hub.PREFIX), split_of)]
    place = Path(path).expanduser()
    if place.exists():
        return [place]
    if not glob.has_magic(path):
        raise FileNotFoundError(f"{path} does not exist")
    found = [Path(name) for name in sorted(glob.glob(str(place), recursive=True))]
    if not found:
        raise FileNotFoundError(f"no file matches {path!r}")
    return [each for each in found if each.is_file()] or found


def _on_disk(folder: Path, name: str) -> Path:
    """The file of a folder's member, whose name lacks a compression suffix."""
    plain = folder / name
    return next((p for p in (plain, *(plain.with_name(plain.name + s) for s in _COMPRESSED)) if p.exists()), folder)


def content_hash(path: str, files: Iterable[OwnFile], expected: str | None) -> str:
    """SHA-256 of all names and contents: the same wherever the files lie. Files that changed since ``expected`` was
    written into a run's experiment.json are refused."""
    digest = hashlib.sha256()
    for file in files:
        content = hashlib.file_digest(file.stream, "sha256").hexdigest()  # pyright: ignore[reportArgumentType]
        digest.update(f"{file.name}\0{content}\n".encode(errors="surrogateescape"))
    found = digest.hexdigest()
    if expected not in (None, found):
        raise ValueError(
            f"{path} has changed since this run began (sha256 {found[:12]}…, not {expected[:12]}…); restore the file, "
            "or start a new run"
        )
    return found


def split_of(name: str) -> str | None:
    """``train``, ``valid`` or ``test`` if a word of the file or folder name says so: ``data/dev-00.csv``."""
    for part in reversed(PurePosixPath(name).parts):
        for word in re.split(r"[^a-z]+", part.lower()):
            if word in SPELLINGS:
                return SPELLINGS[word]
    return None


def said_split(values: dict[str, Any], columns: dict[str, Any], place: str) -> str | None:
    """The split that a table's row names in the column ``split``, where there is one."""
    if "split" not in columns:
        return None
    said = str(values.get(columns["split"])).strip()
    if said.lower() not in SPELLINGS:
        raise ValueError(f"{place}: column {columns['split']!r} is {said!r}; expected one of {', '.join(SPELLINGS)}")
    return SPELLINGS[said.lower()]


def splits_by_name(names: Sequence[str]) -> dict[str, str] | None:
    """File name -> split if the names include a training split and another one; None if they name no splits."""
    found = {name: split_of(name) for name in names}
    named = {split for split in found.values() if split is not None}
    if "train" not in named or len(named) < 2:
        return None
    strange = [name for name, split in found.items() if split is None]
    if strange:
        raise ValueError(
            f"{strange[0]} does not say whether it is for training, validation or test, as the other files do; rename "
            "it (train, valid, test), or leave it out"
        )
    return {name: split for name, split in found.items() if split is not None}


def checked_lines(file: OwnFile, encoding: str, errors: str) -> Iterator[tuple[int, str]]:
    """(number from 1, line with its end) of a text file; undecodable and overlong lines raise an error."""
    remedy = "name the file's encoding with the option encoding (say latin-1)"
    number = 0
    while raw := file.stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(raw) > LONGEST_LINE:
            raise ValueError(
                f"{file.shown}, line {number}: longer than {LONGEST_LINE:,} bytes, the most that is read into memory as"
                " one row; is this a text file? Break the line up"
            )
        text = decoded(raw, f"{file.shown}, line {number}", errors, encoding, remedy)
        yield number, text.removeprefix("\ufeff") if number == 1 else text
