"""Downloads from a server of our own: resume, checksums, refusals."""

import hashlib
import io
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cosformer.data.cache import clean, downloads_folder
from cosformer.data.download import CHUNK_BYTES, DOWNLOADS, Download, NotDownloaded, fetch, forget, locate, remember
from cosformer.locks import InUse


def packed(content: bytes) -> bytes:
    """A zip file with one file in it, uncompressed."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(zipfile.ZipInfo("rows.txt"), content)
    return made.getvalue()


CONTENT = packed(bytes(range(256)) * 4000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    content = CONTENT
    break_after: int | None = None
    ranges = True
    pause = 0.0  # after every 128 kB
    asked: list[str | None]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/set.zip"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path != "/set.zip":
            self.send_error(404)
            return
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.ranges else 0
        if start and start >= len(self.server.content):
            self.send_error(416)
            return
        body = self.server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        body = body[: self.server.break_after]
        for at in range(0, len(body), 1 << 17):
            self.wfile.write(body[at : at + (1 << 17)])
            time.sleep(self.server.pause)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        running.asked = []
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_download_arrives_and_its_checksum_is_recorded(server: Server) -> None:
    file = fetch(Download(server.url))
    assert file.read_bytes() == CONTENT
    assert Path(f"{file}.sha256").read_text() == f"{SHA256}  set.zip\n"
    assert fetch(Download(server.url)) == file
    assert server.asked == [None], "the second call must not download"


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_is_kept_and_resumed(server: Server, ranges: bool) -> None:
    server.break_after, server.ranges = 300_000, ranges
    with pytest.raises(ValueError, match=r"broke off.*bytes came and are kept"):
        fetch(Download(server.url))
    assert not (downloads_folder() / "set.zip").exists()
    server.break_after = None
    assert fetch(Download(server.url)).read_bytes() == CONTENT
    kept = 300_000 - 300_000 % CHUNK_BYTES  # the chunk that broke off comes again
    assert server.asked == [None, f"bytes={kept}-"]
    assert not list(downloads_folder().glob("*.part"))


def test_a_part_that_is_whole_already_is_taken(server: Server) -> None:
    downloads_folder().mkdir(parents=True)
    (downloads_folder() / "set.zip.part").write_bytes(CONTENT)
    assert fetch(Download(server.url)).read_bytes() == CONTENT


def test_a_wrong_published_checksum_is_refused_and_nothing_kept(server: Server) -> None:
    with pytest.raises(ValueError, match=f"sha256 is {SHA256}, not {'0' * 64} .published at here"):
        fetch(Download(server.url, "0" * 64, "here"))
    assert kept() == []


def kept() -> list[str]:
    return sorted(path.name for path in downloads_folder().glob("[!.]*"))


def test_a_file_that_changed_since_the_first_download_is_refused(server: Server) -> None:
    fetch(Download(server.url)).unlink()
    server.content = packed(b"other rows")
    said = r"recorded in .*set.zip.sha256 when it first came.*'cosformer data clean --downloads' and get it again"
    with pytest.raises(ValueError, match=said):
        fetch(Download(server.url))
    clean(None, downloads=True)  # the way out that was named
    assert fetch(Download(server.url)).read_bytes() == server.content


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"<!DOCTYPE html><title>Log in</title>", r"it is no .zip file and begins with b'<!DOCTYPE html>"),
        (b"", "it is empty"),
        (CONTENT[:-30], r"it is truncated or damaged"),
        (
            CONTENT[:500_000] + b"x" + CONTENT[500_001:],
            r"it is truncated or damaged .rows.txt in it is not as it was packed",
        ),
    ],
    ids=["page", "empty", "short", "changed"],
)
def test_what_is_no_whole_archive_leaves_nothing_behind(server: Server, answer: bytes, said: str) -> None:
    server.content = answer
    with pytest.raises(ValueError, match=rf"did not send the expected file: {said}.*discarded"):
        fetch(Download(server.url))
    assert kept() == []
    server.content = CONTENT
    assert fetch(Download(server.url)).read_bytes() == CONTENT


def test_clean_removes_all_of_a_download(server: Server) -> None:
    fetch(Download(server.url))
    (downloads_folder() / "other.zip.part").write_bytes(b"some")
    clean(None, downloads=True)
    assert kept() == []


FETCH = "import sys; from cosformer.data.download import *; fetch(Download(sys.argv[1]))"


def test_processes_that_download_the_same_file_bring_it_once(server: Server) -> None:
    server.pause = 0.05
    command = [sys.executable, "-c", FETCH, server.url]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert len(server.asked) == 1 and kept() == ["set.zip", "set.zip.sha256"]
    assert (downloads_folder() / "set.zip").read_bytes() == CONTENT


def test_a_download_under_way_survives_a_clean(server: Server) -> None:
    server.pause = 0.2
    with subprocess.Popen([sys.executable, "-c", FETCH, server.url]) as process:
        while not (downloads_folder() / "set.zip.part").exists():
            time.sleep(0.01)
        with pytest.raises(InUse, match=f"the download of set.zip is in use by process {process.pid}"):
            clean(None, downloads=True)
    assert process.returncode == 0 and kept() == ["set.zip", "set.zip.sha256"]


def test_errors_of_the_server_name_the_way_out(server: Server) -> None:
    with pytest.raises(ValueError, match="answered 404 Not Found; get the file elsewhere and use --from"):
        fetch(Download(server.url.replace("set.zip", "other.zip")))
    with pytest.raises(ValueError, match=r"cannot be reached.*nothing came\..*data get NAME --from PATH"):
        fetch(Download("http://127.0.0.1:1/x.zip"))


def test_a_file_tampered_with_after_download_is_refused_when_read(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DOWNLOADS, "sst2", Download(server.url))
    file = fetch(DOWNLOADS["sst2"])
    assert locate("sst2", "sst2", None).files() == file
    file.write_bytes(CONTENT[:-1])
    with pytest.raises(ValueError, match="changed since it was downloaded"):
        locate("sst2", "sst2", None).files()


def test_what_is_not_here_names_the_command() -> None:
    with pytest.raises(NotDownloaded, match=r"cosformer data get sst2' .from https://.*SST-2.zip.*--from PATH"):
        locate("sst2", "sst2", None)
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        locate("sst2", "sst2", "nowhere")


def test_remembered_files_are_found_and_forgotten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    remember("sst2", tmp_path / "mine")
    first = locate("sst2", "sst2", None)
    assert first.path == tmp_path / "mine"
    (tmp_path / "mine").rmdir()
    assert locate("sst2", "sst2", None).identity == first.identity, "a set prepared before must still be found"
    forget("sst2")
    with pytest.raises(NotDownloaded):
        locate("sst2", "sst2", None)


@pytest.mark.parametrize("key", DOWNLOADS)
def test_a_checksum_in_the_code_names_its_public_source(key: str) -> None:
    download = DOWNLOADS[key]
    assert download.url.startswith("https://") and download.filename
    assert (download.sha256 is None) == (download.published is None)
