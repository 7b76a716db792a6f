"""``cosformer bench``: what every benchmark can do with its results, and options that are wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from cosformer import cli
from cosformer.bench.runner import tables
from cosformer.report.measurements import DIFFERENCE, Measurement, Results, read_results

MACHINE = {"cpu": "x", "threads": 2, "torch": "2", "instructions": "y", "cores": 2, "system": "z", "python": "3"}


def of(
    value: float | None, length: int = 1024, better: Any = "higher", unit: str = "times faster", **more: Any
) -> Measurement:
    place: dict[str, Any] = {"kind": "forward", "attention": "cosformer", "mode": "causal", "length": length}
    return Measurement(**place, baseline="sdpa", unit=unit, better=better, value=value, low=value, high=value, **more)


def write(path: Path, *measurements: Measurement) -> str:
    found = Results("attention", "cosformer bench attention", "2000-01-01", MACHINE, {}, measurements)
    path.write_text(found.json())
    assert read_results(path) == found
    return str(path)


def changed(tmp_path: Path, old: Measurement, new: Measurement, tolerance: str) -> int:
    files = [write(tmp_path / f"{name}.json", m) for name, m in (("old", old), ("new", new))]
    return cli.main(["bench", "attention", "--read", files[1], "--compare", files[0], "--tolerance", tolerance])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (of(10.0), of(5.0)),
        (of(5.0, better="lower"), of(10.0, better="lower")),
        # 20 µs more after -1 µs is no factor; 20 µs instead of 10 µs is one
        tuple(
            of(1e3 * (ms - 0.011), 8, "lower", DIFFERENCE, milliseconds=ms, baseline_milliseconds=0.011)
            for ms in (0.01, 0.02)
        ),
    ],
)
def test_twice_as_bad_is_seen_in_both_directions(old: Measurement, new: Measurement, tmp_path: Path) -> None:
    assert changed(tmp_path, old, new, "1.9") == cli.EXIT_FAILED
    assert changed(tmp_path, old, new, "2.1") == 0
    assert changed(tmp_path, new, old, "1") == 0


def test_compare_says_how_many_got_slower(tmp_path: Path, capsys) -> None:
    old = write(tmp_path / "old.json", of(10.0, 1024), of(2.0, 2048), of(1.0, 4096))
    new = write(tmp_path / "new.json", of(7.0, 1024), of(2.0, 2048), of(None, 8192))
    assert cli.main(["bench", "attention", "--read", new, "--compare", old]) == cli.EXIT_FAILED
    assert "1 of 2 rows got worse by more than 1.25x" in capsys.readouterr().out


def test_compare_of_strangers_is_a_usage_error(tmp_path: Path, capsys) -> None:
    old, new = write(tmp_path / "old.json", of(1.0, 1024)), write(tmp_path / "new.json", of(1.0, 2048))
    assert cli.main(["bench", "attention", "--read", new, "--compare", old]) == cli.EXIT_USAGE
    assert "no row in common" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"measurements": [{"kind": "x"}]}', '{"measurements": [], "size": 3}']
)
def test_a_file_that_is_no_result_is_a_usage_error(content: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "other.json").write_text(content)
    assert cli.main(["bench", "attention", "--read", str(tmp_path / "other.json")]) == cli.EXIT_USAGE
    assert "other.json" in capsys.readouterr().err
    assert cli.main(["bench", "attention", "--read", str(tmp_path / "missing.json")]) == cli.EXIT_USAGE


@pytest.mark.parametrize(
    "words",
    [["--lengths", "0"], ["--lengths", "a,b"], ["--repeats", "0"], ["--threads", "x"]],
    ids=lambda words: " ".join(words),
)
def test_bad_options_are_usage_errors(words: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", "attention", *words])
    assert stopped.value.code == cli.EXIT_USAGE


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("attention --backend magic", "magic"),
        ("attention --attentions magic", "softmax"),
        ("attention --attentions softmax --backend dense", "--attentions"),
        ("attention --resume", "--attentions"),
        ("attention --attentions softmax --resume", "--json"),
        ("attention --tolerance 0.5", "at least 1"),
        ("attention --read missing.json", "missing.json"),
        ("train --attentions magic", "magic"),
        ("train --backends magic", "magic"),
        ("train --lengths 512 --tokens 256", "--tokens"),
    ],
)
def test_wrong_values_are_named(words: str, message: str, capsys) -> None:
    assert cli.main(["bench", *words.split()]) == cli.EXIT_USAGE
    assert message in capsys.readouterr().err


def test_json_to_stdout_is_json_alone(tmp_path: Path, capsys) -> None:
    name = write(tmp_path / "new.json", of(1.0))
    assert cli.main(["bench", "attention", "--read", name, "--json", "-", "--compare", name]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["measurements"][0]["kind"] == "forward"
    assert "0 of 1" in captured.err


def test_a_document_gets_what_it_has_markers_for(tmp_path: Path, capsys) -> None:
    name, page = write(tmp_path / "new.json", of(2.0)), tmp_path / "page.md"
    page.write_text("From <!-- faster from:start -->?<!-- faster from:end --> tokens on.\n")
    assert cli.main(["bench", "attention", "--read", name, "--into", str(page)]) == 0
    assert page.read_text() == "From <!-- faster from:start -->1,024<!-- faster from:end --> tokens on.\n"
    page.write_text("before\n<!-- bench attention:start -->\nold\n<!-- bench attention:end -->\nafter\n")
    assert cli.main(["bench", "attention", "--read", name, "--into", str(page)]) == 0
    found, text = read_results(Path(name)), page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert tables(found)[0].markdown in text and found.machine["cpu"] in text
    page.write_text("no markers")
    assert cli.main(["bench", "attention", "--read", name, "--into", str(page)]) == cli.EXIT_USAGE
    assert "bench attention:start" in capsys.readouterr().err
