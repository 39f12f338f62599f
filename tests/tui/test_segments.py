# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.tui.servers import START, publish, published, qwen
from tiercache.stats import pools
from tiercache.stats.model import Phase
from tiercache.tui.segments import SegmentSource
from tiercache.tui.trouble import SourceError, Trouble

SERVER = """
import sys
from pathlib import Path
from tests.tui.servers import published, qwen
published(Path(sys.argv[1]), qwen(int(sys.argv[2])), sys.argv[3])
print("ready", flush=True)
sys.stdin.read()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts servers in processes of their own; they end with their stdin, or when killed."""
    servers: list[subprocess.Popen[str]] = []

    def start_server(step: int = 0, name: str = "qwen3-next") -> "subprocess.Popen[str]":
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(folder), str(step), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        servers.append(server)
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        return server

    yield start_server
    for server in servers:
        server.kill()
        server.communicate()


@pytest.fixture
def source() -> Iterator[SegmentSource]:
    with closing(SegmentSource(lambda: pools.resolve(None), clock=lambda: START)) as source:
        yield source


def pid(source: SegmentSource) -> int:
    pool = source.fetch().pool
    assert pool is not None
    return pool.pid


def test_a_pool_is_waited_for(source: SegmentSource, folder: Path) -> None:
    with pytest.raises(SourceError, match="no pool runs") as caught:
        source.fetch()
    assert caught.value.trouble is Trouble.NO_POOL
    assert source.target == str(folder)
    with closing(published(folder, qwen(3))):
        snapshot = source.fetch()
        assert snapshot.groups == qwen(3).groups
        assert snapshot.taken == START
        assert source.target == str(folder / f"qwen3-next.{os.getpid()}.0.tcs")


def test_each_look_has_what_is_new(source: SegmentSource, folder: Path) -> None:
    with closing(published(folder, qwen(0))) as writer:
        assert len(source.fetch().events) == 1
        publish(writer, qwen(1), START + 1)
        snapshot = source.fetch()
        assert (snapshot.groups, snapshot.heartbeat) == (qwen(1).groups, START + 1)
        assert [event.number for event in snapshot.events] == [2]
        assert source.fetch().events == ()


def test_a_closed_pool_is_kept(source: SegmentSource, folder: Path) -> None:
    with closing(published(folder, qwen(0))):
        source.fetch()
    for _ in range(2):
        snapshot = source.fetch()
        assert (snapshot.phase, snapshot.alive) == (Phase.CLOSED, True)
        assert snapshot.groups == qwen(0).groups


def test_a_pool_that_is_opened_again_in_its_process_is_followed(
    source: SegmentSource, folder: Path
) -> None:
    with closing(published(folder, qwen(0))):
        source.fetch()
    with closing(published(folder, qwen(5))):
        snapshot = source.fetch()
        assert (snapshot.phase, snapshot.groups) == (Phase.RUN, qwen(5).groups)


def test_a_killed_server_is_kept_until_it_is_started_again(
    source: SegmentSource, start: Start
) -> None:
    first = start(1)
    assert pid(source) == first.pid
    first.kill()
    first.wait()
    for _ in range(2):
        dead = source.fetch()
        assert (dead.alive, dead.groups, dead.events) == (False, qwen(1).groups, ())
    start(9, "other")
    assert pid(source) == first.pid
    second = start(2)
    assert pid(source) == second.pid
    assert source.fetch().groups == qwen(2).groups


def test_a_dead_server_can_be_looked_at_by_its_path(start: Start, folder: Path) -> None:
    server = start(1)
    server.kill()
    server.wait()
    path = folder / f"qwen3-next.{server.pid}.0.tcs"
    with closing(SegmentSource(lambda: path)) as source:
        assert source.fetch().groups == qwen(1).groups


@pytest.mark.parametrize("spoil", [lambda data: b"?" * 8 + data[8:], lambda data: data[:100]])
def test_a_file_of_something_else(folder: Path, spoil: Callable[[bytes], bytes]) -> None:
    writer = published(folder, qwen(0))
    writer.close()
    spoilt = folder / "spoilt.1.0.tcs"
    spoilt.write_bytes(spoil(writer.path.read_bytes()))
    with (
        closing(SegmentSource(lambda: spoilt)) as source,
        pytest.raises(SourceError) as caught,
    ):
        source.fetch()
    assert caught.value.trouble is Trouble.FORMAT


def test_a_file_that_is_cut_while_it_is_looked_at(source: SegmentSource, folder: Path) -> None:
    with closing(published(folder, qwen(0))) as writer:
        source.fetch()
        cut = folder / "other.1.0.tcs"
        cut.write_bytes(writer.path.read_bytes())
        with closing(SegmentSource(lambda: cut)) as other:
            other.fetch()
            os.truncate(cut, 5000)
            with pytest.raises(SourceError) as caught:
                other.fetch()
        assert caught.value.trouble is Trouble.FORMAT
        assert source.fetch().alive


def test_it_can_be_closed_before_and_after_anything(source: SegmentSource) -> None:
    source.close()
    source.close()
    with pytest.raises(SourceError, match="no pool"):
        source.fetch()
