"""Two processes download the same file from a server that breaks off or sends something else."""

import hashlib
import io
import random
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from torture.lab import Lab

PAGE = b"<!DOCTYPE html><title>Log in</title>"


def _packed(content: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for split in ("train", "valid", "test"):
            archive.writestr(zipfile.ZipInfo(f"wikitext-2/wiki.{split}.tokens"), content)
    return made.getvalue()


CONTENT = _packed(b" a cat sat on a mat . \n" * 20_000)
NAME = "wikitext-2-v1.zip"


class _Server(ThreadingHTTPServer):
    pages = 0  # answers that are a login page, before the file
    breaks = 0  # answers that break off, before whole ones
    pause = 0.0


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        body, status = CONTENT, 200
        if self.server.pages:
            self.server.pages -= 1
            body = PAGE
        elif asked := self.headers.get("Range"):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(CONTENT):
                self.send_error(416)
                return
            body, status = CONTENT[start:], 206
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.breaks and body is not PAGE:
            self.server.breaks -= 1
            body = body[: len(body) // 2]
        for at in range(0, len(body), 1 << 16):
            try:
                self.wfile.write(body[at : at + (1 << 16)])
            except OSError:  # killed
                return
            time.sleep(self.server.pause)

    def log_message(self, format: str, *args: object) -> None:
        pass


def downloads(lab: Lab, chance: random.Random, count: int) -> Iterator[str]:
    """Pairs of `data get` and `data clean --downloads`, one of them killed at times; then a final get."""
    from cosformer.data import download
    from cosformer.home import home

    folder = home() / "downloads"
    with _Server(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/{NAME}"
        download.DOWNLOADS["wikitext2"] = download.Download(url)  # in the commands too, which are forked
        for _ in range(count):
            server.pages, server.breaks = chance.choice((0, 0, 1)), chance.choice((0, 0, 1))
            server.pause = chance.uniform(0, 0.02)
            what = f"{server.pages} pages, {server.breaks} breaks"
            get = ["data", "get", "wikitext2"]
            other = chance.choice((get, get, ["data", "clean", "--downloads"]))
            first = lab.start(*get)
            time.sleep(chance.uniform(0, 0.3))
            second = lab.start(*other)
            killed = chance.random() < 0.4
            if killed:
                time.sleep(chance.uniform(0, 0.3))
                first.kill()
            ended = [first.end(), second.end()]
            wrong = next((one.fault for one in ended[killed:] if one.fault), "")
            server.pages = server.breaks = 0
            last = lab.run(*get)
            if last.code and not wrong:
                wrong = f"the set cannot be got afterwards: {last.err[-300:]}"
            yield (wrong and f"{what}{', the first killed' if killed else ''}: {wrong}") or _kept(folder, what)
            lab.run("data", "clean", "--downloads")
        server.shutdown()


def _kept(folder: Path, what: str) -> str:
    """The file is the right one, its recorded checksum is its own, and nothing else is there."""
    names = sorted(path.name for path in folder.glob("[!.]*"))
    if names != [NAME, f"{NAME}.sha256"]:
        return f"{what}: {', '.join(names)} are there"
    if (folder / NAME).read_bytes() != CONTENT:
        return f"{what}: the file is not the server's"
    recorded = (folder / f"{NAME}.sha256").read_text().split()[0]
    return "" if recorded == hashlib.sha256(CONTENT).hexdigest() else f"{what}: another checksum is recorded"
