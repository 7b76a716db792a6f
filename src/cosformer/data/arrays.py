"""Your own arrays: ``.npy`` and ``.npz`` files as rows of ids or readings, with optional labels."""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cosformer.data.dealing import split_by_file
from cosformer.data.own_files import OwnFile, own_files
from cosformer.data.targets import TARGETS, Row

ENDINGS = (".npy", ".npz")
_LABELS = ".labels.npy"


@dataclass(frozen=True)
class ArrayFile:
    """One file: rows ``[steps]`` of ids or ``[steps, channels]`` of finite readings, and the labels of the rows."""

    name: str
    rows: list[np.ndarray]
    labels: np.ndarray | None

    def place(self, row: int) -> str:
        return f"{self.name}, row {row + 1}"


def is_array(name: str) -> bool:
    return name.lower().endswith(ENDINGS) and not name.lower().endswith(_LABELS)


def array_files(path: str) -> Iterator[OwnFile]:
    """The arrays in ``path``, each with the file of its labels, NAME.labels.npy next to NAME.npy."""
    for file in own_files(path, is_array):
        if file.name.lower().endswith(_LABELS):
            raise ValueError(f"{file.shown} holds the labels of another file; name that one")
        yield file
        beside = file.path.with_name(file.path.name.removesuffix(".npy") + _LABELS)
        if file.ending == ".npy" and beside.is_file():
            yield from own_files(str(beside))


def holds_numbers(path: str) -> bool:
    """Whether the first array in ``path`` holds readings, not whole numbers."""
    files = array_files(path)
    first = next(files, None)
    return first is not None and _split(first, _load(first))[0].dtype.kind == "f"


def holds_arrays(path: str, is_other: Callable[[str], bool], other: str) -> bool:
    """Whether ``path`` holds arrays, not files of the ``other`` kind; both together are refused."""
    names = [file.name for file in own_files(path, lambda name: is_array(name) or is_other(name))]
    strange = [name for name in names if not (is_array(name) or is_other(name))]
    if strange or not names:
        raise ValueError(f"{strange[0] if strange else path} holds neither arrays ({', '.join(ENDINGS)}) nor {other}")
    kinds = {is_array(name) for name in names}
    if len(kinds) > 1:
        raise ValueError(f"{path} holds arrays and {other}; name one kind, as a glob in quotes")
    return kinds.pop()


def array_rows(path: str, target: str | None, *, readings: bool) -> list[Row]:
    """The rows of every array, all ``readings`` or all ids; ``target``: what their labels are, None: there are none."""
    found: list[Row] = []
    for file in read_arrays(path):
        first = file.rows[0]
        if (first.dtype.kind == "f") != readings:
            what = "whole numbers, which are read as ids; save readings as float32"
            raise ValueError(f"{file.name} holds {what if readings else 'readings, no ids; the set series reads them'}")
        if readings and found and first.shape[-1] != found[0].text.shape[-1]:
            raise ValueError(
                f"{file.name} has {first.shape[-1]} channels and {found[0].place} {found[0].text.shape[-1]}"
            )
        if target is not None and file.labels is None:
            raise ValueError(
                f"{file.name} has no labels; put one a row into {file.name.removesuffix('.npy')}.labels.npy beside it, "
                "or, in an .npz file, into the array 'labels'"
            )
        for number, row in enumerate(file.rows):
            place, label = file.place(number), None
            if target is not None and file.labels is not None:
                label = TARGETS[target].read(file.labels[number].item(), place, "labels", None)
            found.append(Row(row.astype(np.float32 if readings else np.int64), None, label, place, None, place))
    return split_by_file(found)


def read_arrays(path: str, *, check: bool = True) -> Iterator[ArrayFile]:
    """Every array in ``path``, ``[rows, steps]`` or ``[rows, steps, channels]`` (a single row: ``[steps]``). In an .npz
    file ``labels`` may stand beside it, and ``lengths`` of rows that are concatenated, or padded at the end. ``check``:
    refuse a row with a :func:`problem`."""
    held: tuple[OwnFile, dict[str, np.ndarray]] | None = None
    for file in array_files(path):
        arrays = _load(file)
        if held is not None and file.name.lower().endswith(_LABELS):
            held[1]["labels"] = arrays[""]
            continue
        if held is not None:
            yield _file(*held, check)
        held = file, arrays
    if held is None:
        raise ValueError(f"{path} holds no array; known endings: {', '.join(ENDINGS)}")
    yield _file(*held, check)


