"""`cosformer bench attention`: what it measures, writes, reads and compares."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from cosformer import cli, machine
from cosformer.lab.bench import attention, measure, operator, results, table, zoo
from cosformer.lab.bench.released import released_attention, released_bytes
from cosformer.lab.bench.results import DIFFERENCE, Row
from cosformer.ops.operator import cosformer_attention


@pytest.mark.parametrize("causal", [True, False])
def test_the_released_way_gives_our_numbers(causal: bool) -> None:
    """The baseline of the speed comparison computes the same function."""
    q, k, v = (torch.randn(2, 3, 50, 8, dtype=torch.float64) for _ in range(3))
    inputs = [x.permute(2, 0, 1, 3).flatten(2) for x in (q, k, v)]
    out = released_attention(*inputs, num_heads=3, causal=causal)
    expected = cosformer_attention(q, k, v, causal=causal, max_len=50).permute(2, 0, 1, 3).flatten(2)
    assert out.shape == (50, 2, 24)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)


def test_the_released_way_takes_about_the_memory_that_is_said() -> None:
    """The outer products and their running sum, and little else."""
    n, heads, d = 1024, operator.HEADS, operator.HEAD_DIM
    outer = n * heads * 2 * d * d * 4
    assert 2 * outer <= released_bytes(n, heads, d, True) <= 2.5 * outer
    assert released_bytes(n, heads, d, False) < outer / 4


def test_interleaved_takes_turns_and_times_each() -> None:
    calls: list[str] = []

    def action(name: str, seconds: float) -> Any:
        def run() -> None:
            calls.append(name)
            time.sleep(seconds)

        return run

    samples = measure.interleaved({"a": action("a", 0.03), "b": action("b", 0.06)}, repeats=4)
    assert {name: len(found) for name, found in samples.items()} == {"a": 4, "b": 4}
    assert "".join(calls[-8:]) == "abbaabba"
    assert 1.2 < measure.ratio(samples["b"], samples["a"]).median < 3


def test_interleaved_stops_at_its_budget_but_not_below_three() -> None:
    samples = measure.interleaved({"a": lambda: time.sleep(0.03)}, repeats=50, budget=0.1)
    assert 3 <= len(samples["a"]) < 10
    assert len(measure.interleaved({"a": lambda: time.sleep(0.03)}, repeats=50, budget=0.0)["a"]) == 3


def test_short_calls_are_repeated_within_a_sample() -> None:
    count = 0

    def run() -> None:
        nonlocal count
        count += 1

    measure.interleaved({"a": run}, repeats=1)
    assert count > 1000


def test_spread_is_the_median_and_the_quartiles() -> None:
    assert measure.spread([1.0, 2.0, 3.0, 4.0, 100.0]) == (3.0, 2.0, 4.0)
    assert measure.spread([7.0]) == (7.0, 7.0, 7.0)


def test_peak_sees_memory_that_is_gone_again() -> None:
    grown = measure.in_fresh_process("cosformer.lab.bench.operator:training_peak", 1, n=4096, backend="chunked")
    tensors = 7 * 4096 * operator.HEADS * operator.HEAD_DIM * 4  # q, k, v, out and the gradients of q, k, v
    assert tensors < grown < 6 * tensors


def test_a_fresh_process_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="no_such_function"):
        measure.in_fresh_process("cosformer.lab.bench.operator:no_such_function", 1)


def test_machine_is_described() -> None:
    about = machine.describe(2)
    assert about["threads"] == 2 and about["torch"] == torch.__version__ and about["cpu"]
    assert machine.memory("MemTotal") >= machine.memory("MemAvailable") > 0


def row(value: float, *, better: Any = "higher", unit: str = "times faster", row_id: str = "a", **more: Any) -> Row:
    return Row(row_id, "a row", unit, better, value, value, value, **more)


def document(*rows: Row) -> dict[str, Any]:
    about = {"cpu": "x", "threads": 2, "torch": "2", "instructions": "y", "cores": 2, "system": "z", "python": "3"}
    found = {"command": "cosformer bench attention", "date": "2000-01-01", "commit": None}
    return json.loads(json.dumps(results.document(rows, about, found, {})))


def test_goals_are_met_in_their_direction() -> None:
    assert row(5.0, goal=5.0).met is True and row(4.9, goal=5.0).met is False
    assert row(4.0, better="lower", goal=4.0).met is True and row(4.1, better="lower", goal=4.0).met is False
    assert row(5.0).met is None and Row("a", "", "", "lower", goal=4.0).met is None


@pytest.mark.parametrize(
    ("old", "new", "worse"),
    [
        (row(10.0), row(5.0), 2.0),
        (row(5.0), row(10.0), 0.5),
        (row(10.0, better="lower"), row(5.0, better="lower"), 0.5),
        (row(5.0, better="lower"), row(10.0, better="lower"), 2.0),
    ],
)
def test_change_of_a_row(old: Row, new: Row, worse: float) -> None:
    (change,) = results.compare(document(old), document(new))
    assert change.worse == pytest.approx(worse)


def test_differences_are_compared_by_the_times_behind_them() -> None:
    """20 µs more after -1 µs is no factor; 30 µs instead of 10 µs is one."""

    def short(ours: float) -> Row:
        extra = 1e3 * (ours - 0.011)
        return row(extra, better="lower", unit=DIFFERENCE, milliseconds={"cosformer": ours, "sdpa": 0.011})

    (change,) = results.compare(document(short(0.01)), document(short(0.03)))
    assert change.worse == pytest.approx(3.0)


def write(path: Path, *rows: Row) -> str:
    path.write_text(json.dumps(document(*rows)))
    return str(path)


def test_compare_says_which_rows_got_slower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old.json", row(10.0, row_id="a"), row(2.0, row_id="b"), row(1.0, row_id="gone"))
    new = write(tmp_path / "new.json", row(7.0, row_id="a"), row(2.0, row_id="b"), Row("c", "a row", "times", "lower"))
    command = ["bench", "attention", "--read", new, "--compare", old]
    assert cli.main(command) == cli.EXIT_FAILED
    assert "1 of 2 rows got worse by more than 1.25x" in capsys.readouterr().out
    assert cli.main([*command, "--tolerance", "1.5"]) == 0
    assert "0 of 2" in capsys.readouterr().out


def test_compare_of_strangers_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write(tmp_path / "old.json", row(1.0, row_id="a")), write(tmp_path / "new.json", row(1.0, row_id="b"))
    assert cli.main(["bench", "attention", "--read", new, "--compare", old]) == cli.EXIT_USAGE
    assert "no row in common" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 0}'])
def test_a_file_that_is_no_result_is_a_usage_error(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
        (["--backend", "magic"], "magic"),
        (["--attentions", "magic"], "softmax"),
        (["--attentions", "softmax", "--backend", "dense"], "--attentions"),
        (["--tolerance", "0.5"], "at least 1"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_wrong_values_are_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "attention", *words]) == cli.EXIT_USAGE
    assert message in capsys.readouterr().err


@pytest.fixture
def short_operator_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes at which the whole benchmark takes seconds."""
    monkeypatch.setattr(operator, "PEAK_LENGTH", 2048)
    monkeypatch.setattr(operator, "MILLION", 4096)
    monkeypatch.setattr(operator, "LATE_TOKEN", 4000)
    monkeypatch.setattr(operator, "LINEAR_FROM", 128)
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0.001)


