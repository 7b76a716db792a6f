"""ListOps (Long Range Arena): nested MIN, MAX, MED and SM over digits; generated, or read from the release."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO

import numpy as np

from cosformer.data.archive import matching, text_lines
from cosformer.data.cache import prepare
from cosformer.data.dataset import Dataset, Description, Writer
from cosformer.data.download import locate
from cosformer.data.listops_trees import BENCHMARK, CLOSE, OPERATORS, Rules, generate
from cosformer.data.vocabulary import Words
from cosformer.output_file import open_output
from cosformer.terminal import progress_bar

TOKENS = ("<pad>", *OPERATORS, "]", *"0123456789")
_IDS = {token: i for i, token in enumerate(TOKENS)}
MAX_LENGTH = 2000
_FILES = {"basic_train.tsv": "train", "basic_val.tsv": "valid", "basic_test.tsv": "test"}
_FILE = re.compile(r"(?:^|/)(basic_(?:train|val|test)\.tsv)$")


def listops(
    *,
    path: str | None = None,
    train: int = 96_000,
    valid: int = 2_000,
    test: int = 2_000,
    max_depth: int = BENCHMARK.max_depth,
    max_arguments: int = BENCHMARK.max_arguments,
    max_length: int = MAX_LENGTH,
    longer_than: int = BENCHMARK.longer_than,
    shorter_than: int = BENCHMARK.shorter_than,
    seed: int = 0,
    workers: int | None = None,
) -> Dataset:
    """ListOps: rows of ids 1..15 (0 pads), labels 0..9.

    With ``path`` (a TSV, a folder or the archive of the release) the files ``basic_{train,val,test}.tsv`` are read and
    the generator's options do not apply; without, ``train`` + ``valid`` + ``test`` trees of more than ``longer_than``
    and fewer than ``shorter_than`` tokens are generated (as many as the benchmark has, unless told otherwise).
    """
    if path is not None:
        source = locate("listops", "lra", path)

        def read(writer: Writer) -> Description:
            cut = _read_files(source.files(), writer, max_length)
            return Description(Words(TOKENS), 10, max_length, notes={"rows cut": cut})

        return prepare("listops", {"source": source.identity, "max_length": max_length}, read)

    rules = Rules(max_depth, max_arguments, longer_than, shorter_than)
    return _generated("listops", {"train": train, "valid": valid, "test": test}, seed, rules, max_length, workers)


def listops_small(*, train: int = 4_000, valid: int = 500, test: int = 500, seed: int = 0) -> Dataset:
    """ListOps by the same rules, small enough to be made while you wait."""
    return _generated("listops-small", {"train": train, "valid": valid, "test": test}, seed)


def _generated(
    name: str,
    sizes: dict[str, int],
    seed: int,
    rules: Rules = BENCHMARK,
    max_length: int = MAX_LENGTH,
    workers: int | None = None,
) -> Dataset:
    """As many trees as ``sizes`` says for each split, prepared under ``name``."""
    options = {"sizes": sizes, "length": max_length, "seed": seed}
    options |= {key.removeprefix("max_"): value for key, value in asdict(rules).items()}

    def build(writer: Writer) -> Description:
        count = sum(sizes.values())
        rows = generate(count, seed=seed, rules=rules, workers=workers)
        with progress_bar(name, count) as bar:
            writer.take(sizes, ((tokens[:max_length], label) for tokens, label in rows), bar)
        return Description(Words(TOKENS), 10, max_length)

    return prepare(name, options, build)


def encode(expression: str) -> np.ndarray:
    """Ids of an expression, with or without its parentheses; an unknown token raises."""
    words = expression.replace("(", " ").replace(")", " ").split()
    try:
        return np.array([_IDS[word] for word in words], np.uint8)
    except KeyError as error:
        raise ValueError(f"{error.args[0]!r} is no ListOps token; they are {' '.join(TOKENS[1:])}") from None


def to_text(tokens: np.ndarray) -> str:
    """The official, fully parenthesised form: an operator with k arguments opens k + 1 parentheses."""
    open_lists: list[list[str]] = [[]]  # of each operator not yet closed: its name and its arguments so far
    for token in tokens.tolist():
        if token < CLOSE:
            open_lists.append([TOKENS[token]])
        elif token > CLOSE:
            open_lists[-1].append(TOKENS[token])
        else:
            _close(open_lists, "]")
    while len(open_lists) > 1:  # a row that was cut: its operators have no ]
        _close(open_lists)
    return open_lists[0][0]


def _close(open_lists: list[list[str]], *bracket: str) -> None:
    """Make the last open operator an argument of the one around it."""
    text, *arguments = open_lists.pop()
    for argument in (*arguments, *bracket):
        text = f"( {text} {argument} )"
    open_lists[-1].append(text)


def write_tsv(path: Path, rows: Iterable[tuple[np.ndarray, int]]) -> None:
    """Write rows in the official form (header ``Source``, ``Target``)."""
    with open_output(path) as file:
        file.write(b"Source\tTarget\r\n")
        file.writelines(f"{to_text(tokens)}\t{label}\r\n".encode("ascii") for tokens, label in rows)


def write_official(dataset: Dataset, folder: Path) -> list[Path]:
    """Write each split as the release's TSV file; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for split, part in dataset.splits.items():
        files.append(folder / next(file for file, name in _FILES.items() if name == split))
        assert part.labels is not None
        write_tsv(files[-1], zip(part.tokens, part.labels.tolist(), strict=True))
    return files


def read_tsv(stream: IO[bytes], name: str) -> Iterator[tuple[np.ndarray, int]]:
    """(ids, label) of each row of an official file; LF and CRLF ends are both read."""
    for number, line in text_lines(stream, name):
        fields = line.split("\t")
        if number == 1:
            if fields != ["Source", "Target"]:
                raise ValueError(f"{name}, line 1: the header is {fields}, not ['Source', 'Target']")
            continue
        if len(fields) != 2:
            raise ValueError(f"{name}, line {number}: {len(fields)} columns, not 2 (Source, Target)")
        if fields[1] not in tuple("0123456789"):
            raise ValueError(f"{name}, line {number}: label {fields[1]!r} is not 0..9")
        try:
            yield encode(fields[0]), int(fields[1])
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: {error}") from None


def _read_files(path: Path, writer: Writer, max_length: int) -> int:
    cut = 0
    for match, stream in matching(path, _FILE, f"none of {', '.join(_FILES)}"):
        split = writer.split(_FILES[match[1]], np.uint8)
        for tokens, label in read_tsv(stream, match.string):
            cut += len(tokens) > max_length
            split.add(tokens[:max_length], label)
    return cut
