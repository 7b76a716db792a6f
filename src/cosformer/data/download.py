"""The official addresses, and downloads that resume, show progress and are checked."""

import errno
import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosformer._version import __version__
from cosformer.data import archive
from cosformer.data.cache import download_lock, downloads_folder, fingerprint, home
from cosformer.extras import require
from cosformer.terminal import progress_bar


@dataclass(frozen=True)
class Download:
    """One official file. ``sha256`` stands here only with ``published``, the public place that states it."""

    url: str
    sha256: str | None = None
    published: str | None = None

    @property
    def filename(self) -> str:
        return self.url.rpartition("/")[2]


CHUNK_BYTES = 1 << 16
_TFDS = "https://github.com/tensorflow/datasets/blob/333639b37af6c6fedf3610a4a2d42f1c6ef6f7d5/tensorflow_datasets/url_checksums"
DOWNLOADS: dict[str, Download] = {
    "wikitext2": Download("https://wikitext.smerity.com/wikitext-2-v1.zip"),
    "wikitext2-raw": Download("https://wikitext.smerity.com/wikitext-2-raw-v1.zip"),
    "wikitext103": Download("https://wikitext.smerity.com/wikitext-103-v1.zip"),
    "wikitext103-raw": Download("https://wikitext.smerity.com/wikitext-103-raw-v1.zip"),
    "imdb": Download(
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
        f"{_TFDS}/imdb_reviews.txt",
    ),
    "cifar10": Download(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        f"{_TFDS}/cifar10.txt",
    ),
    "lra": Download("https://storage.googleapis.com/long-range-arena/lra_release.gz"),
    "qqp": Download("https://dl.fbaipublicfiles.com/glue/data/QQP-clean.zip"),
    "sst2": Download("https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"),
    "mnli": Download("https://dl.fbaipublicfiles.com/glue/data/MNLI.zip"),
    "amazon": Download("https://jmcauley.ucsd.edu/data/amazon_v2/categoryFilesSmall/Electronics_5.json.gz"),
    "blitzer": Download("https://www.cs.jhu.edu/~mdredze/datasets/sentiment/domain_sentiment_data.tar.gz"),
}


class NotDownloaded(FileNotFoundError):
    """The official file of ``key`` is needed and not here."""

    def __init__(self, name: str, key: str) -> None:
        super().__init__(
            f"the files of {name!r} are not here; get them with 'cosformer data get {name}' "
            f"(from {DOWNLOADS[key].url}), or 'cosformer data get {name} --from PATH' if you have them"
        )
        self.key = key


@dataclass(frozen=True)
class Source:
    """Files of a data set on this machine: where, and what tells this state of them from another."""

    path: Path
    identity: list
    downloaded: bool = False

    def files(self) -> Path:
        """The path, to be read now; of a download the checksum is verified first."""
        if self.downloaded and (found := file_sha256(self.path)) != recorded_sha256(self.path):
            raise ValueError(
                f"{self.path} changed since it was downloaded: sha256 is {found}, not {recorded_sha256(self.path)}; "
                "remove it with 'cosformer data clean --downloads' and get it again"
            )
        return self.path


def locate(name: str, key: str, path: str | os.PathLike[str] | None) -> Source:
    """The files of set ``name``: ``path`` if given, else those of ``data get --from``, else the download ``key``."""
    if path is not None:
        return _present(Path(path).expanduser())
    if (remembered := _registry() / f"{name}.json").exists():
        entry = json.loads(remembered.read_text())
        if Path(entry["path"]).exists():
            return _present(Path(entry["path"]))
        # the files went away since, but a set prepared from them may still be there
        return Source(Path(entry["path"]), entry["identity"])
    file = downloads_folder() / DOWNLOADS[key].filename
    if not file.exists():
        raise NotDownloaded(name, key)
    return Source(file, ["sha256", recorded_sha256(file)], downloaded=True)


def _present(path: Path) -> Source:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    return Source(path, fingerprint(path))


def remember(name: str, path: Path) -> None:
    """Let ``locate(name, ...)`` find these files from now on."""
    _registry().mkdir(parents=True, exist_ok=True)
    entry = {"path": str(path.resolve()), "identity": fingerprint(path)}
    (_registry() / f"{name}.json").write_text(json.dumps(entry))


