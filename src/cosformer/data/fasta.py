"""FASTA and FASTQ files: records of a header and a sequence of letters."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cosformer.data.own_files import OwnFile, checked_lines

ENDINGS = (".fa", ".fasta", ".fna", ".ffn", ".faa", ".frn", ".fq", ".fastq")
ALPHABETS = {
    "dna": "ACGTRYSWKMBDHVN-",
    "rna": "ACGURYSWKMBDHVN-",
    "protein": "ACDEFGHIKLMNPQRSTVWYBJOUXZ*-",
}


@dataclass(frozen=True)
class Record:
    """One sequence in upper case; ``line``: that of its header."""

    header: str
    letters: str
    line: int


def is_fasta(name: str) -> bool:
    return name.lower().endswith(ENDINGS)


def records(file: OwnFile) -> Iterator[Record]:
    """The records of a FASTA or FASTQ file, whatever its ending is of the two."""
    lines = ((number, line.strip()) for number, line in checked_lines(file, "utf-8", "strict"))
    first = next(lines, None)
    while first is not None and not first[1]:
        first = next(lines, None)
    if first is None:
        raise ValueError(f"{file.shown} is empty")
    if first[1][0] not in ">@":
        raise ValueError(
            f"{file.shown}, line {first[0]}: expected a header that begins with > (FASTA) or @ (FASTQ), got "
            f"{first[1]!r:.40}"
        )
    yield from (_fasta if first[1][0] == ">" else _fastq)(file, first, lines)


def _fasta(file: OwnFile, header: tuple[int, str], lines: Iterator[tuple[int, str]]) -> Iterator[Record]:
    parts: list[str] = []
    for number, line in lines:
        if not line.startswith(">"):
            parts.append("".join(line.split()))
            continue
        yield _record(file, header, "".join(parts))
        header, parts = (number, line), []
    yield _record(file, header, "".join(parts))


def _fastq(file: OwnFile, header: tuple[int, str], lines: Iterator[tuple[int, str]]) -> Iterator[Record]:
    while True:
        rest = [next(lines, (0, "")) for _ in range(3)]
        if not header[1].startswith("@") or not rest[1][1].startswith("+") or len(rest[0][1]) != len(rest[2][1]):
            raise ValueError(
                f"{file.shown}, line {header[0]}: not a FASTQ record of four lines (@name, letters, +, as many quality "
                "marks)"
            )
        yield _record(file, header, rest[0][1])
        following = next((entry for entry in lines if entry[1]), None)
        if following is None:
            return
        header = following


def _record(file: OwnFile, header: tuple[int, str], letters: str) -> Record:
    if not letters:
        raise ValueError(f"{file.shown}, line {header[0]}: the record {header[1]!r:.40} has no sequence")
    return Record(header[1][1:].strip(), letters.upper(), header[0])


def guess_alphabet(sequences: Sequence[str]) -> str:
    """``dna`` or ``rna`` where nine of ten letters are theirs, else ``protein``."""
    counts = Counter(letter for sequence in sequences[:1_000] for letter in sequence[:10_000])
    total = counts.total()
    for name, letters in (("dna", "ACGTN"), ("rna", "ACGUN")):
        if sum(counts[letter] for letter in letters) > 0.9 * total:
            return name
    return "protein"
