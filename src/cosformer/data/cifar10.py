"""CIFAR-10 as Long Range Arena's Image task: grey and flattened, read without unpickling foreign code."""

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from cosformer.data.archive import matching
from cosformer.data.cache import prepare
from cosformer.data.dataset import Dataset, Description, Writer
from cosformer.data.download import locate
from cosformer.data.vocabulary import Pixels

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE = 32
_PLANE = SIDE * SIDE
_ROW = 1 + 3 * _PLANE
_FILE = re.compile(r"(?:^|/)(data_batch_(\d+)|test_\w+?)(\.bin)?$")


def image(*, path: str | None = None, lra_padding: bool = False) -> Dataset:
    """Rows of 1024 grey values and labels 0..9: the last tenth of the training images is ``valid``.

    Every value 0..255 is data; ``lra_padding`` masks pixels of value 0 instead, as the benchmark does.
    """
    source = locate("image", "cifar10", path)

    def build(writer: Writer) -> Description:
        parts: dict[str, list[tuple[int, np.ndarray, np.ndarray]]] = {"train": [], "test": []}
        for split, order, labels, colours in read_rows(source.files()):
            parts[split].append((order, labels, grey(colours)))
        if not parts["train"]:
            raise ValueError(f"{source.path} holds no data_batch_<n>(.bin) of CIFAR-10")
        for split, batches in parts.items():
            batches.sort(key=lambda batch: batch[0])
            labels = np.concatenate([b[1] for b in batches]) if batches else np.zeros(0, np.int64)
            pixels = np.concatenate([b[2] for b in batches]) if batches else np.zeros((0, _PLANE), np.uint8)
            first_valid = len(labels) * 9 // 10 if split == "train" else len(labels)
            _add(writer, split, labels[:first_valid], pixels[:first_valid])
            if split == "train":
                _add(writer, "valid", labels[first_valid:], pixels[first_valid:])
        return Description(Pixels(lra_padding), 10, _PLANE, CLASSES, (SIDE, SIDE))

    return prepare("image", {"source": source.identity, "lra": lra_padding}, build)


def _add(writer: Writer, split: str, labels: np.ndarray, pixels: np.ndarray) -> None:
    writer.split(split, np.uint8).add_many(pixels, [_PLANE] * len(labels), labels.tolist())


def grey(colours: np.ndarray) -> np.ndarray:
    """Luma of planar RGB: uint8 [N, 3072] -> uint8 [N, 1024].

    The benchmark's image library scales to 0..1, weighs, and casts back with a factor of 255.5, so that the cast, which
    cuts off the fraction, nearly rounds; this does the same.
    """
    planes = colours.reshape(-1, 3, _PLANE).astype(np.float32) / np.float32(255)
    weighed = np.tensordot(planes, np.array([0.2989, 0.587, 0.114], np.float32), axes=(1, 0))
    return np.minimum(weighed * np.float32(255.5), 255).astype(np.uint8)


def read_rows(path: Path) -> Iterator[tuple[str, int, np.ndarray, np.ndarray]]:
    """(split, number of the batch, labels int64 [N], planar RGB uint8 [N, 3072]) of every batch file."""
    for match, stream in matching(path, _FILE, "no data_batch_<n>(.bin) of CIFAR-10"):
        name = match.string
        labels, colours = (_binary if match[3] else _pickled)(name, stream)
        if len(labels) and not 0 <= labels.min() <= labels.max() <= 9:
            row = int(np.flatnonzero((labels < 0) | (labels > 9))[0])
            raise ValueError(f"{name}, row {row}: label {labels[row]} is not 0..9")
        yield ("train" if match[2] else "test"), int(match[2] or 0), labels, colours


def _binary(name: str, stream: IO[bytes]) -> tuple[np.ndarray, np.ndarray]:
    content = stream.read()
    if not content or len(content) % _ROW:
        raise ValueError(
            f"{name}: {len(content)} bytes are not whole rows of {_ROW} (label and 3 x 32 x 32 pixels); truncated, or "
            "not CIFAR-10"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, _ROW)
    return rows[:, 0].astype(np.int64), rows[:, 1:]


def _pickled(name: str, stream: IO[bytes]) -> tuple[np.ndarray, np.ndarray]:
    try:
        batch = _PlainUnpickler(stream, encoding="bytes").load()
    except (EOFError, pickle.UnpicklingError, IndexError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} is not a CIFAR-10 batch that can be read safely ({error})") from error
    entries = (
        {k.decode() if isinstance(k, bytes) else k: v for k, v in batch.items()} if isinstance(batch, dict) else {}
    )
    if not isinstance(entries.get("data"), _PlainArray) or not isinstance(entries.get("labels"), list):
        raise ValueError(f"{name} lacks 'data' or 'labels'; it is not a CIFAR-10 batch")
    colours = entries["data"].array
    labels = np.array(entries["labels"], np.int64)
    if colours.shape != (len(labels), 3 * _PLANE):
        raise ValueError(
            f"{name}: pixels of shape {colours.shape} for {len(labels)} labels, not [{len(labels)}, {3 * _PLANE}]"
        )
    return labels, colours


class _PlainArray:
    """Stands in for a pickled uint8 array: takes its state as data, runs none of the reconstruction code."""

    array: np.ndarray

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _PlainDtype) or dtype.code not in ("u1", b"u1", "|u1") or fortran:
            raise pickle.UnpicklingError("the pixels are not a plain array of bytes")
        self.array = np.frombuffer(raw, np.uint8).reshape(shape)


class _PlainDtype:
    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        pass


def _latin1(text: str, encoding: Any) -> bytes:
    """How Python 3 wrote bytes in old pickle protocols."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r}")
    return text.encode("latin1")


class _PlainUnpickler(pickle.Unpickler):
    """Resolves the four names that CIFAR-10 batches use to the stand-ins above; refuses all others."""

    _KNOWN: dict[tuple[str, str], Any] = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): lambda *_: _PlainArray(),
        ("numpy._core.multiarray", "_reconstruct"): lambda *_: _PlainArray(),
        ("numpy", "ndarray"): _PlainArray,
        ("numpy", "dtype"): _PlainDtype,
        ("_codecs", "encode"): _latin1,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR-10 batch needs")
        return self._KNOWN[module, name]
