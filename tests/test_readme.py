"""The README keeps its word: its code runs, its commands parse, its tables are current."""

import re
import shlex
from pathlib import Path

import pytest

from cosformer import cli
from cosformer.commands.train import parse as parse_training
from cosformer.recipes.general import GENERAL
from cosformer.report.table import insert
from studies.cosformer2022 import __main__ as study

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks("console") for line in block.splitlines()]
    inline = re.findall(r"`((?:cosformer|python -m studies.cosformer2022) [a-z][^`]*)`", README)
    return [
        " ".join(line.split()) for line in [*lines, *inline] if line.startswith(("cosformer ", "python -m studies."))
    ]


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.strip().splitlines()[-1])
def test_code_runs(code: str) -> None:
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("command", commands())
def test_commands_parse(command: str) -> None:
    words = shlex.split(command)[1:]
    if words[0] == "-m":
        study.build_parser().parse_args(words[2:])
        return
    args = cli.build_parser(words[0]).parse_args(words)
    assert args.command == words[0]
    if words[0] == "train" and args.recipe not in GENERAL:  # those read the files
        parse_training(args.recipe, args.rest)


def test_there_is_code_and_there_are_commands() -> None:
    assert len(blocks("python")) >= 2 and len(commands()) >= 6


def test_the_table_of_attentions_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "attentions", "--markdown"]) == 0
    printed = capsys.readouterr().out.strip()
    assert insert(README, "attentions", printed) == README, "put the output of the command between the markers"


def test_verdicts_are_those_of_the_committed_results(tmp_path: Path) -> None:
    lines = ROOT / "studies" / "cosformer2022" / "results" / "runs.jsonl"
    if not lines.exists():
        assert "<!-- results:start -->\nNot run yet.\n<!-- results:end -->" in README
        return
    copy = tmp_path / "README.md"
    copy.write_text(README, encoding="utf-8")
    words = ["ledger", "--show", "--from", str(lines), "--docs", str(ROOT / "docs"), "--into", str(copy)]
    assert study.main(words) == 0
    assert copy.read_text(encoding="utf-8") == README, (
        "run: python -m studies.cosformer2022 ledger --show --from studies/cosformer2022/results/runs.jsonl --into "
        "README.md"
    )


def test_links_to_files_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target
