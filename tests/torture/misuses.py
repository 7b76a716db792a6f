"""Commands with words that make no sense, files that are something else, folders that cannot be written."""

import random
from collections.abc import Iterator
from pathlib import Path

from torture.lab import Lab

ODD = ("", "0", "-1", "1.5", "nan", "1e400", "ja", "ü", "../..", "--", "[", "{}", "9" * 30, " ", "a,b", "0,0", "None")


def misuses(lab: Lab, chance: random.Random, count: int) -> Iterator[str]:
    """Each must end in a sentence and an exit code or do something sensible, without a traceback."""
    place = lab.folder / "cases" / "misuse"
    place.mkdir(parents=True, exist_ok=True)
    files = _odd_files(place)
    for _ in range(count):
        run = lab.copy(lab.whole, "misused")
        before = _contents(run)
        words = _words(chance, run, files, place)
        ended = lab.run(*words)
        wrong = ended.fault
        if not wrong and _contents(run) != before and words[0] not in ("resume", "train"):
            wrong = "it changed the run"
        yield wrong and f"cosformer {' '.join(map(repr, words))}: {wrong}"


def _odd_files(place: Path) -> list[Path]:
    (place / "folder").mkdir(exist_ok=True)
    contents = {
        "empty": b"",
        "binary.csv": bytes(range(256)) * 20,
        "brackets.json": b"[" * 200_000,
        "list.json": b"[1, 2]",
        "table.csv": b"text,label\ngood,1\nbad,0\n",
        "ragged.csv": b'text,label\ngood,1,2,3\n"never closed,0\n',
        "latin.txt": "caf\u00e9 na\u00efve\n".encode("latin-1") * 30,
        "no_columns.jsonl": b"{}\n{}\n",
        "broken.jsonl": b'{"text": "a"}\n{"text": \n',
        "header.csv": b"text,label\n",
        "nul.txt": b"a\0b\n" * 10,
        "fake.zip": b"PK\x03\x04nothing",
        "fake.gz": b"\x1f\x8bnothing",
        "fake.parquet": b"PAR1nothing",
    }
    for name, content in contents.items():
        (place / name).write_bytes(content)
    (place / "loop").unlink(missing_ok=True)
    (place / "loop").symlink_to(place / "loop")
    return [
        *(place / name for name in contents),
        place / "loop",
        place / "folder",
        place / "nowhere" / "x",
        Path("/dev/null"),
    ]


def _contents(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file() and path.name != ".lock"}


def _words(chance: random.Random, run: Path, files: list[Path], place: Path) -> list[str]:
    """A command whose words are drawn: some right, some odd."""
    file, other = (str(chance.choice(files)) for _ in range(2))
    odd = chance.choice(ODD)
    anything = chance.choice([file, other, odd, str(run)])
    out = chance.choice([file, str(place / "out.csv"), str(run), odd or "x"])
    recipe = chance.choice(
        ["lm-stdlib-small", "classify", "regress", "match", "tag", "seq2seq", "lm", "mlm", odd or "x"]
    )
    field = chance.choice(
        [
            "steps",
            "batch",
            "lr",
            "warmup",
            "precision",
            "strategy",
            "window",
            "sequence_parallel",
            "seed",
            "micro_batch",
        ]
    )
    # a train command that is right would train: it gets one update
    train = ["--train.steps", "1", "--quiet", "--run", str(chance.choice([place / "new", run, Path(file)]))]
    return [
        *chance.choice(
            [
                ["resume", anything],
                ["resume", str(run), "--steps", odd],
                ["resume", str(run), "--apply-changes"],
                ["resume", str(run), "--sequence-parallel", odd],
                ["eval", anything],
                ["eval", str(run), "--splits", odd],
                ["eval", str(run), "--weights", odd],
                ["runs", anything],
                ["runs", str(run), "--sort", odd],
                ["runs", str(run), "--where", odd],
                ["runs", "diff", str(run), anything],
                ["report", anything, "-o", str(place / "page.html")],
                ["report", str(run), "-o", out],
                ["report", str(run), "--results", anything, "-o", str(place / "page.html")],
                ["predict", str(run), file, "-o", out],
                ["predict", anything, file, "-o", out],
                ["predict", str(run), file, "-o", str(place / "out.csv"), "--text", odd],
                ["predict", str(run), file, "-o", str(place / "out.jsonl"), "--batch", odd],
                ["generate", str(run), "--prompt", odd or "x", "--max-new-tokens", odd],
                ["generate", anything, "--prompt", "def", "--max-new-tokens", "2"],
                ["generate", str(run), "--prompt", "def", "--temperature", odd, "--max-new-tokens", "2"],
                ["visualize", str(run), "--text", "def f", "-o", out],
                ["visualize", str(run), "--text", odd, "--layer", odd, "-o", str(place / "maps.npz")],
                ["convert", anything, out],
                ["convert", str(run), str(place / "converted"), "--attention", odd],
                ["export", anything, out],
                ["export", str(run), out, "--length", odd],
                ["generate", str(run), "--prompt", "def", "--weights", odd, "--max-new-tokens", "2"],
                ["compare", anything, "--text", file],
                ["compare", "--read", file],
                ["linearize", anything, str(place / "linear"), "--text", file],
                ["bench", "attention", "--read", file],
                ["bench", "attention", "--json", out, "--lengths", odd],
                ["bench", odd or "x"],
                ["data", "get", odd or "x"],
                ["data", "get", "wikitext2", "--from", file],
                ["data", "get", "listops", "--set", odd],
                ["data", "show", "python", "--split", odd],
                ["data", "show", "python", "--rows", odd],
                ["train", recipe, "--data", file, *train],
                ["train", recipe, "--data", file, "--data.options.text", odd, *train],
                ["train", "lm-stdlib-small", f"--train.{field}", odd, *train],
                ["train", "lm-stdlib-small", "--model.attention", odd, *train],
                ["train", "lm-stdlib-small", "--start", anything, *train],
                ["list", odd or "x"],
                ["check", "--device", odd],
                [odd or "x"],
            ]
        ),
        *chance.choice([[], [], [], ["--no-such-option"], [odd]]),
    ]
