"""Your own text files for language modelling and masked language modelling: a file, folder or glob."""

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

import numpy as np

from cosformer.data.cache import prepare
from cosformer.data.dataset import SPLITS, Dataset, Description, Writer
from cosformer.data.dealing import check_shares, deal
from cosformer.data.encoding import smallest_dtype, tokenizer_identity
from cosformer.data.own_files import OwnFile, checked_lines, content_hash, own_files, splits_by_name
from cosformer.data.subwords import batched, text_vocabulary
from cosformer.terminal import progress_bar

_STRETCHES = 100  # a text is dealt to the splits in about so many parts; a smaller file is one part
_BATCH = 4_096  # lines encoded at once


def texts(
    *,
    path: str | None = None,
    ending: str | None = None,
    tokenizer: str = "bytes",
    valid: float = 0.05,
    test: float = 0.05,
    seed: int = 0,
    encoding: str = "utf-8",
    errors: str = "strict",
    sha256: str | None = None,
) -> Dataset:
    """Text files as one stream: lines with their ends, and an end token after each file.

    ``path``: a file, a folder (with all folders in it) or a glob; ``ending``: which files of a folder, ``.txt`` unless
    all have another one. ``tokenizer``: "bytes", "bpe:N" learnt from the training text, or a tokenizer's folder. Splits
    come from names (train, valid, test) or are dealt: the shares ``valid`` and ``test`` by ``seed``, whole files or, of
    large ones, stretches of lines. ``encoding`` and ``errors`` ("strict", "replace") are those of Python. ``sha256``:
    refuse files of another content.
    """
    if path is None:
        raise ValueError("the set 'texts' needs the option path: a text file, a folder or a glob")
    check_shares((valid, test))
    ending = _chosen_ending(path, ending)

    def files() -> Iterator[OwnFile]:
        return own_files(path, lambda name: _ending(name) == ending)

    options = {"sha256": content_hash(path, files(), sha256), "ending": ending}
    options |= {"tokenizer": tokenizer_identity(tokenizer), "valid": valid, "test": test, "seed": seed}
    options |= {"encoding": encoding, "errors": errors}

    def build(writer: Writer) -> Description:
        parts = _dealt(_read(path, files(), encoding, errors), valid, test, seed)
        vocabulary = text_vocabulary(tokenizer, lambda: (line for lines, _ in parts["train"] for line in lines))
        if vocabulary.eos_id is None:
            raise ValueError(
                f"tokenizer={tokenizer!r} has no end token (</s>, [SEP] or <|endoftext|>) to put after each file"
            )
        size = 0
        for name, stretches in parts.items():
            out = writer.split(name, smallest_dtype(vocabulary.size), labels=False)
            with progress_bar(f"encoding {name}", None, "lines") as bar:
                for lines, ends in stretches:
                    for batch in batched(lines, _BATCH):
                        ids, lengths = vocabulary.encode(batch)
                        out.add_many(ids, lengths.tolist())
                        size += sum(len(line.encode()) for line in batch)
                        bar.update(len(batch))
                    if ends:
                        out.add_many(np.array([vocabulary.eos_id]), [1])
        return Description(vocabulary, notes={"bytes": size}, choices={"ending": ending})

    return prepare("texts", options, build)


def _ending(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _chosen_ending(path: str, ending: str | None) -> str:
    """The ending of the files to read: the one asked for, ``.txt`` where there is one, or the only one there is."""
    counts = Counter(_ending(file.name) for file in own_files(path))
    if not counts:
        raise ValueError(f"{path} holds no files")
    if ending is not None:
        ending = ending.lower() if ending.startswith(".") or not ending else f".{ending.lower()}"
        if ending not in counts:
            raise ValueError(f"{path} holds no file that ends in {ending!r}, only {_counted(counts)}")
        return ending
    if counts.keys() <= {".parquet", ".arrow"}:
        raise ValueError(
            f"{path} holds tables ({_counted(counts)}); language models learn from text files: export them"
        )
    if ".txt" in counts or len(counts) == 1:
        return ".txt" if ".txt" in counts else next(iter(counts))
    raise ValueError(f"{path} holds files of several kinds ({_counted(counts)}); choose one with the option ending")


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name or 'without ending'}" for name, count in counts.most_common(6))


Lines = list[str]


def _read(path: str, files: Iterator[OwnFile], encoding: str, errors: str) -> dict[str, Lines]:
    """The lines of each file, by its name."""
    found = {}
    for file in files:
        found[file.name] = [line for _, line in checked_lines(file, encoding, errors)]
    if not any(line.strip() for lines in found.values() for line in lines):
        raise ValueError(f"{path} holds no text" if len(found) > 1 else f"{path} is empty")
    return {name: lines for name, lines in found.items() if lines}


def _dealt(files: dict[str, Lines], valid: float, test: float, seed: int) -> dict[str, list[tuple[Lines, bool]]]:
    """The stretches of lines of each split, and whether each ends a file."""
    named = splits_by_name(list(files))
    if named is not None and "valid" in named.values():
        parts = {split: [(files[name], True) for name in files if named[name] == split] for split in SPLITS}
        return {split: found for split, found in parts.items() if found}
    # without files for validation it comes out of the training text; a test file stays what it is
    training = {name: lines for name, lines in files.items() if named is None or named[name] == "train"}
    stretches = _stretches(training)
    sizes = [sum(map(len, lines)) for lines, _ in stretches]
    shares = (valid, test if named is None else 0.0)
    dealt = deal(shares, seed, groups=range(len(stretches)), sizes=sizes)
    parts = {split: [s for s, where in zip(stretches, dealt, strict=True) if where == split] for split in SPLITS}
    if named is not None:
        parts["test"] = [(files[name], True) for name in files if named[name] == "test"]
    for split in ("train", "valid"):
        if not parts[split]:
            raise ValueError(
                f"the text has {sum(map(len, training.values()))} lines, too few to set some aside for validation; "
                "give it in files named train and valid, or with more line breaks"
            )
    return {split: found for split, found in parts.items() if found}


def _stretches(files: dict[str, Lines]) -> list[tuple[Lines, bool]]:
    """Files cut after lines into stretches of about a hundredth of the whole."""
    limit = sum(len(line) for lines in files.values() for line in lines) / _STRETCHES
    found = []
    for lines in files.values():
        start = size = 0
        for place, line in enumerate(lines, start=1):
            size += len(line)
            if size >= limit or place == len(lines):
                found.append((lines[start:place], place == len(lines)))
                start, size = place, 0
    return found
