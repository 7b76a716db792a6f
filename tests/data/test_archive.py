"""Files as they come: folders, tar, zip, compressed or not; damage and tricks are refused with the file's name."""

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cosformer.data.archive import members, text_lines

FILES = {"top/a.txt": b"alpha\n" * 500, "top/deep/b.txt": b"beta", "top/c.bin": b"\0"}


ARCHIVES = ["x.tar", "x.tar.gz", "x.tar.xz", "x.tar.bz2", "x.zip"]


@pytest.mark.parametrize("form", [*ARCHIVES, "tar that is called.gz", "folder"])
def test_every_form_gives_the_wanted_files(form: str, pack: Callable, tmp_path: Path) -> None:
    path = pack(tmp_path / form, FILES)
    if form == "folder":
        (path / "top/a.txt").unlink()
        (path / "top/a.txt.xz").write_bytes(lzma.compress(FILES["top/a.txt"]))
    found = {name: stream.read() for name, stream in members(path, lambda n: n.endswith(".txt"))}
    assert found == {n: c for n, c in FILES.items() if n.endswith(".txt")}


@pytest.mark.parametrize("compress", [lzma.compress, gzip.compress, bz2.compress, bytes])
def test_a_single_file_is_read_whatever_its_name_says(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / "rows.tsv.gz").write_bytes(compress(b"x\ty\n"))
    assert [(n, s.read()) for n, s in members(tmp_path / "rows.tsv.gz", lambda _: True)] == [("rows.tsv", b"x\ty\n")]
    assert list(members(tmp_path / "rows.tsv.gz", lambda _: False)) == []


@pytest.mark.parametrize("form", ARCHIVES)
def test_truncated_archives_are_named(form: str, pack: Callable, tmp_path: Path) -> None:
    path = pack(tmp_path / form, FILES)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    with pytest.raises(ValueError, match=f"{path.name} is truncated or damaged .*get it again"):
        for _, stream in members(path, lambda _: True):
            stream.read()


@pytest.mark.parametrize("name", ["../evil.txt", "/etc/evil.txt", "top/../../evil.txt", "..\\evil.txt"])
@pytest.mark.parametrize("form", ["x.tar", "x.zip"])
def test_names_that_climb_out_are_refused(name: str, form: str, pack: Callable, tmp_path: Path) -> None:
    path = pack(tmp_path / form, {"top/a.txt": b"fine", name: b"evil"})
    with pytest.raises(ValueError, match="climbs out of the archive"):
        list(members(path, lambda n: n.endswith("a.txt")))


def test_links_in_a_tar_are_not_followed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        info = tarfile.TarInfo("a.txt")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    assert list(members(tmp_path / "x.tar", lambda _: True)) == []


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        list(members(tmp_path / "nowhere", lambda _: True))


def test_lines_end_at_lf_and_crlf_only() -> None:
    raw = "a\u2028b\x85c\rd\r\ne\n\nf".encode()
    lines = list(text_lines(io.BytesIO(raw), "x"))
    assert lines == [(1, "a\u2028b\x85c\rd"), (2, "e"), (3, ""), (4, "f")]


def test_invalid_utf8_is_named_or_replaced() -> None:
    raw = b"good\nb\xe9d\n"
    with pytest.raises(ValueError, match=r"x.tsv, line 2: byte 1 \(0xe9\) is not valid UTF-8; .*errors=replace"):
        list(text_lines(io.BytesIO(raw), "x.tsv"))
    assert list(text_lines(io.BytesIO(raw), "x.tsv", "replace"))[1] == (2, "b\ufffdd")
    with pytest.raises(ValueError, match="'strict' or 'replace'"):
        list(text_lines(io.BytesIO(raw), "x.tsv", "ignore"))


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>"])
def test_a_zip_that_is_none_is_called_damaged(tmp_path, content):
    path = tmp_path / "wikitext-2-v1.zip"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"wikitext-2-v1\.zip is truncated or damaged"):
        list(members(path, lambda name: True))