def forget(name: str) -> None:
    """Undo :func:`remember`."""
    (_registry() / f"{name}.json").unlink(missing_ok=True)


def _registry() -> Path:
    return home() / "sources"


def recorded_sha256(file: Path) -> str:
    """The checksum written beside ``file`` when it was first downloaded."""
    return Path(f"{file}.sha256").read_text().split()[0]


def fetch(download: Download) -> Path:
    """Download to the downloads folder, resuming what an earlier attempt left; returns the file. One process does,
    others wait.

    The checksum must be the published one, or the one recorded when this file first came; the first time it is
    recorded, once every byte of the file was read as the kind of archive that its name says.
    """
    target = downloads_folder() / download.filename
    target.parent.mkdir(parents=True, exist_ok=True)
    with download_lock(target, wait=True):
        if not target.exists():
            part = Path(f"{target}.part")
            _transfer(download.url, part)
            try:
                _verify(download, part, Path(f"{target}.sha256"))
            except ValueError:
                part.unlink()
                raise
            part.replace(target)
    return target


def _verify(download: Download, part: Path, record: Path) -> None:
    """Raise ValueError unless ``part`` is the file that was asked for; its checksum is in ``record`` then."""
    found = file_sha256(part)
    expected = download.sha256 or (recorded_sha256(record.with_suffix("")) if record.exists() else None)
    if expected is not None and found != expected:
        if download.sha256:
            where, way_out = f"published at {download.published}", "Try again; if it persists, the file was changed"
        else:
            where = f"recorded in {record} when it first came"
            way_out = (
                "If the new file is the right one, remove the record with 'cosformer data clean --downloads' "
                "and get it again"
            )
        raise ValueError(
            f"{download.url}: sha256 is {found}, not {expected} ({where}); the transfer was discarded. {way_out}; or "
            "get the file elsewhere and use --from PATH"
        )
    try:
        archive.check(part, download.filename)
    except ValueError as error:
        raise ValueError(
            f"{download.url} did not send the expected file: {error}; the transfer was discarded. Try again (in a "
            "browser, if a login or proxy intervenes), or get the file elsewhere and use --from PATH"
        ) from error
    record.write_text(f"{found}  {download.filename}\n")


def _transfer(url: str, part: Path) -> None:
    """Download ``url`` to ``part``. pooch cannot resume, so the file is opened to append and a Range header is sent."""
    downloader = require("data", "pooch").HTTPDownloader
    import requests  # comes with pooch

    have = part.stat().st_size if part.exists() else 0
    # identity: a file that the server compresses on the way could not be resumed at a byte of the original
    headers = {"User-Agent": f"cosformer/{__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        with open(part, "ab") as file, progress_bar(part.stem, 1, "B", unit_scale=True) as bar:  # pooch sets the total

            def begin(answer: Any, **_: Any) -> None:
                if answer.status_code == 200:
                    file.truncate(0)  # the server sends everything again
                need = int(answer.headers.get("Content-Length") or 0)
                if answer.ok and shutil.disk_usage(part.parent).free < need:
                    text = f"{url} needs {need:,} bytes more than are free; set COSFORMER_HOME to a larger disk"
                    raise OSError(errno.ENOSPC, text, str(part.parent))

            # a chunk that breaks off is lost to pooch, so they are small
            get = downloader(bar, chunk_size=CHUNK_BYTES, timeout=60, headers=headers, hooks={"response": begin})
            get(url, file, None)
    except requests.HTTPError as error:
        answer = error.response
        assert answer is not None
        if answer.status_code == 416 and have:  # nothing left to send: the part is whole
            return
        raise ValueError(
            f"{url} answered {answer.status_code} {answer.reason}; get the file elsewhere and use --from PATH"
        ) from error
    except requests.RequestException as error:
        came = part.stat().st_size if part.exists() else 0
        if not came:
            part.unlink(missing_ok=True)
        kept = f"{came:,} bytes came and are kept, run the command again to resume" if came else "nothing came"
        raise ValueError(
            f"{url} cannot be reached or broke off ({error}); {kept}. If you have the file, or can get it elsewhere:"
            " 'cosformer data get NAME --from PATH'"
        ) from error


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
