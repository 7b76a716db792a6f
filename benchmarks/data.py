"""``python -m benchmarks data``: the generators on all cores, and BPE preparation against the tokenizers library."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from cosformer import terminal
from cosformer.bench.measure import interleaved, measured, seconds
from cosformer.report.measurements import Measurement


def measurements(
    *, text: Path | None = None, tokenizer: Path | None = None, repeats: int = 5, threads: int = 2
) -> Iterator[Measurement]:
    """``text``: trains the BPE, by default Python's own sources; ``tokenizer``: its files, trained if not given."""
    if repeats < 2:
        raise ValueError(f"--repeats {repeats}: at least 2, for a spread")
    terminal.status("ListOps generator")
    m = Measurement(kind="ListOps generator", unit="rows/s", better="higher")
    yield measured(m, [_listops_rate() for _ in range(repeats)])
    for level in ("easy", "intermediate", "hard"):
        terminal.status(f"Pathfinder generator, {level}")
        m = Measurement(kind="Pathfinder generator", variant=level, unit="images/s", better="higher")
        yield measured(m, [_pathfinder_rate(level) for _ in range(repeats)])
    terminal.status("BPE preparation")
    m = Measurement(kind="BPE preparation", unit="of the library's rate", better="higher")
    yield measured(m, _bpe_shares(text, tokenizer, repeats))


def _listops_rate(rows: int = 8_000) -> float:
    """Rows per second on all cores, start of the workers included."""
    from cosformer.data.listops_trees import generate

    return rows / seconds(lambda: sum(1 for _ in generate(rows, seed=0)))


def _pathfinder_rate(level: str, chunks: int = 4) -> float:
    """Images per second on all cores, start of the workers included."""
    from cosformer.data.parallel import in_order
    from cosformer.data.pathfinder import CHUNK, draw_chunk

    make = partial(draw_chunk, level=level, seed=0)
    return chunks * CHUNK / seconds(lambda: sum(1 for _ in in_order(make, None, chunks)))


def _bpe_shares(text: Path | None, tokenizer: Path | None, repeats: int) -> list[float]:
    """Full preparation (read, encode, write the arrays) relative to the library's bare batch encoding."""
    from cosformer.data.archive import members, text_lines
    from cosformer.data.dataset import Writer
    from cosformer.data.subwords import Subwords
    from cosformer.data.wikitext import write_lines

    with tempfile.TemporaryDirectory() as folder:
        file = text or _library_text(Path(folder) / "text")

        def lines() -> Iterator[str]:
            for name, stream in members(file, lambda _: True):
                yield from (line for _, line in text_lines(stream, name))

        vocabulary = Subwords.load(tokenizer) if tokenizer else Subwords.train(lines(), 8_000)
        listed = list(lines())

        def ours() -> None:
            with tempfile.TemporaryDirectory() as out, Writer(Path(out)) as writer:
                write_lines(writer, "train", lines(), vocabulary)

        def library() -> None:
            vocabulary.tokenizer.encode_batch(listed, add_special_tokens=False)

        samples = interleaved({"library": library, "ours": ours}, repeats=repeats)
    return [theirs / our for theirs, our in zip(samples["library"], samples["ours"], strict=True)]


def _library_text(file: Path) -> Path:
    """The default text; ten lines of source are joined into one, which is about the length of WikiText's lines."""
    from cosformer.data import load_dataset

    flat = load_dataset("python").splits["train"].tokens.flat
    source = (flat[flat <= 256] - 1).astype("uint8").tobytes().splitlines()
    file.write_bytes(b"\n".join(b" ".join(source[i : i + 10]) for i in range(0, len(source), 10)))
    return file
