# SPDX-License-Identifier: Apache-2.0
"""A writer that changes, stops or dies while it is read: stepped, killed, and at full speed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stats_helpers import GROUP, NOW, create, event
from tiercache.stats.format import RING, Column
from tiercache.stats.model import Kind, Slots, Snapshot
from tiercache.stats.reader import SegmentReader
from tiercache.stats.writer import SegmentWriter

SNAPSHOTS = 3000
#: Kinds and totals are written by name; all that a row has is one number.
HAMMER = """
import os, sys
from itertools import count
from pathlib import Path
from tiercache.stats.model import *
from tiercache.stats.rows import KINDS, TIER_COUNTS, TIER_INDEX, TOTALS
from tiercache.stats.writer import SegmentWriter

def restores(n):
    return Restores(n, n, n, (n,) * 128)

def group(n):
    return Group("g0", "full", Slots(n, n, n, n, n), 1, 1, float(n), dict.fromkeys(KINDS, n))

def tier(n):
    counts, index = dict.fromkeys(TIER_COUNTS, n), dict.fromkeys(TIER_INDEX, n)
    return Tier("t", "nvme", Health.OK, 1, n, n, n, n, float(n), restores(n), counts, index)

def victim(n):
    return Victim("g0", n, SlotClass.LIVE, n, n, float(n), "t", n)

def sequence(n):
    loss = Loss("g0", n, float(n), n)
    return Sequence(n, n, float(n), n, n, n, n, n, n, Where.TIER, "t", n, float(n), loss)

pool = Pool("hammer", os.getpid(), "", 1.0, 1, "", 1, "", "", "")
writer = SegmentWriter.create(Path(sys.argv[1]), pool, [group(1)], [tier(1)], sequences=64)
for n in count(1):
    writer.event(Kind.STORED, n * 10**9, group=0, count=n, sequence=n, tokens=n, nbytes=n)
    writer.put_state(float(n), phase=Phase.RUN, running=n, totals=dict.fromkeys(TOTALS, n))
    writer.put_groups([group(n)])
    writer.put_tiers([tier(n)])
    writer.put_restores(restores(n), restores(n))
    writer.put_victims(0, [victim(n)] * 8)
    writer.put_sequence(n % 64, sequence(n))
    if n == 64:
        print(writer.path, flush=True)
