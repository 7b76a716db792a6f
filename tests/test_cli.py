"""The command itself: exit codes, errors, colour."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cosformer import cli, terminal
from cosformer.commands.bench import BENCHES


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def failing(error: BaseException) -> Callable[[object], int]:
    """The ``run`` of a command that ends so."""

    def run(args: object) -> int:
        raise error

    return run


def test_no_help_loads_torch_or_numpy() -> None:
    code = "import sys; from cosformer.cli import COMMANDS, build_parser\nfor name in COMMANDS: build_parser(name)\n"
    code += "sys.exit(' '.join({'torch', 'numpy'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""


def test_unknown_command_is_a_usage_error(capsys) -> None:
    assert cli.main(["no-such-command"]) == cli.EXIT_USAGE
    assert "demo" in capsys.readouterr().err


def test_a_command_that_moved_says_where_it_is(capsys) -> None:
    assert cli.main(["reproduce", "table2"]) == cli.EXIT_USAGE
    assert "python -m studies.cosformer2022" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["runs", "--sorty"], ["train", "lm-stdlib-small", "--train.stepz", "5"]])
def test_mistakes_of_all_commands_are_said_in_one_line_without_colour(words: list[str], capsys) -> None:
    try:
        code = cli.main(words)
    except SystemExit as stopped:  # how argparse ends
        code = stopped.code
    (line,) = capsys.readouterr().err.splitlines()
    assert code == cli.EXIT_USAGE and line.startswith("cosformer") and "\x1b" not in line
    assert next(word for word in words if word.startswith("--")) in line
    assert "see `cosformer" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["generate", "--temprature", "1"],
            "cosformer generate: unknown option '--temprature'; did you mean '--temperature'?",
        ),
        (
            ["eval", "run", "--weights", "bst"],
            "cosformer eval: argument --weights: unknown value 'bst'; did you mean 'best'?",
        ),
        (
            ["bench", "atention"],
            "cosformer bench: argument BENCHMARK: unknown value 'atention'; did you mean 'attention'?",
        ),
        (["linearize", "a", "b", "--text", "c", "--dtype", "float"], "unknown value 'float'; did you mean 'float32'?"),
        (["convert", "a", "b", "c"], "cosformer convert: unexpected argument 'c'"),
        (["generate", "--temp", "1"], "unknown option '--temp'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_brings_the_nearest_name(words: list[str], said: str, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    assert stopped.value.code == cli.EXIT_USAGE and said in capsys.readouterr().err


COMMANDS = [[], *([name] for name in cli.COMMANDS if name != "reproduce"), *(["bench", name] for name in BENCHES)]
COMMANDS += [
    ["train", "lm-stdlib-small"],
    ["train", "classify"],
    *(["data", action] for action in ("list", "get", "show", "clean")),
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words) or "cosformer")
def test_help_fits_on_a_screen(words: list[str], capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main([*words, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    assert lines[0].startswith(f"usage: {' '.join(['cosformer', *words])} ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "words", [["list", "attentions"], ["train", "--help"], ["train", "lm-stdlib-small", "--help"]], ids=" ".join
)
def test_a_full_disk_gives_no_traceback(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cosformer", *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == cli.EXIT_FAILED
    assert (
        done.stderr.endswith("the output cannot be written: No space left on device\n") and done.stderr.count("\n") == 1
    )


def test_version(capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith("cosformer ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("a value of 3; it must be 4"), cli.EXIT_USAGE),
        (FileNotFoundError("no such file"), cli.EXIT_USAGE),
        (KeyboardInterrupt(), cli.EXIT_INTERRUPTED),
    ],
    ids=["value", "file", "interrupt"],
)
def test_errors_become_exit_codes_and_one_line(error: BaseException, code: int, monkeypatch, capsys) -> None:
    monkeypatch.setattr("cosformer.commands.check.run", failing(error))
    assert cli.main(["check"]) == code
    captured = capsys.readouterr()
    assert not captured.out
    assert len(captured.err.splitlines()) == 1 and str(error) in captured.err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "/there"), "cosformer check: /there: Permission denied"),
        (OSError("the config file is no JSON"), "cosformer check: the config file is no JSON"),
    ],
)
def test_what_the_system_or_a_file_forbids_is_one_line(error: OSError, said: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr("cosformer.commands.check.run", failing(error))
    assert cli.main(["check"]) == cli.EXIT_FAILED
    assert capsys.readouterr().err == f"{said}\n"


def test_two_double_dashes_are_refused(capsys) -> None:
    assert cli.main(["convert", "--", "a", "--"]) == cli.EXIT_USAGE
    assert "'--' may be given once" in capsys.readouterr().err


def test_a_mistake_of_ours_is_not_hidden(monkeypatch) -> None:
    monkeypatch.setattr("cosformer.commands.check.run", failing(AssertionError("ours")))
    with pytest.raises(AssertionError, match="ours"):
        cli.main(["check"])


def test_colour_only_on_a_terminal_that_wants_it(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.paint("text", "red", io.StringIO()) == "text"
    assert terminal.paint("text", "red", Terminal()) == "\x1b[31mtext\x1b[0m"
    monkeypatch.setenv("TERM", "dumb")
    assert terminal.paint("text", "red", Terminal()) == "text"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.paint("text", "red", Terminal()) == "text"
    monkeypatch.setenv("NO_COLOR", "")  # set but empty does not count
    assert terminal.paint("text", "red", Terminal()) != "text"


@pytest.mark.parametrize(("stream", "seen"), [(io.StringIO(), ""), (Terminal(), "\r\x1b[Ka line that")])
def test_a_status_line_only_where_somebody_looks(stream: io.StringIO, seen: str, monkeypatch) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: (12, 24))
    terminal.status("a line that is longer than the terminal")
    assert stream.getvalue() == seen


def test_tables_are_aligned() -> None:
    text = terminal.table(["name", "value"], [["a", "1"], ["longer", "1,000"]])
    assert text.splitlines() == ["name    value", "------  -----", "a           1", "longer  1,000"]


def test_colour_takes_no_room_in_a_table() -> None:
    plain, coloured = (
        terminal.table(["a", "b"], [[cell, "1"], ["long", "2"]]) for cell in ("yes", "\x1b[32myes\x1b[0m")
    )
    assert coloured.replace("\x1b[32m", "").replace("\x1b[0m", "") == plain


def test_another_pipe_that_broke_is_a_failure(monkeypatch, capfd) -> None:
    monkeypatch.setattr("cosformer.commands.list.run", failing(BrokenPipeError(32, "the worker went away")))
    assert cli.main(["list", "attentions"]) == cli.EXIT_FAILED
    assert "cosformer list: [Errno 32] the worker went away" in capfd.readouterr().err


@pytest.mark.parametrize("buffered", [[], ["-u"]], ids=["buffered", "unbuffered"])
def test_a_reader_that_went_away_is_no_failure(buffered: list[str]) -> None:
    command = [sys.executable, *buffered, "-m", "cosformer", "list", "attentions", "--markdown"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == cli.EXIT_PIPE_CLOSED


@pytest.mark.parametrize(
    ("given", "set_by_us"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, None)],
    ids=["nothing given", "a number given", "a policy given"],
)
def test_spinning_is_bounded_before_torch_is_loaded_unless_the_user_says_otherwise(given, set_by_us) -> None:
    code = (
        "import os, sys, importlib.abc\n"
        "class Watch(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch': print('torch with', os.environ.get('GOMP_SPINCOUNT'))\n"
        "sys.meta_path.insert(0, Watch())\n"
        "from cosformer.cli import main\n"
        "main(['list', 'attentions'])"
    )
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", code], env=clean | given, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == f"torch with {set_by_us}"
