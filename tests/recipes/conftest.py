"""Made-up files in the official formats, a few rows each: what the recipes' data sets read."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from cosformer.experiment import Experiment, Option

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "naïve", "birds", "fly", ",", "."]


@pytest.fixture(autouse=True)
def surroundings(data_home: None, one_thread: None) -> None:
    """Prepared data in a folder of its own; one thread."""


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The folder of made-up files of a data set, written at the first call."""
    root = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)

    def text(words: int) -> str:
        return " ".join(WORDS[i] for i in rng.integers(0, len(WORDS), words))

    def write(name: str, content: str | bytes) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def wikitext(name: str, extra: str = "") -> None:
        for split, lines in {"train": 60, "valid": 12, "test": 12}.items():
            body = "".join(f" {text(20)} \n" for _ in range(lines))
            write(f"{name}/wiki.{split}.tokens", body + (extra if split == "train" else ""))

    def glue(name: str, header: str, row: Callable[[int], str]) -> None:
        dev = "dev_matched" if name == "mnli" else "dev"
        for split, rows in {"train": 12, dev: 6}.items():
            write(f"{name}/{split}.tsv", "\n".join([header, *(row(i) for i in range(rows))]) + "\n")

    def imdb(name: str) -> None:
        for split in ("train", "test"):
            for i in range(6):
                write(f"{name}/{split}/{('neg', 'pos')[i % 2]}/{i}_{(2, 9)[i % 2]}.txt", text(12))

    def image(name: str) -> None:
        for file, rows in {"data_batch_1.bin": 20, "test_batch.bin": 6}.items():
            pixels = rng.integers(0, 256, (rows, 3073), np.uint8)
            pixels[:, 0] = np.arange(rows) % 10
            write(f"{name}/{file}", pixels.tobytes())

    def retrieval(name: str) -> None:
        for split, rows in {"train": 8, "eval": 4, "test": 4}.items():
            lines = "".join(f"{i % 2}.0\t{i}\t{i}\t{text(10)}\t{text(10)}\n" for i in range(rows))
            write(f"{name}/new_aan_pairs.{split}.tsv", lines)

    def amazon(name: str) -> None:
        rows = ({"overall": float(i % 5 + 1), "reviewText": text(8)} for i in range(60))
        write(f"{name}/reviews.json", "".join(json.dumps(row) + "\n" for row in rows))

    # the adaptive host's bands end at 20,000 and 60,000 words: the text must have more
    many = "".join(f" {' '.join(f'w{i}' for i in range(start, start + 100))} \n" for start in range(0, 60_100, 100))
    makers: dict[str, Callable[[str], None]] = {
        "wikitext2": wikitext,
        "wikitext103": lambda name: wikitext(name, many),
        "sst2": lambda name: glue(name, "sentence\tlabel", lambda i: f"{text(6)}\t{i % 2}"),
        "qqp": lambda name: glue(
            name, "id\tquestion1\tquestion2\tis_duplicate", lambda i: f"{i}\t{text(4)}\t{text(4)}\t{i % 2}"
        ),
        "mnli": lambda name: glue(
            name,
            "sentence1\tsentence2\tgold_label",
            lambda i: f"{text(4)}\t{text(4)}\t{('entailment', 'neutral', 'contradiction')[i % 3]}",
        ),
        "imdb": imdb,
        "text": imdb,
        "image": image,
        "retrieval": retrieval,
        "amazon": amazon,
    }

    def folder(name: str) -> str:
        if not (root / name).exists():
            makers[name](name)
        return str(root / name)

    return folder


@pytest.fixture(scope="session")
def few(files: Callable[[str], str]) -> Callable[[Experiment], dict[str, Option]]:
    """Options that give an experiment's data set a few rows: made-up files, or a small number to generate."""

    def options(experiment: Experiment) -> dict[str, Option]:
        name = experiment.data.name
        if name == "python":
            return {"max_bytes": 300_000}
        if name == "listops":
            return {"train": 8, "valid": 4, "test": 4, "longer_than": 10, "shorter_than": 40, "workers": 1}
        if name == "pathfinder":
            return {"train": 8, "valid": 4, "test": 4, "workers": 1}
        if name == "amazon":
            return {"path": files(name), "fraction": 1.0}
        # many words are for word-level models alone: a BPE takes long to learn them
        return {"path": files("wikitext2" if experiment.task == "mlm" else name)}

    return options
