"""What a user meets before any mathematics: extras, missing packages, a light import, a fast --help, the papers."""

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from cosformer import cli
from cosformer._version import __version__
from cosformer.commands.bench import BENCHES
from cosformer.extras import MissingExtra, require
from cosformer.ops.native.library import find
from cosformer.shipped import STDLIB_MODEL
from tools import versions

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HELP_SECONDS = 0.5


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=os.environ | environment)


def test_the_extras_exist() -> None:
    wanted = {"hf", "data", "train", "plot", "export", "oracles", "peers", "test", "docs", "all"}
    assert wanted <= set(PROJECT["optional-dependencies"])
    assert {re.split(r"[<>=]", name)[0] for name in PROJECT["dependencies"]} == {"torch", "numpy"}


def test_every_dependency_has_its_reason_in_the_changelog() -> None:
    reasons = re.findall(r"^- ([\w., -]+): ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    explained = {name.strip() for line in reasons for name in line.split(",")}
    needed = [
        *PROJECT["dependencies"],
        *(name for extra in PROJECT["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[<>=\[]", name)[0] for name in needed} - {"cosformer"}
    assert names <= explained, f"no reason given for {sorted(names - explained)}"


def test_a_missing_package_is_answered_with_the_pip_line() -> None:
    with pytest.raises(MissingExtra, match=re.escape("pip install 'cosformer[plot]'")):
        require("plot", "a_package_that_nobody_has")


def test_a_command_whose_extra_is_missing_prints_the_pip_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = SimpleNamespace(configure=lambda parser: None, run=lambda args: require("train", "tensorboard"))
    monkeypatch.setitem(sys.modules, "cosformer.commands.needy", command)
    monkeypatch.setitem(cli.COMMANDS, "needy", "needs an extra")
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    assert cli.main(["needy"]) == cli.EXIT_USAGE
    captured = capsys.readouterr()
    assert "pip install 'cosformer[train]'" in captured.err
    assert not captured.out


def test_a_broken_package_is_not_called_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken_package.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has"):
        require("plot", "broken_package")


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, cosformer; print(cosformer.__version__, 'torch' in sys.modules, 'numpy' in sys.modules)"
    assert run("-c", code).stdout.split() == [__version__, "False", "False"]


def test_hf_loads_little_beyond_the_model_class_of_transformers() -> None:
    """`import transformers` alone loads no model class; the first one loads accelerate, dynamo and Triton."""
    code = (
        "import sys\nfrom transformers import GenerationMixin, PreTrainedModel\nbefore = set(sys.modules)\nimport "
        "cosformer.hf\nprint(*sorted({name for name in sys.modules if name not in before}))"
    )
    added = run("-c", code).stdout.split()
    ours = [name for name in added if name.startswith("cosformer")]
    foreign = [name for name in added if name not in ours and not name.startswith("transformers.")]
    assert ours and foreign == []
    assert len(added) <= 120, f"{len(added)} modules; 90 were enough (0.17 s)"


@pytest.mark.skipif(sys.platform != "linux", reason="names of glibc's versions")
def test_one_library_serves_every_python_and_glibc_from_2_17() -> None:
    """What makes the wheel py3-none-manylinux_2_17: no symbol of Python, and no newer version of one of glibc's."""
    library, reason = find()
    assert library is not None, reason
    content = library.path.read_bytes()
    versions = {tuple(map(int, found)) for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", content)}
    assert versions and max(versions) <= (2, 17)
    assert not re.search(rb"\0_?Py[A-Z_]", content)


def test_public_names_resolve_on_first_use() -> None:
    code = "import cosformer; print([name for name in cosformer.__all__ if getattr(cosformer, name) is None])"
    done = run("-c", code)
    assert done.stdout.strip() == "[]", done.stderr
    done = run("-c", "import cosformer; cosformer.no_such_name")
    assert "no_such_name" in done.stderr and "cosformer_attention" in done.stderr


HELPS = [[], *([name] for name in cli.COMMANDS), *(["bench", name] for name in BENCHES)]


@pytest.mark.parametrize("words", HELPS, ids=lambda words: " ".join(words) or "cosformer")
def test_help_answers_at_once(words: list[str]) -> None:
    best = float("inf")
    for _ in range(7):  # the best of several: others may be using the machine
        start = time.perf_counter()
        done = run("-m", "cosformer", *words, "--help")
        best = min(best, time.perf_counter() - start)
        assert done.returncode == 0 and done.stdout.startswith("usage: cosformer"), done.stderr
        if best < HELP_SECONDS:
            return
    pytest.fail(f"--help took {best:.2f} s, more than {HELP_SECONDS} s")


def test_the_command_runs_with_torch_and_numpy_alone() -> None:
    """`cosformer check` must not need any extra: every optional package is made to fail."""
    names = {re.split(r"[<>=\[]", name)[0] for extra in PROJECT["optional-dependencies"].values() for name in extra}
    modules = {name.replace("-", "_") for name in names} - {"cosformer", "ruff", "pyright"}
    code = (
        f"import sys\nfor name in {sorted(modules)!r}: sys.modules[name] = None\n"
        "from cosformer.cli import main\nsys.exit(main(['check', '--json']))"
    )
    done = run("-c", code, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["passed"] is True


def test_pins_are_exact_and_cover_the_declared_packages() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), "every line is name==version"
    assert "torch==2.13.0" in lines
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines}
    extras = PROJECT["optional-dependencies"]
    installed = {name: extras[name] for name in extras if name not in ("peers", "trackers")}  # what `make` installs
    needed = {
        re.split(r"[<>=\[]", name)[0] for names in [PROJECT["dependencies"], *installed.values()] for name in names
    }
    assert needed - {"cosformer"} <= pinned
    ranges = [name.split(";")[0] for names in [PROJECT["dependencies"], *extras.values()] for name in names]
    assert not [name for name in ranges if "==" in name], "exact versions belong in constraints.txt"


def test_the_papers_agree_with_the_package() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text() and PROJECT["license"] == "Apache-2.0"
    assert f"version: {__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert (ROOT / "src" / "cosformer" / "py.typed").exists()


def test_a_package_index_can_follow_the_links_of_the_readme() -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "--long-description"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    links = re.findall(r"\]\(([^)]+)\)", done.stdout)
    assert all(link.startswith("https://") for link in links)
    repository = PROJECT["urls"]["Repository"]
    assert f"{repository}/raw/v{__version__}/docs/images/speed.svg" in links
    pages = [link.partition(f"{repository}/blob/v{__version__}/")[2].partition("#")[0] for link in links]
    assert (
        len([page for page in pages if page and (ROOT / page).exists()]) == len([page for page in pages if page]) > 20
    )


def test_every_file_of_the_shipped_model_is_package_data() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["cosformer"]
    package = ROOT / "src" / "cosformer"
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    files = {path for path in STDLIB_MODEL.rglob("*") if path.is_file()}
    assert files <= packed and {path.name for path in files} >= {"model.safetensors", "README.md", "result.json"}


def test_contributing_names_files_that_exist() -> None:
    for path in re.findall(r"`(src/cosformer/[\w/]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text()):
        assert (ROOT / path).exists(), f"CONTRIBUTING names {path}"


def test_hooks_are_local() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"- repo: (\S+)", text)) == {"local"}
    assert {"ruff-check", "ruff-format", "pyright"} <= set(re.findall(r"- id: (\S+)", text))


def test_the_oldest_versions_are_those_we_name() -> None:
    """The line "oldest" of `make test-versions` runs exactly the minimum versions of pyproject.toml."""
    extras = PROJECT["optional-dependencies"]
    tools = [line for line in extras["test"] if line.startswith(("pytest>", "hypothesis>"))]
    named = [*PROJECT["dependencies"], *extras["hf"], *extras["data"], *extras["train"], *tools]
    wanted = dict(line.split(">=") for line in named if ">=" in line)
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pinned.keys() == wanted.keys()
    for name, version in wanted.items():
        assert (pinned[name] + ".").startswith(version + ".") and set(pinned[name].removeprefix(version)) <= set(
            ".0"
        ), name


def test_the_table_of_versions_is_what_was_recorded() -> None:
    page = (ROOT / "docs" / "processors.md").read_text()
    shown = re.search(r"<!-- versions:start -->\n(.*)\n<!-- versions:end -->", page, re.DOTALL)
    assert shown is not None and shown[1] == versions.table(versions.RECORDS), "tools/versions.py --show"
    assert {"oldest", "torch-2.6.0", "transformers-5.4.0"} <= versions.MATRIX.keys()
