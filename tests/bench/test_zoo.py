"""``cosformer bench attention --attentions``: time, memory and growth of each, and a run that was interrupted."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from cosformer import cli
from cosformer.bench import measure, zoo
from cosformer.bench.runner import tables
from cosformer.bench.tables import NO_SUCH_FORM
from cosformer.report.measurements import Measurement, read_results


def test_the_zoo_measures_time_memory_and_growth(monkeypatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0.001)
    monkeypatch.setattr(zoo, "MODES", ("plain", "causal padded"))
    target = tmp_path / "zoo.json"
    words = ["--attentions", "softmax,linformer", "--lengths", "512,1024", "--quick", "--threads", "1"]
    assert cli.main(["bench", "attention", *words, "--json", str(target)]) == 0
    found = read_results(target)
    assert found.benchmark == "zoo" and found.settings["repeats"] == 3
    for name, mode in (("softmax", "plain"), ("softmax", "causal padded"), ("linformer", "plain")):
        of = found.find(attention=name, mode=mode)
        assert [(m.kind, m.length) for m in of] == [
            ("time", 512),
            ("time", 1024),
            ("time growth", 1024),
            ("memory", 512),
            ("memory", 1024),
            ("memory growth", 1024),
        ]
        assert all(m.value is not None and m.value > 0 for m in of)
    peak = found.one(attention="softmax", mode="plain", kind="memory", length=1024)
    output_mb = 1024 * zoo.HEADS * zoo.HEAD_DIM * 4 / 1e6
    assert peak is not None and 0.9 * output_mb < (peak.value or 0) < 40 * output_mb
    out = capsys.readouterr().out
    (line,) = [line for line in out.split("Causal padded")[1].splitlines()[:8] if line.startswith("linformer")]
    assert set(line.split()[1:]) == {NO_SUCH_FORM}


def test_tables_show_growth_and_what_is_missing(results) -> None:
    def of(kind: str, n: int, **values: Any) -> Measurement:
        return Measurement(kind=kind, attention="relu", mode="plain", length=n, unit="x", better="lower", **values)

    whole = [of("time", n, milliseconds=n / 1024) for n in (1024, 2048)]
    whole += [of("memory", 1024, value=3.0), of("memory", 2048, value=12.0)]
    whole += [of("time growth", 2048, value=2.1, low=2.0, high=2.2)]
    plain, padded, *_, growth = tables(results("zoo", *whole))
    assert list(plain.rows[0]) == ["relu", "1.00", "2.00", "2.00x (N^1.00)", "3.00", "12.0", "4.00x (N^2.00)"]
    assert set(padded.rows[0][1:]) == {"not run"}
    assert list(growth.rows[0][:3]) == ["relu", "2.10 (2.00 to 2.20)", "not run"]


def test_an_interrupted_run_goes_on(monkeypatch, tmp_path: Path) -> None:
    asked: list[str] = []

    def measurements(
        *, attentions: str, lengths: Any = (512,), repeats: int = 3, threads: int = 2
    ) -> Iterator[Measurement]:
        asked.append(attentions)
        for name in attentions.split(","):
            for kind in ("time", "memory", "growth"):
                if (name, kind, len(asked)) == ("linear", "growth", 1):
                    raise KeyboardInterrupt
                yield Measurement(kind=kind, attention=name, length=512, unit="x", better="lower", value=1.0)

    monkeypatch.setattr(zoo, "measurements", measurements)
    target = tmp_path / "zoo.json"
    words = ["bench", "attention", "--attentions", "relu,linear,spe", "--json", str(target)]
    words += ["--threads", str(torch.get_num_threads())]
    assert cli.main(words) == cli.EXIT_INTERRUPTED
    assert {m.attention for m in read_results(target).measurements} == {"relu"}  # what is complete, and nothing else

    assert cli.main([*words, "--resume"]) == 0
    assert asked == ["relu,linear,spe", "linear,spe"]
    found = [(m.attention, m.kind) for m in read_results(target).measurements]
    assert found == [(name, kind) for name in ("relu", "linear", "spe") for kind in ("time", "memory", "growth")]
    assert cli.main([*words, "--resume", "--lengths", "1024,2048"]) == cli.EXIT_USAGE


def test_peak_memory_of_the_zoo_is_that_of_a_quadratic_matrix() -> None:
    """A mechanism that forms an N x N matrix per head is caught with it, at every length in one process."""
    lengths = [2048, 512, 1024]  # the longest first: what it leaves behind must not show in the next
    arguments = {"name": "synthesizer", "modes": ["plain"], "lengths": lengths}
    peaks = measure.in_fresh_process("cosformer.bench.zoo:peaks", 1, **arguments)["plain"]
    found = dict(zip(lengths, peaks, strict=True))
    for n, peak in found.items():
        assert 0.9 * zoo.HEADS * n**2 * 4 < peak < 5 * zoo.HEADS * n**2 * 4
    assert math.log2(found[2048] / found[1024]) > 1.7
