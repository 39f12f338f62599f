# SPDX-License-Identifier: Apache-2.0
"""What starts quickly must not import what does not."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "vllm", "numpy", "textual", "lmdb")
#: The interpreter and click bring 104 of them.
MOST_MODULES = 200

CHECK = """
import sys
{code}
print(*sorted(set({heavy}) & set(sys.modules)))
"""
HELP = """
from tiercache.cli.main import main
try:
    main({arguments})
except SystemExit:
    pass
"""


def loaded(code: str, heavy: tuple[str, ...] = HEAVY) -> list[str]:
    """Which of the ``heavy`` modules are there after ``code`` ran in a new interpreter."""
    check = CHECK.format(code=code, heavy=heavy)
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    "module",
    [
        "tiercache.cli.main",
        "tiercache.cli.commands.connector_config",
        "tiercache.cli.commands.completion",
        "tiercache.cli.commands.events",
        "tiercache.cli.commands.groups",
        "tiercache.cli.commands.ls",
        "tiercache.cli.commands.next",
        "tiercache.cli.commands.replay",
        "tiercache.cli.commands.seq",
        "tiercache.cli.commands.show",
        "tiercache.cli.commands.size",
        "tiercache.cli.commands.stat",
        "tiercache.cli.commands.tiers",
        "tiercache.tui.app",
        "tiercache.tui.sources",
        "tiercache.tui.view",
    ],
)
def test_modules_that_must_stay_light(module: str) -> None:
    assert loaded(f"import {module}") == []


def test_help_imports_no_command_and_no_rich() -> None:
    heavy = (*HEAVY, "rich", "prometheus_client", "tiercache.tui", "tiercache.config")
    assert loaded(HELP.format(arguments=["--help"]), heavy) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "--scenario", "idle-conversation", "--policy", "lru"],
        ["size", "--ram", "1GiB", "--block-tokens", "16", "--token-page", "4096"],
        ["connector-config"],
        ["top", "--help"],
        ["top", "--once", "--url", "http://127.0.0.1:9"],
        ["top", "--json", "--url", "http://127.0.0.1:9"],
        ["top", "--url", "http://127.0.0.1:9"],
    ],
)
def test_no_command_without_a_screen_loads_textual(arguments: list[str]) -> None:
    played = ["numpy"] if arguments[0] == "replay" else []  # by the cache that serves
    assert loaded(HELP.format(arguments=arguments)) == played


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("command", ["stat", "groups", "tiers", "seq", "next", "events"])
def test_looking_at_a_server_loads_nothing_that_serves(command: str) -> None:
    heavy = (*HEAVY, "rich", "tiercache.tui", "tiercache.cache", "tiercache.tiers", "xxhash")
    assert loaded(HELP.format(arguments=[command]), heavy) == []


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["replay", "--help"], ["size", "--help"], ["stat"], ["groups"]]
)
def test_help_and_looking_load_little(arguments: list[str]) -> None:
    code = HELP.format(arguments=arguments) + "\nprint(len(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}"], capture_output=True, text=True, check=True
    )
    assert 50 < int(done.stdout.splitlines()[-1]) < MOST_MODULES