"""
#: The row is half there when the process ends.
KILLED = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from tests.stats_helpers import GROUP, POOL, create
from tiercache.stats.model import Slots

class Memory:
    def __init__(self, memory):
        self._memory = memory

    def __setitem__(self, at, data):
        self._memory[at.start : at.start + 16] = data[:16]
        os.kill(os.getpid(), signal.SIGKILL)

writer = create(Path(sys.argv[1]), pool=replace(POOL, pid=os.getpid()))
print(writer.path, flush=True)
writer._memory = Memory(writer._memory)
writer.put_groups([replace(GROUP, slots=Slots(9, 9, 9, 9, 9))])
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[SegmentWriter]:
    with closing(create(tmp_path)) as writer:
        yield writer


@pytest.fixture
def reader(writer: SegmentWriter) -> Iterator[SegmentReader]:
    with closing(SegmentReader(writer.path)) as reader:
        yield reader


def program(text: str, directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", text, str(directory)]
    paths = os.pathsep.join(
        filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")])
    )
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def segment_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def meanwhile(
    reader: SegmentReader, column: Column, change: Callable[[], None], times: int = 1
) -> None:
    """Do something whenever the reader has just read from ``column``, the first ``times``."""
    read, left = reader._file.read, iter(range(times))

    def and_then(offset: int, nbytes: int) -> bytes:
        data = read(offset, nbytes)
        if column.offset <= offset < column.end and next(left, None) is not None:
            change()
        return data

    reader._file.read = and_then  # type: ignore[method-assign]


def of(free: int) -> Slots:
    return Slots(free, free, free, free, free)


def rows_of(snapshot: Snapshot) -> Iterator[set[float | None]]:
    """The numbers in each row: with the hammer, all the same."""
    yield {snapshot.running, snapshot.heartbeat, *snapshot.totals.values()}
    [group], [tier] = snapshot.groups, snapshot.tiers
    yield {group.slots.free, group.slots.pinned, group.oldest_live, *group.counts.values()}
    restores, counts = tier.restores, {*tier.counts.values(), *tier.index.values()}
    yield {tier.used, tier.load_rate, restores.requests, *restores.histogram, *counts}
    for source in (snapshot.ram, snapshot.missed):
        assert source is not None
        yield {source.requests, source.nbytes, *source.histogram}
    victims: set[float | None] = set()
    for v in snapshot.victims:
        victims |= {v.slot, v.sequence, v.tokens, v.last_used, v.lost}
    yield victims
    for s in snapshot.sequences:
        assert s.loss is not None
        lost = {s.loss.tokens, s.loss.when, s.loss.by}
        yield {s.number, s.turns, s.last_used, s.tokens, s.live, s.restored, s.seconds} | lost
    for e in snapshot.events:
        yield {e.number, e.when, e.count, e.sequence, e.tokens, e.nbytes}


def test_no_row_that_is_taken_for_whole_is_torn(tmp_path: Path) -> None:
    whole = events = 0
    with program(HAMMER, tmp_path) as process:
        try:
            with closing(SegmentReader(segment_of(process))) as reader:
                for _ in range(SNAPSHOTS):
                    snapshot = reader.snapshot(now=NOW)
                    events += len(snapshot.events)
                    assert events + snapshot.events_lost == snapshot.events_total
                    if not snapshot.torn:
                        whole += 1
                        assert {len(row) for row in rows_of(snapshot)} == {1}
        finally:
            process.kill()
    assert whole > SNAPSHOTS / 10
    assert events > SNAPSHOTS


def test_a_writer_that_is_killed_midway_leaves_a_torn_row(tmp_path: Path) -> None:
    with program(KILLED, tmp_path) as process:
        path = segment_of(process)
    assert process.returncode == -signal.SIGKILL
    with closing(SegmentReader(path)) as reader:
        for _ in range(2):
            snapshot = reader.snapshot(now=NOW)
            assert snapshot.torn
            assert not snapshot.alive
            assert snapshot.groups[0].slots.free == 9
            assert snapshot.groups[0].slots.pinned == GROUP.slots.pinned


def test_a_row_that_changes_while_it_is_read_is_read_again(
    writer: SegmentWriter, reader: SegmentReader
) -> None:
    writer.put_groups([replace(GROUP, slots=of(1))])
    change = lambda: writer.put_groups([replace(GROUP, slots=of(2))])  # noqa: E731
    meanwhile(reader, writer._layout.groups.rows, change)
    snapshot = reader.snapshot(now=NOW)
    assert snapshot.groups[0].slots == of(2)
    assert not snapshot.torn


def test_a_row_that_never_rests_is_given_up(writer: SegmentWriter, reader: SegmentReader) -> None:
    numbers = iter(range(10**6))
    change = lambda: writer.put_groups([replace(GROUP, slots=of(next(numbers)))])  # noqa: E731
    meanwhile(reader, writer._layout.groups.rows, change, times=10**6)
    assert reader.snapshot(now=NOW).torn
    assert next(numbers) == 100


def test_a_row_in_the_middle_of_a_change_is_waited_for(
    writer: SegmentWriter, reader: SegmentReader
) -> None:
    version = writer._layout.state.versions.word
    writer._words[version] += 1

    def finish() -> None:
        writer._words[version] += 1

    meanwhile(reader, writer._layout.state.rows, finish)
    assert not reader.snapshot(now=NOW).torn


def test_a_change_that_was_interrupted_does_not_confuse_the_next(
    writer: SegmentWriter, reader: SegmentReader
) -> None:
    writer._words[writer._layout.groups.versions.word] += 1
    assert reader.snapshot(now=NOW).torn
    writer.put_groups([replace(GROUP, slots=of(7))])
    snapshot = reader.snapshot(now=NOW)
    assert snapshot.groups[0].slots == of(7)
    assert not snapshot.torn


def test_events_are_returned_once(writer: SegmentWriter, reader: SegmentReader) -> None:
    for batch in range(3):
        for _ in range(batch):
            event(writer)
        assert len(reader.snapshot(now=NOW).events) == batch
    with closing(SegmentReader(writer.path)) as another:
        assert [e.number for e in another.snapshot(now=NOW).events] == [1, 2, 3]


@pytest.mark.parametrize("before", [0, 1, RING - 2, RING - 1, RING, RING + 5])
@pytest.mark.parametrize("after", [1, RING - 1, RING, 2 * RING + 3])
def test_events_that_were_overwritten_are_counted(
    writer: SegmentWriter, reader: SegmentReader, before: int, after: int
) -> None:
    for _ in range(before):
        event(writer)
    first = reader.snapshot(now=NOW)
    for _ in range(after):
        event(writer)
    second = reader.snapshot(now=NOW)
    kept = min(after, RING - 1)
    assert [e.number for e in second.events] == list(
        range(before + after + 1 - kept, before + after + 1)
    )
    assert second.events_lost - first.events_lost == after - kept
    assert second.events_total == before + after


def test_events_that_are_overwritten_while_they_are_read_are_lost(
    writer: SegmentWriter, reader: SegmentReader
) -> None:
    for n in range(RING - 1):
        event(writer, n)

    def overwrite() -> None:
        for _ in range(10):
            event(writer)

    meanwhile(reader, writer._layout.ring, overwrite)
    first = reader.snapshot(now=NOW)
    assert [e.number for e in first.events] == list(range(11, RING))
    assert first.events_lost == 10
    second = reader.snapshot(now=NOW)
    assert [e.number for e in second.events] == list(range(RING, RING + 10))
    assert second.events_lost == 10


def test_an_event_of_no_kind_is_lost(writer: SegmentWriter, reader: SegmentReader) -> None:
    event(writer)
    kind = writer._layout.ring.at(1) + 16
    writer._memory[kind : kind + 1] = bytes([len(Kind)])
    snapshot = reader.snapshot(now=NOW)
    assert (snapshot.events, snapshot.events_lost) == ((), 1)


def test_half_an_event_is_lost(writer: SegmentWriter, reader: SegmentReader) -> None:
    for _ in range(3):
        event(writer)
    at = writer._layout.ring.at(2)
    writer._memory[at : at + 8] = bytes(8)
    snapshot = reader.snapshot(now=NOW)
    assert [e.number for e in snapshot.events] == [1, 3]
    assert snapshot.events_lost == 1
