"""The page from made-up results: each number where it belongs, what is missing said so, what is broken named."""

import base64
import json
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from cosformer.cli import main
from cosformer.extras import MissingExtra
from cosformer.json_files import write_lines
from cosformer.report.html import Html
from cosformer.report.page import SECTIONS, write_report
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


def run_lines(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (results / "runs.jsonl").read_text().splitlines()]


def add_runs(results: Path, *lines: dict[str, Any]) -> None:
    write_lines(results / "runs.jsonl", [*run_lines(results), *lines])


def page_of(tmp_path: Path, runs: list[Path], results: Path | None) -> tuple[Page, list[str]]:
    out = tmp_path / "out" / "report.html"
    problems = write_report(out, runs, results)
    return Page(out), problems


def test_a_whole_page(results: Path, run: Path, tmp_path: Path) -> None:
    page, problems = page_of(tmp_path, [run], results)
    assert problems == [] and "skipped" not in page.texts["Summary"] and '<div class="skipped">' not in page.source
    assert page.headings == list(SECTIONS)
    assert {link.removeprefix("#") for link in page.links} == page.ids and len(page.links) == len(SECTIONS)
    # 2 of the operator, 2 of the zoo, 4 of the text model, 2 of figure 1, 8 of curves, 2 of figure 3
    assert len(page.images) == 2 + 2 + 4 + 2 + 8 + 2
    assert all(image["src"].startswith("data:image/") and len(image["alt"]) > 40 for image in page.images)  # pyright: ignore


def test_the_numbers_are_those_of_the_files(results: Path, run: Path, tmp_path: Path) -> None:
    page, _ = page_of(tmp_path, [run], results)
    # seeds 20, 21, 22: mean 21, standard error 1/sqrt(3)
    assert page.row("cosFormer", "21.00 ± 0.58 / 23.5")[2] == "21.00 ± 0.58 / 23.1"
    assert page.row("Transformer", "not run / 24.5")[2] == "31.5 (one seed)* / 26.2"  # it did not learn
    assert page.row("ReLU, no re-weighting", "2.125 (one seed) / 1.993")[2:] == ["2.125 (one seed) / -"]
    assert page.row("cosFormer", "not run / 89.26")[2] == "81.25 (one seed) / 91.05"
    assert page.row("cosFormer", "37.50 (one seed) / 37.90")[2] == "not run / 63.41"
    assert "12.5× faster than softmax, causal, 4,096 tokens" in re.sub(r"\s+", " ", page.texts["Summary"])
    assert "3×10⁻¹⁶" in page.texts["Summary"] and "1 of 2" in page.texts["Summary"]
    assert page.row("causal, padded")[1:] == ["chunked", "float64", "3e-16", "4e-15", "yes"]
    assert page.row("local", "a package")[2:] == ["12.5 (12.0 to 13.0)"]
    assert ["cosFormer", "4.625 ± 0.011", "3"] in page.rows and "0.125 better" in page.texts["Claims"]
    assert page.texts["Claims"].count("not run") == 1
    environment = page.texts["Environment and commands"]
    assert "a made-up CPU" in environment
    assert "cosformer train lm-small --model.attention softmax" in page.texts["Runs"]


def test_alt_texts_hold_the_data(results: Path, run: Path, tmp_path: Path) -> None:
    page, _ = page_of(tmp_path, [run], results)
    assert "cosformer: from 4.000 at step 50 to 3.000 at step 100 (mean of 3 seeds)." in page.alts
    assert "softmax: from 4.000 at step 50 to 3.000 at step 100 (one seed)." in page.alts
    assert "softmax: out of memory at 4,000." in page.alts and "cosformer: 1 at 1,000, 0.5 at 2,000." in page.alts
    circle = "accuracy, mean of the tasks (%) 37.5, 0.5 training steps per second at 2,000, 200 MB."
    assert f"cosformer: {circle}" in page.alts
    assert "cosFormer: 8 by 8, 100% of the weight within 0 positions of the diagonal" in page.alts


