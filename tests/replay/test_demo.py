# SPDX-License-Identifier: Apache-2.0
"""The pool to look at: what happens in it within half a minute, and that it leaves nothing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core_helpers import full, keys, state
from tests.tier_helpers import PATIENCE_S, Clock
from tiercache.probe.attach import attach
from tiercache.replay.demo import READ_BYTES, Demo, SlowDisk
from tiercache.stats.model import Event, Kind, Phase, Sequence, Snapshot, Where
from tiercache.stats.reader import SegmentReader
from tiercache.tiers.base import Batch

MODULE = "tiercache.replay.demo"


# --- what happens


class Half:
    """Half a minute of the demo, looked at every tenth of a second."""

    def __init__(self, folder: Path) -> None:
        clock = Clock(1e9)
        demo = Demo(clock)
        publisher = attach(demo.cache, name="demo", directory=folder, clock=clock)
        assert publisher is not None
        reader = SegmentReader(publisher.path)
        self.events: list[Event] = []
        self.stranded: list[Sequence] = []
        """Conversations that nothing serves, when they were seen so first."""
        self.most_running = self.most_pinned = 0
        while clock.now < 1e9 + 30:
            clock.now += min(max(demo.step(), 1e-3), 0.1)
            self._note(reader.snapshot(now=clock.now))
        demo.cache.validate()
        self.last = reader.snapshot(now=clock.now)
        demo.cache.close()
        reader.close()

    def _note(self, snapshot: Snapshot) -> None:
        self.events += snapshot.events
        assert snapshot.running is not None
        self.most_running = max(self.most_running, snapshot.running)
        self.most_pinned = max(self.most_pinned, *(g.slots.pinned for g in snapshot.groups))
        known = {sequence.number for sequence in self.stranded}
        self.stranded += [
            each
            for each in snapshot.sequences
            if each.cached
            and not each.restorable
            and not each.where & Where.RUNNING
            and each.number not in known
        ]

    def count(self, kind: Kind, tier: str | None = None) -> int:
        return sum(e.count for e in self.events if e.kind is kind and e.tier == tier)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Half:
    return Half(tmp_path_factory.mktemp("demo"))


@pytest.mark.parametrize(
    ("kind", "tier", "least"),
    [
        (Kind.STORED, None, 1_000),
        (Kind.DEMOTED, None, 100),
        (Kind.EVICTED_DEMOTED, None, 100),
        (Kind.EVICTED_LIVE, None, 100),
        (Kind.RESTORED, None, 30),
        (Kind.RESTORED, "nvme0", 3),
        (Kind.SPILLED, "nvme0", 1_000),
        (Kind.PROMOTED, None, 20),
        (Kind.MISSED, None, 20),
    ],
)
def test_everything_happens_within_half_a_minute(
    half: Half, kind: Kind, tier: str | None, least: int
) -> None:
    assert half.count(kind, tier) >= least


def test_a_long_conversation_is_stranded_and_it_is_known_by_whom(half: Half) -> None:
    first = max(half.stranded, key=lambda sequence: sequence.cached)
    assert first.number == 1
    assert first.cached > 300_000
    assert first.loss is not None
    assert first.loss.by not in (None, 1)
    assert first.loss.when is not None


def test_there_is_something_to_see(half: Half) -> None:
    assert half.most_running > 1
    assert half.most_pinned > 0
    assert len(half.last.sequences) > 20
    assert {group.kind for group in half.last.groups} == {"full", "state"}
    [tier] = half.last.tiers
    assert (tier.name, tier.restores.requests > 2) == ("nvme0", True)
    assert tier.counts["evicted"] > 0
    assert any(victim.lost for victim in half.last.victims if victim.group != "g0")
    assert {sequence.source for sequence in half.last.sequences} >= {"ram", "miss", "nvme0"}


# --- the imagined disk


def test_a_copy_takes_as_long_as_it_has_bytes() -> None:
    clock = Clock()
    disk = SlowDisk([full(0), state(1)], {0: 8, 1: 4}, 16, clock)
    blocks = keys([b"a", b"b"], 0)
    assert disk.store(Batch(1, 0, blocks, [0, 1]))
    assert (disk.poll(), disk.stats().jobs, disk.load_rate) == ([], 1, None)
    clock.now += 1.0
    [done] = disk.poll()
    assert (done.job_id, done.nbytes) == (1, 2 * 4096)
    disk.load(Batch(2, 0, blocks, [0, 1]))
    disk.load(Batch(3, 0, keys([b"c"], 0), [2]))
    clock.now += 2 * 4096 / READ_BYTES
    assert [(done.job_id, len(done.failed)) for done in disk.poll()] == [(2, 0), (3, 1)]
    stats = disk.stats()
    assert (stats.jobs, disk.load_rate) == (0, READ_BYTES)
    assert stats.counters == {
        "stored": 2,
        "stored_bytes": 8192,
        "loaded": 2,
        "loaded_bytes": 8192,
        "evicted": 0,
    }


# --- the process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "segments"


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"TIERCACHE_DIR": str(folder)}


def wait_for_segment(folder: Path, *, there: bool) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while bool(list(folder.glob("*.tcs"))) is not there:
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.fixture
def process(folder: Path, environment: dict[str, str]) -> "Iterator[subprocess.Popen[str]]":
    with subprocess.Popen(
        [sys.executable, "-m", MODULE], env=environment, stderr=subprocess.PIPE, text=True
    ) as started:
        wait_for_segment(folder, there=True)
        yield started
        started.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_and_nothing_is_left(
    process: "subprocess.Popen[str]", folder: Path, number: signal.Signals
) -> None:
    [path] = folder.iterdir()
    reader = SegmentReader(path)
    assert reader.snapshot(now=time.time()).alive
    process.send_signal(number)
    _, error = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, error) == (0, "")
    assert list(folder.iterdir()) == []
    # Who still looks at it sees that it ended.
    assert reader.snapshot(now=time.time()).phase is Phase.CLOSED
    reader.close()


def test_it_does_not_outlive_who_started_it(folder: Path, environment: dict[str, str]) -> None:
    starter = f"import subprocess, sys; subprocess.Popen([sys.executable, '-m', {MODULE!r}]).wait()"
    with subprocess.Popen([sys.executable, "-c", starter], env=environment) as parent:
        wait_for_segment(folder, there=True)
        parent.kill()
    wait_for_segment(folder, there=False)


def test_without_a_segment_there_is_nothing_to_play_for(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "segments").touch()
    ended = subprocess.run(
        [sys.executable, "-m", MODULE], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "no stats segment can be written" in ended.stderr
