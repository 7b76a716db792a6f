"""The README keeps its word: its code runs, its commands parse, its tables are current."""

import re
import shlex
from pathlib import Path

import pytest

from cosformer import cli
from cosformer.commands.train import parse as parse_training
from cosformer.lab.render.table import insert

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks("console") for line in block.splitlines()]
    inline = re.findall(r"`(cosformer [a-z][^`]*)`", README)
    return [" ".join(line.split()) for line in [*lines, *inline] if line.startswith("cosformer ")]


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.strip().splitlines()[-1])
def test_code_runs(code: str) -> None:
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("command", commands())
def test_commands_parse(command: str) -> None:
    words = shlex.split(command)[1:]
    args = cli.build_parser(words[0]).parse_args(words)
    assert args.command == words[0]
    if words[0] == "train":
        parse_training(args.recipe, args.rest)


def test_there_is_code_and_there_are_commands() -> None:
    assert len(blocks("python")) >= 2 and len(commands()) >= 6


def test_the_two_commands_come_first() -> None:
    first = blocks("console")[0].splitlines()
    assert [line.split("#")[0].strip() for line in first] == ["make demo", "make test"]
    assert README.index("make demo") < README.index("pip install")
    for target in ("demo", "test"):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_three_sentences_and_one_picture_come_first() -> None:
    head = README.split("```")[0]
    assert len(re.findall(r"!\[[^\]]+\]\(docs/images/\w+\.svg\)", head)) == 1
    prose = head.split("\n\n")[1].replace("et al.,", "et al")
    assert len(re.findall(r"\.(?=\s|$)", prose)) == 3


def test_the_code_is_short() -> None:
    lines = [
        line for line in blocks("python")[0].splitlines() if line.strip() and not line.startswith(("import", "from"))
    ]
    assert len(lines) <= 10


def test_the_table_of_attentions_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "attentions", "--markdown"]) == 0
    printed = capsys.readouterr().out.strip()
    assert insert(README, "attentions", printed) == README, "put the output of the command between the markers"


def test_verdicts_are_those_of_the_committed_results(tmp_path: Path) -> None:
    lines = ROOT / "docs" / "results" / "runs.jsonl"
    if not lines.exists():
        assert "<!-- results:start -->\nNot run yet.\n<!-- results:end -->" in README
        return
    copy = tmp_path / "README.md"
    copy.write_text(README, encoding="utf-8")
    words = ["reproduce", "ledger", "--show", "--from", str(lines), "--docs", str(ROOT / "docs"), "--into", str(copy)]
    assert cli.main(words) == 0
    assert copy.read_text(encoding="utf-8") == README, (
        "run: cosformer reproduce ledger --show --from docs/results/runs.jsonl --into README.md"
    )


def test_platforms_are_named() -> None:
    assert "Linux x86-64" in README and "Python 3.11" in README and "Not run on a GPU" in README


def test_links_to_files_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target
    for path in re.findall(r"`(src/cosformer/[\w/.]*)`", README):
        assert (ROOT / path).exists(), path


def test_the_map_goes_one_way() -> None:
    """Every row of the map imports only from rows above it, or from its own."""
    package = ROOT / "src" / "cosformer"
    cells = re.findall(r"^\| (`src/cosformer/[^|]+) \|", README, re.MULTILINE)
    rows = [[name.removeprefix("src/cosformer/") for name in re.findall(r"`([^`]+)`", cell)] for cell in cells]
    place = {name.removesuffix(".py"): i for i, names in enumerate(rows) for name in names}
    assert len(rows) >= 12
    for name, i in place.items():
        files = (
            [package / f"{name}.py"] if (package / f"{name}.py").exists() else sorted((package / name).rglob("*.py"))
        )
        assert files, name
        for file in files:
            for other in re.findall(r"(?:from|import) cosformer\.(\w+)", file.read_text(encoding="utf-8")):
                assert place.get(other, 0) <= i, f"{file.relative_to(ROOT)} imports {other}, which is further down"
