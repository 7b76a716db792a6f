"""The documentation keeps its word: its code runs, its commands parse, its pictures are current, its site builds."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import own_data_imdb, predict_throughput
from cosformer import cli
from cosformer.attention import ATTENTIONS
from cosformer.commands.bench import BENCHES
from cosformer.commands.train import parse as parse_training
from cosformer.recipes.general import GENERAL
from studies.cosformer2022 import __main__ as study
from studies.cosformer2022.__main__ import TARGETS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {str(page.relative_to(DOCS)): page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
SHELLS = ("console", "bash", "sh")


def blocks(text: str, *languages: str) -> list[str]:
    names = "|".join(languages)
    return re.findall(rf"^```(?:{names})\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


MODULES = {"studies.cosformer2022": study.build_parser, "benchmarks": benchmarks.build_parser}


def commands(text: str) -> list[list[str]]:
    """The words after ``cosformer`` of every command on a page, in blocks and in the running text, but for those that
    measured something at the commit which is named beside them. Commands of a clone begin with their module's name."""
    text = re.sub(r"Measured with `[^`]*`", "", text)
    lines = [line for block in blocks(text, *SHELLS) for line in block.replace("\\\n", " ").splitlines()]
    inline = re.findall(
        r"`((?:cosformer|torchrun|python -m) [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    )
    found = []
    for line in (*lines, *inline):
        words = shlex.split(line.replace("…", "..."), comments=True)
        words = words[: words.index(">")] if ">" in words else words  # the shell's part
        if words[:1] == ["torchrun"] and "cosformer" in words:
            words = words[words.index("cosformer") :]
        if words[:1] == ["cosformer"] and len(words) > 1:
            found.append(words[1:])
        elif words[:2] == ["python", "-m"] and words[2] in MODULES:
            found.append(words[2:])
    return found


COMMANDS = [(page, words) for page, text in PAGES.items() for words in commands(text)]


TUTORIAL = "tutorial.md"
# a training of the tutorial in seconds
TINY = (
    "--quiet --train.steps 4 --train.eval-every 4 --train.save-every 4 --data.options.max_bytes 500000 "
    "--data.eval-rows 8"
)


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if blocks(text, "python") and page != TUTORIAL])
@pytest.mark.usefixtures("own_tables")
def test_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page, one after the other, as a reader would paste them."""
    monkeypatch.setenv("COSFORMER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks(PAGES[page], "python"):
        exec(compile(block, f"docs/{page}", "exec"), namespace)


@pytest.mark.slow
def test_the_tutorial_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands and its code in the order of the page, with shorter trainings."""
    monkeypatch.setenv("COSFORMER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    trained = 0
    for language, block in re.findall(r"^```(python|bash)\n(.*?)^```", PAGES[TUTORIAL], re.DOTALL | re.MULTILINE):
        if language == "python":
            exec(compile(block, f"docs/{TUTORIAL}", "exec"), namespace)
            continue
        for words in commands(f"```bash\n{block}```"):
            trained += words[0] == "train"
            assert cli.main([*words, *(TINY.split() if words[0] == "train" else ())]) == 0, words
    assert trained >= 3 and (tmp_path / "report.html").stat().st_size > 0


@pytest.mark.slow
def test_the_torchrun_line_works(tmp_path: Path) -> None:
    """The one that needs no GPU, word by word; it trains for seconds."""
    (line,) = [
        x for x in PAGES["how-to/cluster.md"].splitlines() if x.startswith("torchrun") and "lm-stdlib-small" in x
    ]
    words = [sys.executable, "-m", "torch.distributed.run", *shlex.split(line)[1:], *TINY.split()]
    # PET_STANDALONE: a free port instead of a fixed one
    environment = os.environ | {"PET_STANDALONE": "1", "COSFORMER_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "runs" / "two" / "result.json").read_text())
    assert result["processes"] == 2 and result["steps"] == 4


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[f"{page}: {' '.join(words)}" for page, words in COMMANDS])
def test_commands_parse(page: str, words: list[str]) -> None:
    if words[0] in MODULES:
        MODULES[words[0]]().parse_args(words[1:])
        return
    args = cli.build_parser(words[0]).parse_args(words)
    assert args.command == words[0]
    # words in capitals stand for what the reader puts there
    general = words[0] == "train" and args.recipe in GENERAL  # reads the files; test_own_data_page.py runs these
    if words[0] == "train" and args.recipe and args.recipe.islower() and not general and "--help" not in args.rest:
        parse_training(args.recipe, args.rest)


def test_every_command_is_spoken_of() -> None:
    missing = set(cli.COMMANDS) - {words[0] for _, words in COMMANDS}
    assert not missing, f"no page shows: {', '.join(sorted(missing))}"
    missing = {*BENCHES, *benchmarks.BENCHES} - {
        words[1] for _, words in COMMANDS if words[0] in ("bench", "benchmarks")
    }
    assert not missing, f"no page shows the benchmarks: {', '.join(sorted(missing))}"
    missing = {target for target in TARGETS if f"`{target}`" not in PAGES["how-to/reproduce.md"]}
    assert not missing, f"docs/how-to/reproduce.md does not name: {', '.join(sorted(missing))}"


# marker -> the benchmark that fills it, and the file with its results
MEASURED = {"faster from": "attention", "speed": "attention"}
MEASURED |= {f"bench {name}": name for name in (*BENCHES, *benchmarks.BENCHES)}
MARKED = [
    (document, marker)
    for document in (ROOT / "README.md", *(DOCS / page for page in PAGES))
    for marker in re.findall(r"<!-- ([\w ]+):start -->", document.read_text(encoding="utf-8"))
    if marker in MEASURED
]


@pytest.mark.parametrize(
    ("document", "marker"), MARKED, ids=[f"{document.name}: {marker}" for document, marker in MARKED]
)
def test_measured_tables_are_those_of_the_committed_results(document: Path, marker: str, tmp_path: Path) -> None:
    """What the command writes between the markers is what stands there."""
    bench = MEASURED[marker]
    results, copy, page = (
        DOCS / "results" / f"{bench}.json",
        tmp_path / document.name,
        document.read_text(encoding="utf-8"),
    )
    copy.write_text(page, encoding="utf-8")
    words = [bench, "--read", str(results), "--into", str(copy)]
    assert (benchmarks.main(words) if bench in benchmarks.BENCHES else cli.main(["bench", *words])) == 0
    program = "python -m benchmarks" if bench in benchmarks.BENCHES else "cosformer bench"
    command = f"{program} {bench} --read {results.relative_to(ROOT)} --into {document.relative_to(ROOT)}"
    assert copy.read_text(encoding="utf-8") == page, f"run: {command}"


@pytest.mark.parametrize(
    ("module", "page", "results"),
    [(own_data_imdb, "own_data.md", "own_data.json"), (predict_throughput, "how-to/predict.md", "predict.json")],
)
def test_pages_show_the_results_of_benchmarks_of_own_data(module: Any, page: str, results: str) -> None:
    shown = PAGES[page].split(f"<!-- {module.MARKER}:start -->\n")[1].split(f"\n<!-- {module.MARKER}:end -->")[0]
    file = DOCS / "results" / results
    if not file.exists():
        assert shown.endswith("Not run yet.")
        return
    assert shown == module.block(json.loads(file.read_text(encoding="utf-8")))


def test_speed_is_spoken_of_where_readers_look() -> None:
    marked = {(document.name, marker) for document, marker in MARKED}
    assert marked >= {("speed.md", f"bench {name}") for name in ("attention", "train", "generate")}
    assert marked >= {(name, "faster from") for name in ("README.md", "index.md", "speed.md", "when_not.md")}


def test_every_record_is_shown_by_its_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    records = [
        path for path in (DOCS / "results").glob("*.json") if '"measurements": [' in path.read_text(encoding="utf-8")
    ]
    assert len(records) >= 10
    for path in records:
        assert cli.main(["bench", "attention", "--read", str(path), "--markdown"]) == 0
        assert "| ---: |" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(path.name for path in (DOCS / "images").glob("*.svg")))
