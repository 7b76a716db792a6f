"""Retrieval (Long Range Arena): does one of two ACL Anthology papers cite the other? Pairs of byte sequences."""

import re

import numpy as np

from cosformer.data.archive import matching
from cosformer.data.cache import prepare
from cosformer.data.dataset import Dataset, Description, Writer
from cosformer.data.download import locate
from cosformer.data.vocabulary import Bytes

_FILE = re.compile(r"(?:^|/)new_aan_pairs\.(train|eval|test)\.tsv$")
_COLUMNS = ("label", "id1", "id2", "text1", "text2")


def retrieval(*, path: str | None = None, max_length: int = 4000) -> Dataset:
    """Pairs (``tokens``, ``second``) of bytes + 1 (0 pads), cut at ``max_length``; label 1: one cites the other."""
    source = locate("retrieval", "lra", path)

    def build(writer: Writer) -> Description:
        for match, stream in matching(source.files(), _FILE, "no new_aan_pairs.train.tsv, .eval.tsv or .test.tsv"):
            split = writer.split("valid" if match[1] == "eval" else match[1], np.uint16, pair=True)
            for number, raw in enumerate(stream, start=1):
                where = f"{match.string}, line {number}"
                fields = raw.removesuffix(b"\n").removesuffix(b"\r").split(b"\t")
                if len(fields) != len(_COLUMNS):
                    raise ValueError(f"{where}: {len(fields)} columns, not {len(_COLUMNS)} ({', '.join(_COLUMNS)})")
                if fields[0] not in (b"0", b"1", b"0.0", b"1.0"):
                    raise ValueError(f"{where}: label {fields[0].decode(errors='replace')!r} is not 0 or 1")
                first, second = (Bytes.ids(text[:max_length]) for text in fields[3:])
                split.add(first, int(fields[0][:1]), second)
        return Description(Bytes(special=False), 2, max_length, ("unrelated", "related"))

    return prepare("retrieval", {"source": source.identity, "max_length": max_length}, build)
