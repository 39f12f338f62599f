# SPDX-License-Identifier: Apache-2.0
"""Which pools are found, which one is meant, and which are cleared away."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stats_helpers import NOW, POOL, create
from tiercache.errors import FormatError, NoPoolError
from tiercache.stats import files, pools
from tiercache.stats.files import FileName
from tiercache.stats.format import FORMAT, HEADER_BYTES, Identity
from tiercache.stats.model import Phase
from tiercache.stats.process import Process
from tiercache.stats.reader import SegmentReader

Make = Callable[..., Path]


@pytest.fixture
def ended() -> int:
    """The pid of a process that is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        return child.pid


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(pools.DIRECTORY, str(tmp_path))
    monkeypatch.delenv(pools.POOL, raising=False)
    return tmp_path


@pytest.fixture
def make(directory: Path) -> Iterator[Make]:
    """Makes a segment of a name and pid, the later the newer."""
    age = iter(range(1_000_000))
    with ExitStack() as stack:

        def make(name: str = "demo", pid: int = os.getpid(), *, closed: bool = False) -> Path:
            writer = create(directory, pool=replace(POOL, name=name, pid=pid))
            stack.callback(writer.close)
            if closed:
                writer.close()
            os.utime(writer.path, ns=(0, next(age)))
            return writer.path

        yield make


def newer_format(directory: Path, pid: int = os.getpid(), space: int | None = None) -> Path:
    path = directory / str(FileName("future", pid, 0))
    process = Process.of(pid)
    process = process._replace(space=process.space if space is None else space)
    path.write_bytes(Identity(FORMAT + 1, 0, process).pack().ljust(HEADER_BYTES, b"\0"))
    return path


