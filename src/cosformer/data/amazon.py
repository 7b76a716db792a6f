"""Amazon reviews: five-star Electronics (JSON lines) and the four domains of Blitzer et al. (XML-like files)."""

import html
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from cosformer.data.archive import decoded, matching, text_lines
from cosformer.data.cache import prepare
from cosformer.data.dataset import SPLITS, Dataset, Description, Writer
from cosformer.data.download import locate
from cosformer.data.encoding import Row, add_rows, dealt, prepare_rows, smallest_dtype, split_anew, tokenizer_identity
from cosformer.data.subwords import batched, text_vocabulary
from cosformer.terminal import progress_bar

_JSON = re.compile(r"\.jsonl?$")
_DOMAIN = re.compile(r"(?:^|/)(?:([^/]+)/)?(positive|negative)\.review$")


def amazon(
    *,
    path: str | None = None,
    tokenizer: str = "bytes",
    max_length: int = 512,
    fraction: float = 0.5,
    shares: Sequence[float] = (90, 5, 5),
    seed: int = 0,
    errors: str = "strict",
) -> Dataset:
    """Five-star reviews, label = stars - 1. By ``seed`` a ``fraction`` of all rows is taken and dealt by ``shares``.

    ``path`` is ``Electronics_5.json.gz`` or any JSON lines with ``overall`` and ``reviewText``. A review without text
    stays a row without text; ``notes`` counts them.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction={fraction}; above 0 and at most 1")
    if len(shares) != 3:
        raise ValueError(f"shares={shares!r}; three of them (train, valid, test)")
    source = locate("amazon", "amazon", path)
    options = {
        "source": source.identity,
        "tokenizer": tokenizer_identity(tokenizer),
        "max_length": max_length,
        "fraction": fraction,
        "shares": [float(s) for s in shares],
        "seed": seed,
        "errors": errors,
    }

    def build(writer: Writer) -> Description:
        path = source.files()
        count = sum(1 for _ in _json_lines(path))
        place = _places(count, fraction, shares, seed)

        def train() -> Iterator[str]:
            for i, line in enumerate(_json_lines(path)):
                if place[i] == SPLITS.index("train"):
                    yield star_row(path.name, i + 1, line, errors)[0]

        vocabulary = text_vocabulary(tokenizer, train)
        out = {part: writer.split(part, smallest_dtype(vocabulary.size)) for part in SPLITS}
        cut = empty = done = 0
        with progress_bar("amazon", count) as bar:
            for batch in batched(_json_lines(path), 10_000):
                for number, part in enumerate(SPLITS):
                    rows = [
                        star_row(path.name, done + i + 1, line, errors)
                        for i, line in enumerate(batch)
                        if place[done + i] == number
                    ]
                    empty += sum(not row[0] for row in rows)
                    cut += add_rows(out[part], rows, vocabulary, max_length)
                done += len(batch)
                bar.update(len(batch))
        stars = tuple(f"{n} stars" for n in range(1, 6))
        return Description(vocabulary, 5, max_length, stars, notes={"rows cut": cut, "reviews without text": empty})

    return prepare("amazon", options, build)


def _places(count: int, fraction: float, shares: Sequence[float], seed: int) -> np.ndarray:
    """For each row the number of its part, or -1 for rows left out."""
    taken = dealt(count, (fraction, 1 - fraction), seed)[0]
    place = np.full(count, -1, np.int8)
    for number, part in enumerate(dealt(len(taken), shares, seed + 1)):
        place[taken[part]] = number
    return place


def _json_lines(path: Path) -> Iterator[bytes]:
    for _, stream in matching(path, _JSON, "no .json or .jsonl file"):
        yield from stream


def star_row(file: str, number: int, raw: bytes, errors: str) -> Row:
    """One review of the JSON lines."""
    where = f"{file}, line {number}"
    try:
        entry = json.loads(decoded(raw, where, errors))
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error})") from None
    if not isinstance(entry, dict) or "overall" not in entry:
        raise ValueError(f"{where}: has no 'overall' (the stars)")
    if entry["overall"] not in (1, 2, 3, 4, 5):
        raise ValueError(f"{where}: {entry['overall']!r} stars; 1 to 5 are possible")
    return str(entry.get("reviewText") or ""), None, int(entry["overall"]) - 1


def blitzer(
    *,
    path: str | None = None,
    domains: Sequence[str] | None = None,
    tokenizer: str = "bytes",
    max_length: int = 512,
    shares: Sequence[float] = (80, 10, 10),
    seed: int = 0,
    errors: str = "strict",
) -> Dataset:
    """Reviews of books, dvd, electronics and kitchen, label 1 = positive (4 or 5 stars; 1 or 2 are negative), dealt by
    ``seed``.

    ``path`` is the official archive or a folder with ``<domain>/{positive,negative}.review``; ``domains`` picks some.
    """
    if len(shares) != 3:
        raise ValueError(f"shares={shares!r}; three of them (train, valid, test)")

    def read(files: Path) -> tuple[dict[str, list[Row]], dict[str, int]]:
        rows = [row for _, row in sorted(read_domains(files, domains, errors), key=lambda pair: pair[0])]
        return split_anew(rows, shares, seed), {}

    options = {"shares": [float(s) for s in shares], "seed": seed, "errors": errors}
    options |= {"domains": None if domains is None else sorted(domains)}
    classes, sizes = ("negative", "positive"), {"tokenizer": tokenizer, "max_length": max_length}
    return prepare_rows("blitzer", path, read, classes, **sizes, **options)


def read_domains(path: Path, domains: Sequence[str] | None, errors: str) -> Iterator[tuple[str, Row]]:
    """(domain and file, row) of every review of the chosen domains."""
    found: set[str] = set()
    for match, stream in matching(path, _DOMAIN, "no <domain>/positive.review or <domain>/negative.review"):
        domain = match[1] or path.name  # the folder of one domain was given
        if domains is None or domain in domains:
            found.add(domain)
            for row in _reviews(match.string, stream, errors):
                yield f"{domain}/{match[2]}", row
    if missing := sorted(set(domains or ()) - found):
        raise ValueError(
            f"{path} contains no domain {', '.join(missing)}; it contains: {', '.join(sorted(found)) or 'none'}"
        )
    if not found:
        raise ValueError(f"domains={domains!r}; name at least one, or leave the option out")


def _reviews(name: str, stream: IO[bytes], errors: str) -> Iterator[Row]:
    """Each ``<review>``. Tags are on lines of their own; the files are not well-formed XML, so it is not parsed."""
    field: str | None = None
    fields: dict[str, list[str]] = {}
    start = 0
    for number, line in text_lines(stream, name, errors):
        tag = line.strip()
        if tag == "<review>":
            fields, start = {"rating": [], "review_text": []}, number
        elif tag == "</review>":
            yield _star_label(name, start, fields)
            start = 0
        elif tag in ("<rating>", "<review_text>"):
            field = tag[1:-1]
        elif tag in ("</rating>", "</review_text>"):
            field = None
        elif field is not None and start:
            fields[field].append(line)
    if start:
        raise ValueError(f"{name}, line {start}: this review is never closed; the file is truncated")


def _star_label(name: str, line: int, fields: dict[str, list[str]]) -> Row:
    rating = " ".join(fields["rating"]).strip()
    if rating not in ("1.0", "2.0", "4.0", "5.0"):
        raise ValueError(f"{name}, review at line {line}: rating {rating!r}; 1.0, 2.0, 4.0 or 5.0 are possible")
    return html.unescape("\n".join(fields["review_text"]).strip()), None, int(float(rating) > 3)
