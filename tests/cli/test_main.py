# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable

import pytest

import tiercache
from tiercache.cli.main import COMMANDS, main

SHOWN = {name: command for name, command in COMMANDS.items() if not command.hidden}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_main(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert isinstance(ended.value.code, int)
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run_main


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands_and_how_they_are_used(run: Run, arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    shown = [f"  {name:<16}  {command.help}" for name, command in SHOWN.items()]
    assert [line for line in out.splitlines() if line in shown] == shown
    sections = list(dict.fromkeys(f"{command.section}:" for command in SHOWN.values()))
    assert [line for line in out.splitlines() if line in sections] == sections
    assert max(map(len, out.splitlines())) <= 92
    examples = out.partition("Examples:")[2].splitlines()
    commands = [line.split()[1] for line in examples if line.startswith("    tiercache ")]
    assert commands
    assert set(commands) <= {*COMMANDS, "COMMAND"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded(run: Run, name: str) -> None:
    code, out, _ = run(name, "--help")
    assert code == 0
    assert out.startswith(f"Usage: tiercache {name} ")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_fits_a_terminal_and_has_examples(run: Run, name: str) -> None:
    _, out, _ = run(name, "--help")
    assert "\n  Examples:\n" in out
    assert max(map(len, out.splitlines())) <= 92


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"tiercache, version {tiercache.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments", [["nope"], ["--nope"], ["top", "--nope"], ["groups", "extra"]]
)
def test_usage_errors_are_one_line_and_exit_2(run: Run, arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("tiercache: error: ")
    assert err.count("\n") == 1


def test_top_is_the_monitor(run: Run) -> None:
    code, out, _ = run("top", "--once", "--url", "http://127.0.0.1:9")
    assert code == 7
    assert "http://127.0.0.1:9/metrics" in out