def problem(row: np.ndarray) -> str:
    """What is wrong with a row: a reading that is not finite, a negative id; empty: nothing."""
    if row.dtype.kind == "f" and not np.isfinite(row).all():
        step, channel = np.argwhere(~np.isfinite(row))[0]
        return (
            f"step {step + 1} holds {row[step, channel]}; readings must be finite: fill the gap in, or leave the "
            "row out"
        )
    if row.dtype.kind != "f" and len(row) and row.min() < 0:
        return f"the id {row.min()} is negative; ids count from 0"
    return ""


def _load(file: OwnFile) -> dict[str, np.ndarray]:
    raw = file.stream.read()
    if not raw:
        raise ValueError(f"{file.shown} is empty")
    try:
        found: Any = np.load(io.BytesIO(raw), allow_pickle=False)
        return {"": found} if isinstance(found, np.ndarray) else dict(found)
    except ValueError as error:
        if "Object arrays" in str(error):
            raise ValueError(
                f"{file.shown} holds rows of unequal length or Python objects; save the rows concatenated, with their "
                "lengths: np.savez(NAME, rows=np.concatenate(rows), lengths=[len(row) for row in rows])"
            ) from None
        raise ValueError(f"{file.shown} cannot be read as an array; save it with numpy.save or numpy.savez") from None
    except Exception as error:  # zip files have errors of their own
        raise ValueError(f"{file.shown} cannot be read as an array: {error}") from None


def _split(file: OwnFile, arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, Any, Any]:
    """The array of the rows, their lengths and their labels."""
    names = [name for name in arrays if name not in ("labels", "lengths")]
    if len(names) != 1:
        raise ValueError(
            f"{file.shown} holds {', '.join(arrays) or 'nothing'}; expected one array of rows, and labels and lengths "
            "if there are any"
        )
    return arrays[names[0]], arrays.get("lengths"), arrays.get("labels")


def _file(file: OwnFile, arrays: dict[str, np.ndarray], check: bool) -> ArrayFile:
    values, lengths, labels = _split(file, arrays)
    if values.dtype.kind not in "iuf":
        raise ValueError(
            f"{file.shown} has the type {values.dtype}; expected whole numbers (ids) or real ones (readings)"
        )
    rows = _rows(file, values, lengths)
    if not rows or not sum(map(len, rows)):
        raise ValueError(f"{file.shown} holds no rows")
    if labels is not None and labels.shape != (len(rows),):
        raise ValueError(
            f"{file.shown}: {len(rows):,} rows and labels of shape {list(labels.shape)}; each row needs one"
        )
    found = ArrayFile(file.shown, rows, labels)
    for number, row in enumerate(rows if check else ()):
        if wrong := problem(row):
            raise ValueError(f"{found.place(number)}: {wrong}")
    return found


def _rows(file: OwnFile, values: np.ndarray, lengths: Any) -> list[np.ndarray]:
    real = values.dtype.kind == "f"
    if lengths is not None:
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (len(lengths) and lengths.min() < 0):
            raise ValueError(f"{file.shown}: lengths must be whole numbers, one for each row")
        if values.ndim == (3 if real else 2) and len(values) == len(lengths):  # padded at the end
            if len(lengths) and lengths.max() > values.shape[1]:
                raise ValueError(f"{file.shown}: a length of {lengths.max()} in rows of {values.shape[1]} steps")
            return [row[:n] for row, n in zip(values, lengths, strict=True)]
        if lengths.sum() != len(values):
            raise ValueError(f"{file.shown}: lengths add up to {lengths.sum():,} and there are {len(values):,} steps")
        rows = np.split(values, np.cumsum(lengths)[:-1])
        return [row[:, None] if real and row.ndim == 1 else row for row in rows]
    if values.ndim == 1:
        values = values[None]
    if real and values.ndim == 2:
        values = values[:, :, None]
    if values.ndim != (3 if real else 2):
        wanted = "[rows, steps, channels] or [rows, steps]" if real else "[rows, steps] or [steps]"
        raise ValueError(f"{file.shown} has the shape {list(values.shape)}; expected {wanted}")
    return list(values)
