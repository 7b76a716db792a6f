"""The command itself: exit codes, errors, colour."""

import io
import subprocess
import sys

import pytest

from cosformer import cli, terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["no-such-command"])
    assert stopped.value.code == cli.EXIT_USAGE
    assert "demo" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
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
def test_errors_become_exit_codes_and_one_line(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from cosformer.commands import check

    def run(args: object) -> int:
        raise error

    monkeypatch.setattr(check, "run", run)
    assert cli.main(["check"]) == code
    captured = capsys.readouterr()
    assert not captured.out
    assert len(captured.err.splitlines()) == 1 and str(error) in captured.err


def test_a_mistake_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    from cosformer.commands import check

    def run(args: object) -> int:
        raise AssertionError("ours")

    monkeypatch.setattr(check, "run", run)
    with pytest.raises(AssertionError, match="ours"):
        cli.main(["check"])


def test_colour_only_on_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_no_status_line_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    terminal.status("working")
    assert stream.getvalue() == ""


def test_status_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: (12, 24))
    terminal.status("a line that is longer than the terminal")
    assert stream.getvalue() == "\r\x1b[Ka line that"


def test_tables_are_aligned() -> None:
    text = terminal.table(["name", "value"], [["a", "1"], ["longer", "1,000"]])
    assert text.splitlines() == ["name    value", "------  -----", "a           1", "longer  1,000"]


def test_another_pipe_that_broke_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(args: object) -> int:
        raise BrokenPipeError(32, "the worker went away")

    monkeypatch.setattr("cosformer.commands.list.run", broken)
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
