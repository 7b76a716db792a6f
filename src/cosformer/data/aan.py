"""Retrieval (Long Range Arena): does one of two papers cite the other? Pairs from the ACL Anthology Network, as bytes."""

import numpy as np

from cosformer.data.archive import members
from cosformer.data.cache import prepare
from cosformer.data.dataset import Dataset, Description, Writer
from cosformer.data.download import locate
from cosformer.data.vocabulary import Bytes

_FILES = {"new_aan_pairs.train.tsv": "train", "new_aan_pairs.eval.tsv": "valid", "new_aan_pairs.test.tsv": "test"}
_COLUMNS = ("label", "id1", "id2", "text1", "text2")


def retrieval(*, path: str | None = None, max_length: int = 4000) -> Dataset:
    """Pairs (``tokens``, ``second``) of bytes + 1 (0 pads), each cut at ``max_length``; label 1 if they belong together."""
    source = locate("retrieval", "lra", path)

    def build(writer: Writer) -> Description:
        found = False
        for name, stream in members(source.files(), lambda n: n.rpartition("/")[2] in _FILES):
            found = True
            split = writer.split(_FILES[name.rpartition("/")[2]], np.uint16, pair=True)
            for number, raw in enumerate(stream, start=1):
                fields = raw.removesuffix(b"\n").removesuffix(b"\r").split(b"\t")
                if len(fields) != len(_COLUMNS):
                    raise ValueError(
                        f"{name}, line {number}: {len(fields)} columns, not {len(_COLUMNS)} ({', '.join(_COLUMNS)})"
                    )
                if fields[0] not in (b"0", b"1", b"0.0", b"1.0"):
                    raise ValueError(
                        f"{name}, line {number}: label {fields[0].decode(errors='replace')!r} is not 0 or 1"
                    )
                first, second = (Bytes.ids(text[:max_length]) for text in fields[3:])
                split.add(first, int(fields[0][:1]), second)
        if not found:
            raise ValueError(f"{source.path} holds none of {', '.join(_FILES)}")
        return Description(Bytes(special=False), 2, max_length, ("unrelated", "related"))

    return prepare("retrieval", {"source": source.identity, "max_length": max_length}, build)
