# SPDX-License-Identifier: Apache-2.0
"""What all commands keep to that change a pool: consent, servers, and being killed."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.pool_helpers import Run, directory, indexed, run, sound
from tests.tiers.nvme.damage_helpers import DAMAGES, FIRST, SECOND, STORED, flip_in_index, segment
from tests.tiers.nvme.server_helpers import Server, fill, reopened
from tests.tiers.nvme.test_offline import tree
from tests.tiers.nvme.tier_helpers import (
    Rig,
    keys,
)
from tiercache.blocks import key_hash
from tiercache.cli.diagnostics import ExitCode

__all__ = ["directory", "run"]


CHANGES: dict[str, Callable[[Path], list[object]]] = {
    "verify": lambda d: ["verify", d, "--fix"],
    "prune": lambda d: ["prune", d, "--keep", "10%"],
    "prune namespaces": lambda d: ["prune", d.parent, "--unused-namespaces"],
    "compact": lambda d: ["compact", d],
    "drop": lambda d: ["drop", d, key_hash(FIRST[0]).hex()],
    "drop all": lambda d: ["drop", d, "--all"],
}


def with_something_to_do(directory: Path) -> None:
    (directory / "stranger").touch()
    other = directory.with_name("0123456789abcdef")
    other.mkdir()
    (other / "lock").touch()
    os.utime(other / "lock", (1000, 1000))


@pytest.mark.parametrize("name", CHANGES)
def test_nothing_is_changed_without_consent(run: Run, directory: Path, name: str) -> None:
    with_something_to_do(directory)
    arguments = CHANGES[name](directory)
    before = tree(directory.parent)
    code, _, err = run(*arguments)
    assert code == ExitCode.USAGE
    assert "give --yes to go on, or -n to look" in err
    assert run(*arguments, "-n")[0] in {ExitCode.OK, ExitCode.PROBLEM}
    assert tree(directory.parent) == before
    run(*arguments, "--yes")
    assert tree(directory.parent) != before


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "prune namespaces"])
def test_a_server_keeps_its_pool(run: Run, directory: Path, name: str) -> None:
    (directory / "stranger").touch()
    with Server(directory.parent) as server:
        for options in (["--yes"], ["--yes", "--json"]):
            code, _, err = run(*CHANGES[name](directory), *options)
            assert code == ExitCode.BUSY
            assert f"in use by process {server.pid}" in err
        server.kill()
    assert set(indexed(directory)) == set(STORED)
    assert run(*CHANGES[name](directory), "--yes")[0] == ExitCode.OK


@pytest.mark.parametrize("name", ["prune", "compact", "drop"])
def test_a_server_that_starts_while_it_is_asked_keeps_its_pool(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    started: list[Server] = []

    def agreed(question: str, *, yes: bool) -> None:
        started.append(Server(directory.parent))

    monkeypatch.setattr(f"tiercache.cli.commands.{name}.agree", agreed)
    try:
        code, _, err = run(*CHANGES[name](directory), "--yes")
        assert code == ExitCode.BUSY
        assert str(started[0].pid) in err
    finally:
        with started[0]:
            pass
    assert set(indexed(directory)) == set(STORED)


@pytest.mark.parametrize("name", ["prune", "compact", "drop"])
def test_damaged_pages_are_put_right_first(run: Run, directory: Path, name: str) -> None:
    flip_in_index(directory, FIRST[20])
    before = tree(directory)
    code, _, err = run(*CHANGES[name](directory), "--yes")
    assert code == ExitCode.PROBLEM
    assert "run tiercache verify --fix first" in err
    assert tree(directory) == before


@pytest.mark.parametrize("name", ["prune", "drop"])
def test_what_came_while_it_was_asked_stays(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A server ran meanwhile, and gave the slots of what was to go to others."""
    new = keys(range(800, 816))

    def agreed(question: str, *, yes: bool) -> None:
        with Rig(directory.parent) as rig:
            tier = rig.open()
            tier.demote(FIRST)
            rig.stored(tier, new)
            assert not tier.has(FIRST[0])
            tier.close()

    monkeypatch.setattr(f"tiercache.cli.commands.{name}.agree", agreed)
    got = run(*CHANGES[name](directory), "--yes")
    assert got[0] == ExitCode.OK, got
    assert set(new) <= set(indexed(directory))
    sound(run, directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look after the pool of another user")
@pytest.mark.parametrize("name", ["prune", "compact", "drop"])
def test_the_pool_of_another_user_stays_that_users(run: Run, directory: Path, name: str) -> None:
    (directory / "index" / "lock.mdb").unlink()
    (directory / "lock").unlink()
    for path in (directory, *directory.rglob("*")):
        os.lchown(path, 65534, 65534)
    assert run(*CHANGES[name](directory), "--yes")[0] == ExitCode.OK
    assert {path.lstat().st_uid for path in directory.rglob("*")} == {65534}
    sound(run, directory)


# --- killed meanwhile


@pytest.mark.parametrize("name", ["drop", "prune", "compact"])
def test_a_command_that_is_killed_leaves_a_pool_that_serves(
    run: Run, tmp_path: Path, name: str
) -> None:
    """At whatever call to the system it dies, what was not dropped is there."""
    rng = random.Random(name)
    killed = 0
    for number in range(6):
        directory = fill(tmp_path / f"{number}")
        child = os.fork()
        if not child:
            _die_at(rng.randrange(1, 12) if number else 1)
            try:
                run(*CHANGES[name](directory), "--yes")
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        rng.random()
        run("verify", directory, "--data", "--fix", "--yes")
        sound(run, directory)
        with reopened(directory.parent) as served:
            kept = {
                "drop": {*STORED} - {FIRST[0], SECOND[0]},
                "prune": {*FIRST[21:], SECOND[5]},
                "compact": {*STORED},
            }[name]
            assert kept <= set(served)
    assert killed >= 3


def _die_at(call: int) -> None:
    """Kill this process at the so-manieth call that changes a file."""
    left = [call]

    def dying(function: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **kwargs: object) -> object:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return counted

    for owner, function in [
        (os, "pwrite"),
        (os, "fdatasync"),
        (os, "fsync"),
        (os, "ftruncate"),
        (Path, "unlink"),
        (Path, "replace"),
        (Path, "chmod"),
    ]:
        setattr(owner, function, dying(getattr(owner, function)))


def test_damage_is_not_made_worse(run: Run, directory: Path) -> None:
    """A duplicate, and an entry without a file, are no reason to stop."""
    DAMAGES["block twice"].make(directory)
    segment(directory, 2).unlink()
    assert run("compact", directory, "--yes")[0] == ExitCode.OK
    assert run("prune", directory, "--keep", "90%", "--yes")[0] == ExitCode.OK
    assert run("drop", directory, key_hash(FIRST[23]).hex(), "--yes")[0] == ExitCode.OK
    run("verify", directory, "--fix", "--yes")
    sound(run, directory)