def test_without_anything_one_folded_list_says_what_was_not_run(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    page, problems = page_of(tmp_path, [], empty)
    assert problems == [] and page.headings == ["Summary"] and "not run" in page.texts["Summary"]
    assert page.rows == [] and page.source.count("<details>") == 1
    for heading in list(SECTIONS)[1:-1]:
        assert re.search(f"<li>{heading}: <code>(cosformer|python -m studies.cosformer2022) ", page.source), heading


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
        assert f"recipe lm-stdlib-small, {label}, mean" in page.source
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
    assert "2 finished, 1 diverged, 1 stopped, 1 killed, 1 failed, 1 unknown" in page.texts["Summary"]


def test_a_model_of_bytes_is_judged_in_bits_and_never_beside_the_paper_s_words(tmp_path: Path) -> None:
    made_up.one(tmp_path / "runs")
    page, _ = page_of(tmp_path, [tmp_path / "runs"], None)
    value = read_scores(tmp_path / "runs" / "first", "bits_per_byte")
    assert f"cosformer reaches {value:.3f} bits per byte on the test split (one seed)" in page.texts["Summary"]
    assert page.row("ours")[1:] == ["valid, bits per byte", "test, bits per byte"]
    assert page.row("cosFormer")[2] == f"{value:.3f} (one seed)"
    assert "23.5" not in page.source and not re.search(r"\d{6,}\.\d", "".join(page.texts.values()))


def test_each_run_has_a_fold_with_its_command_and_settings(tmp_path: Path) -> None:
    made_up.one(tmp_path / "runs")
    page, _ = page_of(tmp_path, [tmp_path / "runs"], None)
    assert "<summary>first: lm-stdlib-small, cosformer, seed 0</summary>" in page.source
    assert "cosformer train lm-stdlib-small --model.attention cosformer --train.seed 0" in page.texts["Runs"]
    assert page.row("train.lr")[1] == "0.001" and page.row("data.options.max_bytes")[1] == "4000000"


def test_broken_files_are_named_and_the_rest_stands(results: Path, run: Path, tmp_path: Path) -> None:
    (results / "torn.json").write_text('{"measurements": [')
    (results / "other.json").write_text("[1, 2]")
    (results / "zoo.json").write_text('{"benchmark": "zoo", "measurements": [{"kind": "time", "surprise": 1}]}')
    ledger = json.loads((results / "ledger.json").read_text())
    ledger["claims"].append({"key": "broken"})
    (results / "ledger.json").write_text(json.dumps(ledger))
    with (results / "runs.jsonl").open("a") as file:
        file.write('{"recipe": "torn\n{"recipe": "lm-small"}\n')
    with (run / "metrics.jsonl").open("a") as file:
        file.write("not JSON\n")
    page, problems = page_of(tmp_path, [run, tmp_path / "nothing"], results)
    wanted = ["nothing is not a run", "metrics.jsonl line 3", "runs.jsonl line 8", "runs.jsonl line 9"]
    wanted += ["torn.json", "other.json", "zoo.json cannot be used"]
    wanted += ["claim 3 of the ledger cannot be shown (KeyError: 'outcome')"]
    assert len(problems) == len(wanted)
    for words in wanted:
        assert sum(words in problem for problem in problems) == 1, (words, problems)
    assert page.source.count("skipped: ") == len(wanted)
    assert page.headings == list(SECTIONS) and "1 of 2" in page.texts["Summary"]
    assert len(page.images) == 2 + 4 + 2 + 8 + 2


def test_a_run_in_both_places_counts_once_and_no_other_is_dropped(results: Path, run: Path, tmp_path: Path) -> None:
    scores = {"word_perplexity": 31.5, "loss": 3.45}
    again = run_lines(results)[0] | {"attention": "softmax", "scores": {"test": scores}}
    other = again | {"scores": {"test": {"word_perplexity": 41.5, "loss": 3.55}}}
    add_runs(results, again)
    page, _ = page_of(tmp_path, [run], results)
    assert page.row("Transformer", "not run / 24.5")[2] == "31.5 (one seed)* / 26.2"
    add_runs(results, other)
    page, _ = page_of(tmp_path, [run], results)
    assert page.row("Transformer", "not run / 24.5")[2] == "36.5 ± 5.0* / 26.2"


def test_what_was_run_comes_first_and_then_the_paper_s_rows(results: Path, run: Path, tmp_path: Path) -> None:
    page, _ = page_of(tmp_path, [run], results)
    start = next(i for i, row in enumerate(page.rows) if row[:2] == ["ours / paper", "valid"])
    names = [row[0] for row in page.rows[start + 1 : start + 5]]
    assert names == ["Transformer", "cosFormer", "Linear Trans.", "RFA-Gaussian"]


def test_figure_1_averages_over_what_all_of_its_circles_have(results: Path, tmp_path: Path) -> None:
    add_runs(results, run_lines(results)[-2] | {"recipe": "lra-image-small", "scores": {"test": {"accuracy": 0.9}}})
    page, problems = page_of(tmp_path, [], results)
    assert problems == [] and "cosformer: accuracy, mean of the tasks (%) 37.5" in page.alts


def test_the_summary_counts_the_verdicts(results: Path, tmp_path: Path) -> None:
    ledger = json.loads((results / "ledger.json").read_text())
    ledger["claims"] += [ledger["claims"][1], ledger["claims"][0] | {"outcome": "undecided"}]
    (results / "ledger.json").write_text(json.dumps(ledger))
    page, _ = page_of(tmp_path, [], results)
    words = re.sub(r"\s+", " ", page.texts["Summary"])
    assert "1 of 4 claims of the paper hold here (2 not run, 1 undecided)" in words


def test_maps_that_reproduce_drew_beside_the_runs_are_shown(results: Path, run: Path, tmp_path: Path) -> None:
    page, _ = page_of(tmp_path, [run.parent], None)
    assert "Attention maps" not in page.headings and "<li>Attention maps: " in page.source
    (run.parent / "reproduce").mkdir()
    (results / "figure3.json").rename(run.parent / "reproduce" / "figure3.json")
    page, problems = page_of(tmp_path, [run.parent], None)
    assert problems == []
    assert "How often a key is among those" in page.texts["Attention maps"]


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


def test_a_run_under_way_does_not_cut_the_mean_of_the_finished_ones(results: Path, tmp_path: Path) -> None:
    half = {"seed": 7, "status": "running", "train_loss": [[50, 9.0]], "valid_loss": [], "scores": {}}
    half = run_lines(results)[0] | half
    add_runs(results, half, half | {"attention": "linear"})
    page, _ = page_of(tmp_path, [], results)
    assert "cosformer: from 4.000 at step 50 to 3.000 at step 100 (mean of 3 seeds)." in page.alts
    assert "linear: from 9.000 at step 50 to 9.000 at step 50 (one seed)." in page.alts


def test_each_recipe_says_what_it_is_and_each_machine_is_there_once(results: Path, tmp_path: Path) -> None:
    page, _ = page_of(tmp_path, [], results)
    assert page.source.count("listops: lra-listops-small, accuracy in percent. 4 layers.") == 1
    document = json.loads((results / "peers.json").read_text())
    document["machine"]["kernels"] = "made by hand"
    (results / "peers.json").write_text(json.dumps(document))
    page, _ = page_of(tmp_path, [], results)
    assert sum(row == ["cpu", "another CPU"] for row in page.rows) == 1 and ["kernels", "made by hand"] in page.rows


def test_without_matplotlib_the_tables_stand(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(extra: str, package: str) -> None:
        raise MissingExtra(f"get it with:\n    pip install 'cosformer[{extra}]'")

    monkeypatch.setattr("cosformer.report.figure.require", missing)
    page, problems = page_of(tmp_path, [], results)
    (problem,) = problems
    assert "the pictures cannot be drawn" in problem and "cosformer[plot]" in problem
    assert page.images == [] and page.row("cosFormer", "21.00 ± 0.58 / 23.5")


def test_hostile_names_stay_text(results: Path, tmp_path: Path) -> None:
    hostile = {"attention": '<script>alert("x")</script>', "note": "</table><b>&", "command": "a && b <c>"}
    write_lines(results / "runs.jsonl", [run_lines(results)[0] | hostile])
    page, problems = page_of(tmp_path, [], results)
    assert problems == [] and page.source.count("<script") == 1 and '<script>alert("x")</script>' in str(page.rows)


def test_it_needs_no_other_file_and_is_written_in_one_piece(results: Path, run: Path, tmp_path: Path) -> None:
    page, _ = page_of(tmp_path, [run], results)
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page.source) and "url(" not in page.source
    assert page.source.count("<script>") == page.source.count("<script") == 1 and "@import" not in page.source
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]