def test_a_whole_run(short_operator_run: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, readme = tmp_path / "new.json", tmp_path / "README.md"
    readme.write_text("before\n<!-- bench attention:start -->\nold\n<!-- bench attention:end -->\nafter\n")
    words = ["bench", "attention", "--lengths", "8,64,128", "--repeats", "3", "--threads", "1", "--json", str(target)]
    before = torch.get_num_threads()
    try:
        assert cli.main(words) == 0
    finally:
        torch.set_num_threads(before)
    found = results.read(target)
    assert found["command"] == "cosformer bench attention --lengths 8,64,128 --threads 1 --repeats 3"
    assert found["machine"]["threads"] == 1
    rows = {row.id: row for row in results.rows_of(found)}
    for mode in ("causal", "non-causal"):
        assert rows[f"forward/{mode}/8/sdpa"].unit == DIFFERENCE
        for name in ("64/sdpa", "128/sdpa", "128/released", "128/limit"):
            assert (rows[f"forward/{mode}/{name}"].value or 0) > 0
        assert (rows[f"training/{mode}/128/sdpa"].value or 0) > 0
    for name in ("memory/causal/2048", "growth/causal/4096", "step/4000"):
        assert (rows[name].value or 0) > 0
    for found_row in rows.values():
        assert found_row.low is not None and found_row.value is not None and found_row.high is not None
        assert found_row.low <= found_row.value <= found_row.high
    out = capsys.readouterr().out
    assert "not run" not in out and "8 heads of 64 channels" in out and found["machine"]["cpu"] in out
    assert cli.main(["bench", "attention", "--read", str(target), "--into", str(readme)]) == 0
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert table.as_markdown(found) in text


def test_json_to_stdout_is_json_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = write(tmp_path / "new.json", row(1.0))
    assert cli.main(["bench", "attention", "--read", name, "--json", "-", "--compare", name]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["rows"][0]["id"] == "a"
    assert "0 of 1" in captured.err


def test_what_does_not_fit_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "LINEAR_FROM", 64)
    monkeypatch.setattr(machine, "memory", lambda field: 1)
    rows = {row.id: row for row in operator.forward(64, "causal", backend="auto", repeats=1)}
    left_out = rows["forward/causal/64/released"]
    assert left_out.value is None and left_out.note.startswith("not run: needs")
    assert "not run" in table.as_text(table.tables(document(*rows.values())))


def test_the_matmul_limit_is_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run as fast as the matmul rate allows scores 1."""
    n = 2048
    matmul_seconds = 0.01
    rate = 2 * 1024**3 / matmul_seconds
    at_the_limit = 8 * 1 * 8 * n * 64 * 64 / rate
    times = {"cosformer": [at_the_limit], "sdpa": [1.0], "released": [1.0], "matmul": [matmul_seconds]}
    monkeypatch.setattr(operator, "interleaved", lambda actions, repeats: times)
    rows = {row.id: row for row in operator.forward(n, "causal", backend="auto", repeats=1)}
    assert rows[f"forward/causal/{n}/limit"].value == pytest.approx(1.0, rel=1e-3)
    assert rows[f"forward/causal/{n}/sdpa"].value == pytest.approx(1 / at_the_limit, rel=1e-3)


def test_markers_must_be_there_once() -> None:
    with pytest.raises(ValueError, match="bench attention:start"):
        table.insert("no markers", attention.MARKER, "block")


def test_growth_exponent() -> None:
    found = zoo.growth(row(1.0, by_length={"1024": 9.0, "2048": 3.0, "4096": 12.0}))
    assert found is not None
    assert found[0] == pytest.approx(4.0) and found[1] == pytest.approx(2.0)
    assert zoo.growth(row(1.0, by_length={"1024": 9.0})) is None


def test_the_zoo_measures_time_memory_and_growth(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0.001)
    monkeypatch.setattr(zoo, "MODES", ("plain", "causal padded"))
    target = tmp_path / "zoo.json"
    words = ["--attentions", "softmax,linformer", "--lengths", "512,1024", "--quick", "--threads", "1"]
    before = torch.get_num_threads()
    try:
        assert cli.main(["bench", "attention", *words, "--json", str(target)]) == 0
    finally:
        torch.set_num_threads(before)
    rows = {row.id: row for row in results.rows_of(results.read(target))}
    for name in ("softmax/plain", "softmax/causal padded", "linformer/plain"):
        assert set(rows[f"zoo/{name}/time"].by_length) == set(rows[f"zoo/{name}/memory"].by_length) == {"512", "1024"}
    output_mb = 1024 * zoo.HEADS * zoo.HEAD_DIM * 4 / 1e6
    peak = rows["zoo/softmax/plain/memory"].by_length["1024"]
    assert 0.9 * output_mb < peak < 40 * output_mb
    assert rows["zoo/linformer/causal padded/time"].value is None
    out = capsys.readouterr().out
    (line,) = [line for line in out.split("Causal padded")[1].splitlines() if line.startswith("linformer")]
    assert set(line.split()[1:]) == {"-"}


def test_growth_of_the_zoo_has_a_goal_only_where_it_is_linear() -> None:
    lengths = (2048, 4096, 8192)
    for name, wanted in (("linear", 2.6), ("clustered", 2.6), ("softmax", None), ("sparse", None)):
        assert zoo._row(name, "plain", "time growth", lengths).goal == wanted
        assert zoo._row(name, "plain", "time", lengths).goal is None
    assert zoo._row("linear", "plain", "time growth", (1024, 2048)).goal is None


def test_the_zoo_says_whether_growth_is_as_wanted() -> None:
    def grown(name: str, kind: str, value: float) -> Row:
        goal = None if name == "softmax" else 2.6
        return Row(f"zoo/{name}/plain/{kind} growth", "a row", "times", "lower", value, value, value, goal=goal)

    rows = [grown(name, kind, 2.0) for name in ("relu", "linear", "softmax") for kind in ("time", "memory")]
    rows[2] = grown("linear", "time", 2.7)
    rows += [Row("zoo/relu/causal/time growth", "a row", "times", "lower", note=zoo.NO_SUCH_FORM)]
    rows += [Row("zoo/relu/plain/time", "a row", "ms", "lower", 1.0, 1.0, 1.0, by_length={"4096": 1.0, "8192": 2.0})]
    title, header, body = table.tables(document(*rows))[-1]
    assert title.startswith("Growth from 4,096 to 8,192 tokens: at most 2.6") and header[-1] == "reached"
    assert {line[0]: line[-1] for line in body} == {"relu": "yes", "linear": "no"}


def test_the_zoo_has_a_place_of_its_own_in_a_page(tmp_path: Path) -> None:
    """A row that is missing, of a run that was cut short, says so in every column."""
    lengths = {"512": 1.0, "1024": 2.0}
    kinds = [
        Row(f"zoo/relu/plain/{kind}", "a row", "ms", "lower", 1.0, 1.0, 1.0, by_length=lengths)
        for kind in ("time", "memory")
    ]
    page = tmp_path / "speed.md"
    page.write_text(
        "".join(f"<!-- bench {name}:start -->\nold\n<!-- bench {name}:end -->\n" for name in ("attention", "zoo"))
    )
    assert cli.main(["bench", "attention", "--read", write(tmp_path / "zoo.json", *kinds), "--into", str(page)]) == 0
    before, zoo_part = page.read_text().split("<!-- bench zoo:start -->")
    assert "\nold\n" in before and "old" not in zoo_part
    rows = [line for line in zoo_part.splitlines() if line.startswith("| relu ")]
    assert rows[0] == "| relu | 1.00 | 2.00 | 2.00x (N^1.00) | 1.00 | 2.00 | 2.00x (N^1.00) |"
    assert rows[1] == "| relu | " + " | ".join(["not run"] * 6) + " |"


def test_an_interrupted_run_of_the_zoo_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def rows(chosen: list[str], lengths: Any, *, repeats: int, threads: int) -> Any:
        asked.append(chosen)
        for name in chosen:
            if name == "linear" and len(asked) == 1:
                yield Row(f"zoo/{name}/plain/time", "a row", "ms", "lower", 1.0, 1.0, 1.0, by_length={"512": 1.0})
                raise KeyboardInterrupt
            yield from (Row(row, "a row", "ms", "lower", note=zoo.NO_SUCH_FORM) for row in sorted(zoo.ids(name)))

    monkeypatch.setattr(zoo, "rows", rows)
    target = str(tmp_path / "zoo.json")
    words = ["bench", "attention", "--attentions", "relu,linear,spe", "--quick", "--json", target]
    words += ["--threads", str(torch.get_num_threads())]

    def run(*more: str) -> None:
        attention.measure(cli.build_parser("bench").parse_args([*words, *more]))

    with pytest.raises(KeyboardInterrupt):
        run()
    assert len(results.rows_of(results.read(Path(target)))) == len(zoo.ids("relu")) + 1

    run("--resume")
    assert asked == [["relu", "linear", "spe"], ["linear", "spe"]]
    found = [row.id for row in results.rows_of(results.read(Path(target)))]
    assert len(found) == len(set(found)) and set(found) == zoo.ids("relu") | zoo.ids("linear") | zoo.ids("spe")

    with pytest.raises(ValueError, match="other settings"):
        run("--resume", "--lengths", "1024,2048")


def test_peak_memory_of_the_zoo_is_that_of_a_quadratic_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mechanism that forms an N x N matrix per head is caught with it, at every length in one process."""
    lengths = [2048, 512, 1024]  # the longest first: what it leaves behind must not show in the next
    arguments = {"name": "synthesizer", "modes": ["plain"], "lengths": lengths}
    peaks = measure.in_fresh_process("cosformer.lab.bench.zoo:peaks", 1, **arguments)["plain"]
    found = dict(zip(lengths, peaks, strict=True))
    for n, peak in found.items():
        assert 0.9 * zoo.HEADS * n**2 * 4 < peak < 5 * zoo.HEADS * n**2 * 4
    assert math.log2(found[2048] / found[1024]) > 1.7