def test_pictures_are_current(name: str) -> None:
    draw = runpy.run_path(str(DOCS / "images" / "draw.py"))["PICTURES"]
    drawn = draw[name]()
    assert (DOCS / "images" / name).read_bytes() == drawn, "run: make pictures"
    assert ElementTree.fromstring(drawn).get("aria-label")


def test_the_picture_of_the_matrices_has_every_attention_and_its_sign() -> None:
    from matplotlib import image

    draw = runpy.run_path(str(DOCS / "attention" / "draw.py"))
    assert set(draw["OPTIONS"]) <= set(ATTENTIONS)
    committed = DOCS / "attention" / "matrices.png"
    # the same panels in the same places; fonts and random numbers may differ between machines
    assert image.imread(BytesIO(draw["picture"]())).shape == image.imread(committed).shape, "run: make pictures"
    assert committed.stat().st_size < 400_000
    pixels = image.imread(BytesIO(draw["picture"](["cosformer", "identity"])))[..., :3]
    blue, red = (pixels[..., 2] > pixels[..., 0] + 0.3), (pixels[..., 0] > pixels[..., 2] + 0.3)
    half = pixels.shape[1] // 2
    assert blue[:, :half].mean() > 0.05 and red[:, :half].mean() == 0  # cosformer has no negative weight
    assert red[:, half:].mean() > 0.005


