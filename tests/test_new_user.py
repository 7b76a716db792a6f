"""A new user, with the README alone: its commands one after the other, in an environment that has nothing of ours but
the package.

Nothing is downloaded: the package is installed from these sources, what it depends on is lent by the environment of the
tests.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LEFT_OUT = {"make test"}  # which runs this test
# what a user puts in the place of a word in capitals
MODEL = "runs/lm-stdlib-small-softmax-seed0"
NOT_SOURCES = (".git", ".venv*", "site", "runs", "build", "dist", "cosformer-demo*", "__pycache__", ".*_cache", "*.so")
OFFLINE = {"PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1", "PIP_IGNORE_INSTALLED": "1"}
# a small stock model to convert and to make linear, and a text to teach it with
STOCK = """
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
words = "a small stock model learns to attend in time that is linear in the length of what it reads".split()
Path("text.txt").write_text((" ".join(words) + chr(10)) * 2000)
tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(dict.fromkeys(["?", *words]))}, unk_token="?"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?", pad_token="?").save_pretrained("stock")
GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=512)).save_pretrained("stock")
"""


def commands() -> list[str]:
    """What stands in blocks for the console and in line, in the order of the text, each once."""
    found: list[str] = []
    for block, word in re.findall(
        r"^```console\n(.*?)^```|`((?:cosformer|make|pip) [a-z][^`]*)`", README, re.DOTALL | re.MULTILINE
    ):
        lines = (line.split("#")[0].strip() for line in block.splitlines()) if block else [" ".join(word.split())]
        found += [line for line in lines if line and line not in found]
    return [command for command in found if command not in LEFT_OUT]


def test_the_commands_are_found() -> None:
    found = commands()
    assert found[0] == "make demo" and "pip install ." in found and "cosformer check" in found and "make docs" in found
    assert len(found) >= 12


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources, as a fresh clone has them."""
    folder = tmp_path_factory.mktemp("user") / "cosformer"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_SOURCES), symlinks=True)
    return folder


def bare_environment(clone: Path) -> dict[str, str]:
    """A virtual environment as `make install` leaves it, and the variables of a user who has set none."""
    venv = clone / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    # a line with a path: the packages there, but no link to an editable install of ours
    (Path(site.stdout.strip()) / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for tool in ("pip", "mkdocs"):
        (venv / "bin" / tool).write_text(f'#!/bin/sh\nexec "{python}" -m {tool} "$@"\n')
        (venv / "bin" / tool).chmod(0o755)
    (venv / ".installed").touch()  # make need not install: that would download
    home = clone.parent / "home"
    home.mkdir()
    return {"HOME": str(home), "PATH": f"{venv / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin", **OFFLINE}


@pytest.mark.slow
def test_every_command_of_the_readme_works_in_order(clone: Path) -> None:
    environment = bare_environment(clone)

    def run(words: list[str]) -> None:
        done = subprocess.run(words, cwd=clone, env=environment, capture_output=True, text=True, check=False)
        said = f"{shlex.join(words)}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert done.returncode == 0 and "Traceback" not in done.stdout + done.stderr, said

    run(["pip", "install", "."])  # first, as the stamp that spares make the download stands for it
    shutil.rmtree(clone / "src" / "cosformer.egg-info", ignore_errors=True)
    run(["python", "-c", STOCK])
    for number, command in enumerate(commands()):
        given = {"MODEL": MODEL, "SOURCE": "stock", "OUT": f"out-{number}", "FILES": "text.txt"}
        shorter = ["--train.steps", "4"] if "--data" in command else []
        run([*(given.get(word, word) for word in shlex.split(command)), *shorter])
    # what was run is the package that was installed, not these sources
    done = subprocess.run(
        ["python", "-c", "import cosformer; print(cosformer.__file__)"],
        cwd=clone.parent,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert str(clone / ".venv") in done.stdout
