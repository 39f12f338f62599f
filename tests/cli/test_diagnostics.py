# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import click
import pytest

from tiercache.cli import diagnostics, output
from tiercache.cli.diagnostics import ExitCode
from tiercache.errors import (
    ConfigError,
    DamageError,
    FormatError,
    NoPoolError,
    PoolBusyError,
    TierCacheError,
)

PRINTS_FOR_EVER = """
from tiercache.cli import output
while True:
    output.text("line")
"""


def outcome(raised: BaseException | None = None, returned: object = None) -> object:
    @click.command
    def command() -> object:
        if raised is not None:
            raise raised
        return returned

    with pytest.raises(SystemExit) as ended:
        diagnostics.run(command, "prog", [])
    return ended.value.code


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (click.UsageError("two\nlines"), ExitCode.USAGE),
        (ConfigError("key", 1, "2"), ExitCode.USAGE),
        (TierCacheError("no luck"), ExitCode.PROBLEM),
        (NoPoolError("none"), ExitCode.NO_POOL),
        (FormatError("format 2"), ExitCode.FORMAT),
        (PoolBusyError("pid 1"), ExitCode.BUSY),
        (DamageError("gone"), ExitCode.DAMAGED),
    ],
)
def test_what_is_raised_on_purpose_is_one_line(
    raised: Exception, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(raised) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("prog: error: ")
    assert captured.err.count("\n") == 1


def test_control_codes_do_not_reach_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Messages, and tables, name what a file has: it may be anything, also half a character."""
    hostile = "model \x1b]0;title\x07\x9b2J\ud800 name"
    shown = "model ?]0;title??2J? name"
    outcome(TierCacheError(hostile))
    output.text(f"one\ttwo {hostile}\nthree")
    output.lines([hostile])
    captured = capsys.readouterr()
    assert captured.err == f"prog: error: {shown}\n"
    assert captured.out == f"one\ttwo {shown}\nthree\n{shown}\n"


def test_ctrl_c_is_130() -> None:
    assert outcome(KeyboardInterrupt()) == ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    ("returned", "code"), [(None, 0), (ExitCode.PROBLEM, 1), ("a string is no status", 0)]
)
def test_what_a_command_returns_is_its_status(returned: object, code: int) -> None:
    assert outcome(returned=returned) == code


def test_a_fault_of_ours_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        diagnostics.run(click.command(lambda: 1 // 0), "prog", [])


def test_a_reader_that_goes_away_is_no_fault() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PRINTS_FOR_EVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == ExitCode.BROKEN_PIPE
