# SPDX-License-Identifier: Apache-2.0
"""Which pool is meant, and how far its numbers can be believed."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli import segments
from tests.cli.conftest import Command
from tiercache.cli import pools
from tiercache.stats.model import Phase, Snapshot
from tiercache.stats.writer import SegmentWriter

NOW = segments.NOW
LIVE = Snapshot(
    taken=NOW,
    heartbeat=NOW - 0.3,
    phase=Phase.RUN,
    alive=True,
    running=1,
    pool=replace(segments.POOL, pid=41712, path="/dev/shm/tiercache-0/qwen3-next.41712.2.tcs"),
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "0.3s old"),
        ({"heartbeat": NOW + 0.1}, "0.0s old"),
        ({"heartbeat": NOW - 240, "running": 0}, "idle for 4m"),
        ({"heartbeat": NOW - 240}, "4m old: it is busy, or hangs"),
        ({"phase": Phase.INIT}, "still starting, 0.3s old"),
        ({"phase": Phase.CLOSED, "alive": False}, "closed in order 0.3s ago; ages are as of then"),
        ({"alive": False}, "ended without closing, last written 0.3s ago; ages are as of then"),
        (
            {"alive": False, "phase": Phase.INIT},
            "ended without closing, last written 0.3s ago; ages are as of then",
        ),
        (
            {"phase": Phase.FAILED, "heartbeat": NOW - 60},
            "published nothing after a fault 60s ago; ages are as of then",
        ),
        (
            {"heartbeat": NOW + 9_000, "phase": Phase.CLOSED},
            "closed in order; times are those of a replay",
        ),
        ({"heartbeat": NOW + 9_000}, "running; times are those of a replay"),
        (
            {"alive": False, "torn": True},
            (
                "ended without closing, last written 0.3s ago; ages are as of then; it died in the "
                "middle of a change, so numbers may not fit together"
            ),
        ),
    ],
)
def test_how_far_numbers_can_be_believed(changes: dict[str, object], words: str) -> None:
    snapshot = replace(LIVE, **changes)  # type: ignore[arg-type]
    assert pools.trailer(snapshot) == f"source: segment pid 41712 rank 2, {words}"


@pytest.mark.parametrize(
    ("changes", "moment"),
    [
        ({"heartbeat": NOW - 240}, NOW),
        ({"heartbeat": NOW - 240, "alive": False}, NOW - 240),
        ({"heartbeat": NOW - 240, "phase": Phase.CLOSED}, NOW - 240),
        ({"heartbeat": NOW + 240}, NOW + 240),
    ],
)
def test_ages_are_as_of(changes: dict[str, object], moment: float) -> None:
    assert pools.moment(replace(LIVE, **changes)) == moment  # type: ignore[arg-type]


def test_nobody_knows_a_server_from_its_metrics() -> None:
    snapshot = replace(LIVE, pool=None, source="metrics")
    assert pools.trailer(snapshot) == "source: metrics, 0.3s old"
    assert pools.source(snapshot)["rank"] is None


@pytest.mark.parametrize("how", ["name", "pid", "path", "environment", "only"])
def test_ways_to_name_a_pool(
    command: Command, server: SegmentWriter, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    arguments: dict[str, list[object]] = {
        "name": ["--pool", "qwen3-next"],
        "pid": ["--pool", os.getpid()],
        "path": ["--pool", server.path],
        "environment": [],
        "only": [],
    }
    if how == "environment":
        monkeypatch.setenv("TIERCACHE_POOL", str(server.path))
    code, out, err = command("groups", *arguments[how])
    assert (code, err) == (0, "")
    assert out.startswith("GROUP")


def test_no_pool(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERCACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TIERCACHE_POOL", raising=False)
    for name in ("stat", "groups", "tiers", "seq", "next", "events"):
        code, out, err = command(name)
        assert (code, out) == (3, "")
        assert err.startswith("tiercache: error: no pool runs")
        assert err.count("\n") == 1


def test_several_pools(command: Command, server: SegmentWriter) -> None:
    other = segments.write(server.path.parent, pool=replace(segments.POOL, name="other"))
    try:
        code, out, err = command("stat")
        assert (code, out) == (3, "")
        assert "qwen3-next" in err
        assert "other" in err
        assert command("stat", "--pool", "other")[0] == 0
    finally:
        other.close()


def test_a_file_of_another_format(command: Command, server: SegmentWriter) -> None:
    content = bytearray(server.path.read_bytes())
    content[8:10] = (2).to_bytes(2, "little")
    path = server.path.with_name("later.1.0.tcs")
    path.write_bytes(content)
    code, out, err = command("stat", "--pool", path)
    assert (code, out) == (4, "")
    assert err.count("\n") == 1


def test_a_server_that_died_is_still_shown(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is killed with the segment open."""
    monkeypatch.setenv("TIERCACHE_DIR", str(tmp_path))
    monkeypatch.setattr(pools, "now", lambda: NOW)
    code = (
        "import os, signal, sys, pathlib\n"
        "from tests.cli import segments\n"
        "segments.write(pathlib.Path(sys.argv[1]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=root, check=False)
    code_, out, err = command("stat", "--pool", "qwen3-next")
    assert (code_, err) == (0, "")
    assert "ended without closing, last written 0.3s ago" in out
    code_, out, _ = command("groups", "--pool", "qwen3-next", "--json")
    assert code_ == 0
    assert '"alive": false' in out
    for arguments in (["stat", "1"], ["events", "-f"]):
        code_, _, err = command(*arguments, "--pool", "qwen3-next")
        assert code_ == 7
        assert err.startswith("tiercache: error: the server has ended; source: segment pid ")
        assert err.count("\n") == 1