def test_every_picture_is_written() -> None:
    pictures = runpy.run_path(str(DOCS / "images" / "draw.py"))["PICTURES"]
    assert set(pictures) == {path.name for path in (DOCS / "images").glob("*.svg")}


def test_the_map_has_every_layer() -> None:
    source = ROOT / "src" / "cosformer"
    folders = [path.parent.relative_to(source) for path in source.rglob("__init__.py") if path.parent != source]
    missing = [f"{folder}/" for folder in folders if f"`{folder}/`" not in PAGES["architecture.md"]]
    assert not missing, f"docs/architecture.md does not say what these are: {', '.join(missing)}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; any warning fails (--quiet would hide warnings from mkdocs's count)."""
    if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
        pytest.skip("mkdocs is not installed: pip install 'cosformer[docs]'")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return out


def test_the_site_builds_without_a_warning_and_has_every_page(site: Path) -> None:
    for page in PAGES:
        assert (site / page).with_suffix(".html").exists(), page


def test_the_site_fetches_nothing(site: Path) -> None:
    """Links may lead out; whatever a browser loads by itself is in the folder."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"?([^\">\s]+)", text)
        loaded += re.findall(r"<link\b[^>]*\bhref=\"?([^\">\s]+)", text)
        assert not [url for url in loaded if re.match(r"(https?:)?//", url)], page
        assert loaded


def test_formulas_are_drawn_by_the_browser(site: Path) -> None:
    text = (site / "explanation" / "mathematics.html").read_text(encoding="utf-8")
    assert text.count("<math") > 20 and 'display="block"' in text
    for page in site.rglob("*.html"):
        assert "arithmatex" not in page.read_text(encoding="utf-8"), page


def test_the_reference_holds_the_public_names(site: Path) -> None:
    import cosformer

    text = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    for name, module in cosformer._HOME.items():
        if name != "ATTENTIONS":  # a table; `cosformer list attentions` prints it
            assert f'id="{module}.{name}"' in text, name
    for name in cli.COMMANDS:
        assert f"usage: cosformer {name}" in text, name


def test_the_losses_of_multiscale_are_those_of_its_records() -> None:
    runs = [json.loads(line) for line in (DOCS / "attention" / "multiscale.jsonl").read_text().splitlines()]
    page = (DOCS / "attention" / "multiscale.md").read_text()
    for recipe, width in (("evidence-lm", 0), ("evidence-lm", 4), ("evidence-mlm", 0)):
        losses = [run["test_loss"] for run in runs if (run["recipe"], run["short_convolution"]) == (recipe, width)]
        assert len(losses) == 3 and f"**{sum(losses) / 3:.3f}**" in page