def test_a_failed_write_leaves_the_old_page(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out" / "report.html"
    write_report(out, [], results)
    before = out.read_text()

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        write_report(out, [], None)
    assert out.read_text() == before and [path.name for path in out.parent.iterdir()] == ["report.html"]


def test_the_command(
    results: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "page.html"
    assert main(["report", str(run.parent), str(tmp_path / "no"), "--results", str(results), "-o", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == str(out) and "skipped: " in captured.err and str(tmp_path / "no") in captured.err
    assert "31.5 (one seed)" in out.read_text()
    monkeypatch.chdir(tmp_path)  # where there is a folder runs
    assert main(["report"]) == 0 and "31.5 (one seed)" in (tmp_path / "report.html").read_text()
    monkeypatch.chdir(tmp_path / "new")
    assert main(["report"]) == 2 and "nothing to report on" in capsys.readouterr().err
    assert main(["report", str(run), "-o", str(tmp_path)]) == 2 and "is a folder" in capsys.readouterr().err


# --- one table as text, Markdown and HTML, and its way into a document


def test_the_same_cells_in_every_rendering() -> None:
    table = Table("Times.", ["attention", "ms"], [["cosformer", "1.0"], ["a|b", "<2>"]])
    text = ["attention   ms", "---------  ---", "cosformer  1.0", "a|b        <2>"]
    assert table.text.splitlines() == ["Times.", "", *text]
    markdown = ["| attention | ms |", "| --- | ---: |", "| cosformer | 1.0 |", r"| a\|b | <2> |"]
    assert table.markdown.splitlines() == ["Times.", "", *markdown]
    assert isinstance(table.html, Html) and "&lt;2&gt;" in table.html and "<td>1.0</td>" in table.html
    assert Table("", ["a", "b"], [["c", "d"]], numeric=False).markdown == "| a | b |\n| --- | --- |\n| c | d |"


def test_a_block_goes_between_its_markers() -> None:
    text = "a\n<!-- x:start -->\n{}\n<!-- x:end -->\nb"
    assert insert(text.format("old"), "x", "new") == text.format("new")
    within = insert("from <!-- x:start -->?<!-- x:end --> on", "x", "64")
    assert within == "from <!-- x:start -->64<!-- x:end --> on" == insert(within, "x", "64")
    for text in ("none", "<!-- x:start --><!-- x:start --><!-- x:end -->"):
        with pytest.raises(ValueError, match="once each"):
            insert(text, "x", "new")