def test_where_segments_are(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    assert pools.directory() == directory
    monkeypatch.setenv(pools.DIRECTORY, "")
    assert pools.directory() == Path(f"/dev/shm/tiercache-{os.geteuid()}")


@pytest.mark.parametrize("name", ["demo", "org/model-7B.v1", "a.1.2.tcs", "..", "", "é" * 300])
def test_a_file_is_called_after_its_pool(name: str) -> None:
    file = FileName(name, 12, 3)
    assert "/" not in str(file)
    assert len(str(file)) < 255
    assert FileName.parse(str(file)) == (files.plain(name), 12, 3, False)
    unfinished = str(file._replace(is_new=True))
    assert FileName.parse(unfinished) == (files.plain(name), 12, 3, True)


@pytest.mark.parametrize("name", ["demo.tcs", "demo.1.tcs", "demo.x.0.tcs", ".1.0.tcs", "lock"])
def test_other_files_are_not_segments(name: str) -> None:
    assert FileName.parse(name) is None


def test_pools_are_found_the_newest_first(make: Make, directory: Path, ended: int) -> None:
    first, second = make("org/model"), make("old", ended)
    (directory / "other").touch()
    (directory / str(FileName("demo", 1, 0, is_new=True))).touch()
    assert pools.found(directory) == [
        (second, "old", ended, 0, False, Phase.INIT),
        (first, "org/model", os.getpid(), 0, True, Phase.INIT),
    ]


def test_a_pool_that_cannot_be_read_is_found_too(directory: Path, ended: int) -> None:
    running, dead = newer_format(directory), newer_format(directory, ended)
    (directory / str(FileName("empty", os.getpid(), 2))).touch()
    found = {pool.path: pool for pool in pools.found(directory)}
    assert found[running] == (running, "future", os.getpid(), 0, True, None)
    assert not found[dead].alive
    assert {pool.name for pool in found.values()} == {"future", "empty"}


def test_where_there_is_nothing_none_is_found(directory: Path) -> None:
    assert pools.found(directory) == []
    assert pools.found(directory / "missing") == []


def test_a_linked_directory_is_not_looked_at(make: Make, directory: Path) -> None:
    make()
    (directory / "link").symlink_to(directory)
    assert pools.found(directory / "link") == []


def test_the_directory_of_another_user_is_not_looked_at(
    make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    owner = directory.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert pools.found(directory) == []
    with pytest.raises(NoPoolError, match=f"{directory} belongs to user {owner}"):
        pools.resolve(None)


def test_the_only_pool_that_runs_is_meant(make: Make, ended: int) -> None:
    running = make("a")
    make("b", ended)
    make("c", closed=True)
    assert pools.resolve(None) == running


def test_of_several_that_run_none_is_meant(make: Make) -> None:
    make("a")
    make("b")
    pid = os.getpid()
    sentence = f"several pools run: b (pid {pid}), a (pid {pid}); name one by its pid or path"
    with pytest.raises(NoPoolError) as refused:
        pools.resolve(None)
    assert str(refused.value) == sentence


def test_a_pool_is_meant_by_name_pid_or_path(make: Make, ended: int) -> None:
    slashed, other = make("org/model"), make("b", ended)
    assert pools.resolve("org/model") == slashed
    assert pools.resolve("org_model") == slashed
    assert pools.resolve("b") == pools.resolve(str(ended)) == other
    assert pools.resolve(str(slashed)) == slashed
    assert pools.resolve("/no/such.tcs") == Path("/no/such.tcs")
    assert pools.resolve("such.tcs") == Path("such.tcs")


def test_the_one_that_runs_is_meant_before_one_that_ended(make: Make, ended: int) -> None:
    running = make("a")
    make("a", ended)
    assert pools.resolve("a") == running


def test_of_those_that_ended_the_newest_is_meant(make: Make, ended: int) -> None:
    make("a", ended)
    newest = make("a", closed=True)
    assert pools.resolve("a") == newest


def test_the_environment_names_a_pool_too(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make("a"), make("b")
    monkeypatch.setenv(pools.POOL, "a")
    assert pools.resolve(None) == first
    assert pools.resolve("b") == second
    monkeypatch.setenv(pools.POOL, "")
    with pytest.raises(NoPoolError, match="several"):
        pools.resolve(None)


def test_what_there_is_instead_is_listed(make: Make, ended: int) -> None:
    make("a", ended)
    with pytest.raises(NoPoolError, match=rf"^no pool runs; there is a \(pid {ended}, ended\)$"):
        pools.resolve(None)
    with pytest.raises(NoPoolError, match=r"^no pool is called 'x'; there is a \("):
        pools.resolve("x")


def test_before_there_is_a_pool_the_place_is_named(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoPoolError, match=f"^no pool runs: {directory} has none"):
        pools.resolve(None)
    monkeypatch.setenv(pools.DIRECTORY, str(directory / "missing"))
    with pytest.raises(NoPoolError, match=f"^no pool runs: {directory}/missing does not exist"):
        pools.resolve(None)


def test_directories_of_other_users_are_mentioned(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "tiercache-1234").mkdir()
    monkeypatch.setattr(pools, "_SHARED_MEMORY", directory)
    with pytest.raises(NoPoolError, match=r"; of other users there is .*/tiercache-1234$"):
        pools.resolve(None)


def test_a_server_of_another_format_is_said_to_be_one(directory: Path) -> None:
    newer_format(directory)
    path = pools.resolve(None)
    with pytest.raises(FormatError, match="server writes format 2, this program reads 1"):
        SegmentReader(path)


def test_a_pool_of_another_container_runs_until_it_says_otherwise(
    make: Make, directory: Path, ended: int
) -> None:
    path = make("a", ended)
    header = bytearray(path.read_bytes()[:HEADER_BYTES])
    identity = Identity.unpack(bytes(header))
    elsewhere = identity._replace(process=identity.process._replace(space=1)).pack()
    with path.open("r+b") as file:
        file.write(elsewhere)
    with closing(SegmentReader(path)) as reader:
        assert reader.snapshot(now=NOW).alive
        assert pools.resolve(None) == path
    pools.sweep(directory, keep=0)
    assert path.exists()


def test_sweeping_keeps_what_runs_and_the_newest_that_ended(
    make: Make, directory: Path, ended: int
) -> None:
    running, closed = make("a"), make("b", closed=True)
    old, new = make("c", ended), make("d", ended)
    unfinished = directory / str(FileName("e", ended, 0, is_new=True))
    beginning = directory / str(FileName("e", os.getpid(), 0, is_new=True))
    other = directory / "notes.txt"
    for path in (unfinished, beginning, other):
        path.touch()
    future = newer_format(directory, ended, space=1)
    pools.sweep(directory, keep=1)
    assert sorted(directory.iterdir()) == sorted([running, closed, new, beginning, other, future])
    assert not old.exists()


def test_sweeping_follows_no_link(make: Make, directory: Path, ended: int) -> None:
    target = make("a")
    link = directory / str(FileName("b", ended, 0))
    link.symlink_to(target)
    pools.sweep(directory, keep=0)
    assert not link.is_symlink()
    assert target.exists()


def test_sweeping_refuses_a_directory_where_others_write(directory: Path) -> None:
    directory.chmod(0o777)
    with pytest.raises(PermissionError):
        pools.sweep(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o777
