"""The page from made-up results: each number where it belongs, what is missing said so, what is broken named."""

import base64
import json
import re
import statistics
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cosformer.bench.runner import tables
from cosformer.cli import main
from cosformer.extras import MissingExtra
from cosformer.json_files import write_lines
from cosformer.report.page import write_report
from cosformer.report.table import Table, insert
from report import made_up


class Page(HTMLParser):
    """Headings with their text, images, tables as rows of words, ids and links."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.headings: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.rows: list[list[str]] = []
        self.texts: dict[str, str] = {}
        self.ids: set[str] = set()
        self.links: list[str] = []
        self._open: list[str] = []
        self.feed(self.source)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {values["id"] or ""} if "id" in values else set()
        if tag == "img":
            self.images.append(values)
        if tag == "a":
            self.links.append(values["href"] or "")
        if tag == "h2":
            self.headings.append("")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in ("img", "meta", "link"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "h2":
            self.headings[-1] += data
        if "td" in self._open or "th" in self._open:
            self.rows[-1][-1] += (" " if self._open[-1] == "small" else "") + data
        if self.headings and "style" not in self._open:
            self.texts[self.headings[-1]] = self.texts.get(self.headings[-1], "") + data + " "

    @property
    def alts(self) -> str:
        return " ".join(str(image["alt"]) for image in self.images)

    def row(self, *beginning: str) -> list[str]:
        """The one row that begins so."""
        found = [row for row in self.rows if tuple(row[: len(beginning)]) == beginning]
        assert len(found) == 1, (beginning, found)
        return found[0]


def page_of(tmp_path: Path, runs: list[Path], results: Path | None) -> tuple[Page, list[str]]:
    out = tmp_path / "out" / "report.html"
    problems = write_report(out, runs, results, tables)
    return Page(out), problems


SECTIONS = ["Summary", "Learning curves", "Scores", "Runs", "Speed and memory", "Attention maps", "Exactness"]
SECTIONS += ["Environment and commands"]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """cosFormer with three seeds at 3.0, 3.1 and 3.2, softmax with one at 4.0, which did not learn; with maps."""
    folder = tmp_path / "runs"
    for seed, (attention, loss) in enumerate(
        [("cosformer", 3.0), ("cosformer", 3.1), ("cosformer", 3.2), ("softmax", 4.0)]
    ):
        metrics = [{"kind": "train", "step": step, "loss": loss + 100 / step} for step in (50, 100)]
        result = {"scores": {"test": {"loss": loss}}, "learned": {"test": attention == "cosformer"}, "baseline": {}}
        info = {"seconds": 60.0, "command": f"cosformer train lm-small --model.attention {attention}"}
        experiment = made_up.experiment("lm-small", attention, seed)
        made_up.write_run(
            folder / f"{attention}-{seed}", experiment, metrics, result, machine={"cpu": "a made-up CPU"}, **info
        )
    made_up.maps(folder / "cosformer-0")
    return folder


def test_a_whole_page(results: Path, runs: Path, tmp_path: Path) -> None:
    page, problems = page_of(tmp_path, [runs], results)
    assert problems == [] and '<div class="skipped">' not in page.source
    assert page.headings == SECTIONS
    assert {link.removeprefix("#") for link in page.links} == page.ids and len(page.links) == len(SECTIONS)
    # 2 of the operator, 2 of the zoo, 1 of training curves, 2 layers of maps
    assert len(page.images) == 2 + 2 + 1 + 2
    assert all(str(image["src"]).startswith("data:image/") and len(str(image["alt"])) > 40 for image in page.images)


def test_the_numbers_are_those_of_the_files(results: Path, runs: Path, tmp_path: Path) -> None:
    page, _ = page_of(tmp_path, [runs], results)
    summary = re.sub(r"\s+", " ", page.texts["Summary"])
    assert "4 runs of 1 recipe with 2 attentions: 4 finished. 4 min in all." in summary
    assert "lm-small : cosformer reaches 3.100 ± 0.058 nats of loss on the test split (3 seeds), 0.900 nats" in summary
    assert "12.5× faster than softmax, causal, 4,096 tokens" in summary and "3e-16" in summary
    assert page.row("cosformer", "3.100 ± 0.058")[2:] == ["3", "3 of 3"]
    assert page.row("softmax", "4.000*")[2:] == ["1", "0 of 1"]
    assert [row[0] for row in page.rows if row[3:4] in (["3.000"], ["4.000*"])] == ["cosformer-0", "softmax-3"]
    assert page.row("causal, padded")[1:] == ["chunked", "float64", "3e-16", "4e-15", "yes"]
    assert page.row("local causal forward, against a package")[1] == "12.5 (12.0 to 13.0) times faster"
    assert "cosformer train lm-small --model.attention softmax" in page.texts["Runs"]
    assert ["cpu", "a made-up CPU"] in page.rows and sum(row == ["cpu", "another CPU"] for row in page.rows) == 1
    assert "cosformer: from 5.100 at step 50 to 4.100 at step 100 (mean of 3 seeds)." in page.alts
    assert "softmax: 105 at 1K, 1678 at 4K." in page.alts


def test_setups_on_own_files_are_called_by_the_file(tmp_path: Path) -> None:
    result = {"scores": {"test": {"loss": 3.0}}, "learned": {"test": True}, "baseline": {}}
    for name, layers, sha in (("a", 2, "0" * 64), ("b", 4, "1" * 64)):
        made = made_up.experiment("lm", "cosformer", layers=layers)
        data = replace(made.data, options={"path": f"/home/me/{name}.txt", "sha256": sha})
        made_up.write_run(tmp_path / "runs" / name, replace(made, data=data), [], result)
    page, _ = page_of(tmp_path, [tmp_path / "runs"], None)
    assert page.row("run", "attention")[2:4] == ["path", "seed"], "the score stays in sight"
    assert "lm, path a.txt : cosformer reaches" in re.sub(r"\s+", " ", page.texts["Summary"])
    assert "0" * 9 not in re.sub(r"<details>.*?</details>", "", page.source, flags=re.DOTALL)


def test_more_findings_than_fit_are_folded(tmp_path: Path) -> None:
    for i in range(10):
        result = {"scores": {"test": {"loss": 3.0}}, "learned": {"test": True}, "baseline": {}}
        made_up.write_run(tmp_path / "runs" / str(i), made_up.experiment(f"lm-{i}", "cosformer"), [], result)
    page, problems = page_of(tmp_path, [tmp_path / "runs"], None)
    assert problems == [] and "<summary>2 more</summary>" in page.source
    assert page.source.count(" reaches 3.000 nats of loss") == 10


def test_without_anything_one_folded_list_says_what_was_not_run(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    page, problems = page_of(tmp_path, [], empty)
    assert problems == [] and page.headings == ["Summary"] and "not run" in page.texts["Summary"]
    assert page.rows == [] and page.source.count("<details>") == 1
    for heading in SECTIONS[1:-1]:
        assert f"<li>{heading}: <code>cosformer " in page.source


def test_a_model_of_bytes_is_judged_in_bits(tmp_path: Path) -> None:
    made_up.one(tmp_path / "runs")
    page, _ = page_of(tmp_path, [tmp_path / "runs"], None)
    value = read_scores(tmp_path / "runs" / "first", "bits_per_byte")
    assert f"cosformer reaches {value:.3f} bits per byte on the test split (one seed)" in page.texts["Summary"]


def test_broken_files_are_named_and_the_rest_stands(results: Path, runs: Path, tmp_path: Path) -> None:
    (results / "torn.json").write_text('{"measurements": [')
    (results / "other.json").write_text("[1, 2]")
    (results / "zoo.json").write_text('{"benchmark": "zoo", "measurements": [{"kind": "time", "surprise": 1}]}')
    (results / "check.json").write_text('{"exactness": [{"form": "causal"}]}')
    with (runs / "softmax-3" / "metrics.jsonl").open("a") as file:
        file.write("not JSON\n")
    page, problems = page_of(tmp_path, [runs, tmp_path / "nothing"], results)
    wanted = ["nothing is not a run", "metrics.jsonl line 3", "torn.json", "other.json", "zoo.json cannot be used"]
    wanted += ["check.json cannot be shown (KeyError"]
    assert len(problems) == len(wanted) == page.source.count("skipped: ")
    for words in wanted:
        assert sum(words in problem for problem in problems) == 1, (words, problems)
    assert (
        page.headings == [heading for heading in SECTIONS if heading != "Exactness"] and len(page.images) == 2 + 1 + 2
    )


def test_runs_of_a_file_count_and_those_under_way_do_not_cut_the_mean(tmp_path: Path) -> None:
    made = {"train_loss": [[50, 4.0], [100, 3.0]], "valid_loss": []}
    lines = [made_up.run_line("lm", "cosformer", seed, {"loss": 3.0}, 5.0, **made) for seed in range(2)]
    half = {"seed": 7, "status": "running", "train_loss": [[50, 9.0]], "scores": {}}
    write_lines(tmp_path / "runs.jsonl", [*lines, lines[0] | half, lines[0] | half | {"attention": "linear"}])
    page, problems = page_of(tmp_path, [tmp_path / "runs.jsonl"], None)
    assert problems == [] and "cosformer: from 4.000 at step 50 to 3.000 at step 100 (mean of 2 seeds)." in page.alts
    assert "linear: from 9.000 at step 50 to 9.000 at step 50 (one seed)." in page.alts


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    hostile = {"note": "</table><b>&", "command": "a && b <c>"}
    write_lines(
        tmp_path / "runs.jsonl",
        [made_up.run_line("lm", '<script>alert("x")</script>', 0, {"loss": 3.0}, 5.0, **hostile)],
    )
    page, problems = page_of(tmp_path, [tmp_path / "runs.jsonl"], None)
    assert problems == [] and page.source.count("<script") == 1 and '<script>alert("x")</script>' in str(page.rows)


def test_without_matplotlib_the_tables_stand(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(extra: str, package: str) -> None:
        raise MissingExtra(f"get it with:\n    pip install 'cosformer[{extra}]'")

    monkeypatch.setattr("cosformer.report.figure.require", missing)
    page, problems = page_of(tmp_path, [], results)
    (problem,) = problems
    assert "the pictures cannot be drawn" in problem and "cosformer[plot]" in problem
    assert page.images == [] and page.row("causal, padded")


def test_every_run_is_shown_and_seeds_alone_are_averaged(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    made_up.thirty(runs)
    page, problems = page_of(tmp_path, [runs], None)
    assert problems == []
    listed = [row for row in page.rows if len(row) == 9 and row[0] != "run"]
    assert sorted(row[0] for row in listed) == sorted(path.name for path in runs.iterdir()) and len(listed) == 30
    (header,) = [row for row in page.rows if row[:2] == ["run", "attention"]]
    assert header[2:6] == ["num hidden layers", "steps", "seed", "bits per byte, test"]
    assert ["cosformer-long-1", "cosformer", "4", "800", "1"] in [row[:5] for row in listed]
    # three setups: in each one sentence, one pair of curves and one table, with three seeds a cell
    summary = re.sub(r"\s+", " ", page.texts["Summary"])
    assert "30 runs of 1 recipe with 4 attentions: 30 finished." in summary
    for label in ("num hidden layers 4, steps 400", "num hidden layers 4, steps 800", "num hidden layers 8, steps 400"):
        assert f"lm-stdlib-small, {label} : cosformer reaches " in summary
        assert f'<p class="caption">lm-stdlib-small, {label}</p>' in page.source
    assert summary.count("(3 seeds)") == 3 and len(page.images) == 6
    values = [read_scores(runs / f"cosformer-{seed}", "bits_per_byte") for seed in range(3)]
    assert f"cosformer reaches {statistics.fmean(values):.3f}"[:-1] in summary


def read_scores(run: Path, metric: str) -> float:
    return json.loads((run / "result.json").read_text())["scores"]["test"][metric]


def test_broken_runs_stand_apart_with_the_reason_and_displace_none(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    made_up.broken(runs)
    page, problems = page_of(tmp_path, [runs], None)
    assert len(problems) == 2 and "torn" in " ".join(problems) and "no-experiment" in " ".join(problems)
    (header,) = [row for row in page.rows if row[-1:] == ["reason"]]
    apart = {row[0]: row[-3:] for row in page.rows if len(row) == len(header) == 7}
    assert apart["killed"] == ["killed", "0 of 400, no checkpoint", f"no process {2**22 + 1}"]
    assert apart["out-of-memory"][0] == "failed" and "out of memory" in apart["out-of-memory"][2]
    assert apart["torn"][0] == "unknown"
    wanted = {"whole": "finished", "whole-softmax": "finished", "stopped": "stopped", "diverged": "diverged"}
    assert {row[0]: row[-3] for row in page.rows if row and row[0] in wanted} == wanted
    assert "2 finished, 1 diverged, 1 killed, 1 failed, 1 stopped, 1 unknown" in page.texts["Summary"]


def test_each_run_has_a_fold_with_its_command_and_settings(tmp_path: Path) -> None:
    made_up.one(tmp_path / "runs")
    page, _ = page_of(tmp_path, [tmp_path / "runs"], None)
    assert "<summary>first: lm-stdlib-small, cosformer, seed 0</summary>" in page.source
    assert "cosformer train lm-stdlib-small --model.attention cosformer --train.seed 0" in page.texts["Runs"]
    assert page.row("train.lr")[1] == "0.001" and page.row("data.options.max_bytes")[1] == "4000000"


def test_maps_that_visualize_kept_in_a_run_are_shown_with_tokens_and_a_scale(tmp_path: Path) -> None:
    made_up.one(tmp_path / "runs")
    page, problems = page_of(tmp_path, [tmp_path / "runs"], None)
    assert problems == [] and "first, on one text" in page.texts["Attention maps"]
    drawn = [image for image in page.images if str(image["alt"]).startswith("Layer ")]
    assert len(drawn) == 2
    svg = base64.b64decode(str(drawn[0]["src"]).partition(",")[2]).decode()
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert labels.count("d") == 2 * 2 * 3  # three d on two sides of two panels
    assert {"0", "largest of the panel"} <= set(labels)
    (tmp_path / "runs" / "first" / "maps.npz").write_bytes(b"torn")
    page, problems = page_of(tmp_path, [tmp_path / "runs"], None)
    assert len(problems) == 1 and "maps.npz cannot be shown" in problems[0]


def test_it_needs_no_other_file_and_is_written_in_one_piece(results: Path, runs: Path, tmp_path: Path) -> None:
    page, _ = page_of(tmp_path, [runs], results)
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page.source) and "url(" not in page.source
    assert page.source.count("<script>") == page.source.count("<script") == 1 and "@import" not in page.source
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]


def test_a_failed_write_leaves_the_old_page(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out" / "report.html"
    write_report(out, [], results, tables)
    before = out.read_text()

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        write_report(out, [], None, tables)
    assert out.read_text() == before and [path.name for path in out.parent.iterdir()] == ["report.html"]


def test_the_command(
    results: Path, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "page.html"
    assert main(["report", str(runs), str(tmp_path / "no"), "--results", str(results), "-o", str(out)]) == 1
    captured = capsys.readouterr()
    assert captured.out.strip() == str(out) and "skipped: " in captured.err and str(tmp_path / "no") in captured.err
    assert "3.100 ± 0.058" in out.read_text()
    monkeypatch.chdir(tmp_path)  # where there is a folder runs
    assert main(["report"]) == 0 and "3.100 ± 0.058" in (tmp_path / "report.html").read_text()
    monkeypatch.chdir(tmp_path / "new")
    assert main(["report"]) == 2 and "nothing to report on" in capsys.readouterr().err
    assert main(["report", str(runs), "-o", str(tmp_path)]) == 2 and "is a folder" in capsys.readouterr().err


# --- one table as text and Markdown, and its way into a document


def test_the_same_cells_in_every_rendering() -> None:
    table = Table("Times.", ["attention", "ms"], [["cosformer", "1.0"], ["a|b", "<2>"]])
    text = ["attention   ms", "---------  ---", "cosformer  1.0", "a|b        <2>"]
    assert table.text.splitlines() == ["Times.", "", *text]
    markdown = ["| attention | ms |", "| --- | ---: |", "| cosformer | 1.0 |", r"| a\|b | <2> |"]
    assert table.markdown.splitlines() == ["Times.", "", *markdown]
    assert Table("", ["a", "b"], [["c", "d"]], numeric=False).markdown == "| a | b |\n| --- | --- |\n| c | d |"


def test_a_block_goes_between_its_markers() -> None:
    text = "a\n<!-- x:start -->\n{}\n<!-- x:end -->\nb"
    assert insert(text.format("old"), "x", "new") == text.format("new")
    within = insert("from <!-- x:start -->?<!-- x:end --> on", "x", "64")
    assert within == "from <!-- x:start -->64<!-- x:end --> on" == insert(within, "x", "64")
    for text in ("none", "<!-- x:start --><!-- x:start --><!-- x:end -->"):
        with pytest.raises(ValueError, match="once each"):
            insert(text, "x", "new")
