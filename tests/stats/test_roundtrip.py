# SPDX-License-Identifier: Apache-2.0
"""What a writer is told, a reader tells: every value, exactly."""

import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stats_helpers import GROUP, NOW, POOL, TIER, Content, at, contents, create, times
from tiercache.errors import FormatError
from tiercache.stats.manifest import MAX_BYTES, MAX_TIERS
from tiercache.stats.model import (
    LATENCY_US,
    Event,
    Kind,
    Phase,
    Restores,
    Sequence,
    SlotClass,
    Slots,
    Victim,
    Where,
)
from tiercache.stats.reader import SegmentReader
from tiercache.stats.writer import NONE, SegmentWriter

SEQUENCE = Sequence(7, 2, NOW, 64, 48, 32, 16, 2, 1, Where.RAM_BLOCKS)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[SegmentWriter]:
    with closing(create(tmp_path)) as writer:
        yield writer


@pytest.fixture
def reader(writer: SegmentWriter) -> Iterator[SegmentReader]:
    with closing(SegmentReader(writer.path)) as reader:
        yield reader


@given(contents())
def test_everything_comes_back(content: Content) -> None:
    with (
        TemporaryDirectory() as folder,
        closing(content.write(Path(folder))) as writer,
        closing(SegmentReader(writer.path)) as reader,
    ):
        snapshot = reader.snapshot(now=NOW)
        assert snapshot.taken == NOW
        assert snapshot.pool == at(writer.path, content)
        assert (snapshot.heartbeat, snapshot.phase) == content.state[:2]
        assert (snapshot.running, snapshot.totals) == content.state[2:]
        assert snapshot.groups == tuple(content.groups)
        assert snapshot.tiers == tuple(content.tiers)
        assert (snapshot.ram, snapshot.missed) == (content.ram, content.missed)
        assert snapshot.victims == tuple(v for group in content.victims for v in group)
        assert snapshot.sequences == tuple(s for _, s in sorted(content.sequences.items()))
        assert snapshot.sequences_dropped == content.dropped
        assert snapshot.alive
        assert not snapshot.torn


@given(
    kind=st.sampled_from(Kind),
    when=times,
    group=st.sampled_from([NONE, 0]),
    tier=st.sampled_from([NONE, 0]),
    numbers=st.tuples(*[st.integers(0, 2**32 - 1)] * 5),
)
def test_events_come_back(
    kind: Kind, when: float, group: int, tier: int, numbers: tuple[int, ...]
) -> None:
    count, sequence, tokens, nbytes, us = numbers
    with (
        TemporaryDirectory() as folder,
        closing(create(Path(folder))) as writer,
        closing(SegmentReader(writer.path)) as reader,
    ):
        writer.event(
            kind,
            round(when * 1e9),
            group=group,
            tier=tier,
            count=count,
            sequence=sequence,
            tokens=tokens,
            nbytes=nbytes,
            duration_us=us,
        )
        [event] = reader.snapshot(now=NOW).events
        assert event == Event(
            number=1,
            when=when,
            kind=kind,
            group=None if group == NONE else GROUP.name,
            tier=None if tier == NONE else TIER.name,
            count=count,
            sequence=sequence or None,
            tokens=tokens,
            nbytes=nbytes,
            seconds=us / 1e6 if us else None,
        )


def test_a_new_segment_is_complete(reader: SegmentReader) -> None:
    snapshot = reader.snapshot(now=NOW)
    assert (snapshot.phase, snapshot.heartbeat) == (Phase.INIT, POOL.started)
    assert snapshot.groups == (GROUP,)
    assert [tier.name for tier in snapshot.tiers] == [TIER.name]
    assert (snapshot.ram, snapshot.missed, snapshot.sequences) == (None, None, ())
    assert (snapshot.events, snapshot.events_total, snapshot.events_lost) == ((), 0, 0)


def test_a_histogram_that_is_missing_is_empty(writer: SegmentWriter, reader: SegmentReader) -> None:
    writer.put_restores(Restores(1, 2, 3), Restores())
    snapshot = reader.snapshot(now=NOW)
    assert snapshot.ram == Restores(1, 2, 3, (0,) * len(LATENCY_US))


def test_changes_are_seen_by_a_reader_that_stays(
    writer: SegmentWriter, reader: SegmentReader
) -> None:
    for free in range(3):
        group = replace(GROUP, slots=Slots(free, 0, 0, 0, 9 - free))
        writer.put_groups([group])
        assert reader.snapshot(now=NOW).groups == (group,)


def test_what_did_not_change_is_not_decoded_again(
    writer: SegmentWriter, reader: SegmentReader
) -> None:
    writer.put_sequence(0, SEQUENCE)
    writer.put_sequence(1, replace(SEQUENCE, number=8))
    first = reader.snapshot(now=NOW).sequences
    writer.put_sequence(1, replace(SEQUENCE, number=9))
    second = reader.snapshot(now=NOW).sequences
    assert second[0] is first[0]
    assert second[1].number == 9


def test_where_nothing_changed_only_versions_are_read(
    writer: SegmentWriter, reader: SegmentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.put_sequence(0, SEQUENCE)
    reader.snapshot(now=NOW)
    nbytes, read = [], reader._file.read

    def counted(offset: int, n: int) -> bytes:
        nbytes.append(n)
        return read(offset, n)

    monkeypatch.setattr(reader._file, "read", counted)
    reader.snapshot(now=NOW)
    layout = writer._layout
    versions = [t.versions for t in (layout.state, layout.groups, layout.tiers, layout.restores)]
    versions += [layout.victims.versions, layout.sequences.versions]
    assert sum(nbytes) == sum(8 * column.length for column in versions) + 16


def test_a_dropped_sequence_is_gone_and_its_row_free(
    writer: SegmentWriter, reader: SegmentReader
) -> None:
    writer.put_sequence(3, SEQUENCE)
    assert reader.snapshot(now=NOW).sequences == (SEQUENCE,)
    writer.drop_sequence(3)
    assert reader.snapshot(now=NOW).sequences == ()
    writer.put_sequence(3, SEQUENCE)
    assert reader.snapshot(now=NOW).sequences == (SEQUENCE,)


def test_the_first_victims_are_kept(writer: SegmentWriter, reader: SegmentReader) -> None:
    victims = [Victim("g0", slot, SlotClass.LIVE, None, None, None, None, 0) for slot in range(70)]
    behind = writer._layout.victims.rows.end
    before = writer.path.read_bytes()[behind:]
    writer.put_victims(0, victims)
    assert reader.snapshot(now=NOW).victims == tuple(victims[:64])
    assert writer.path.read_bytes()[behind:] == before
    writer.put_victims(0, victims[5:7])
    assert reader.snapshot(now=NOW).victims == tuple(victims[5:7])


def test_a_number_that_does_not_fit_an_event_is_bounded(
    writer: SegmentWriter, reader: SegmentReader
) -> None:
    writer.event(Kind.RESTORED, -1, count=2**40, nbytes=2**70, duration_us=-5, tokens=3)
    [event] = reader.snapshot(now=NOW).events
    assert (event.when, event.count, event.nbytes) == (0, 2**32 - 1, 2**64 - 1)
    assert (event.seconds, event.tokens) == (None, 3)


@pytest.mark.parametrize("tokens", [-1, 2**64])
def test_a_number_that_does_not_fit_a_row_changes_nothing(
    writer: SegmentWriter, reader: SegmentReader, tokens: int
) -> None:
    writer.put_sequence(0, SEQUENCE)
    with pytest.raises(struct.error):
        writer.put_sequence(0, replace(SEQUENCE, tokens=tokens))
    snapshot = reader.snapshot(now=NOW)
    assert snapshot.sequences == (SEQUENCE,)
    assert not snapshot.torn


@pytest.mark.parametrize("row", [-1, 8])
def test_there_is_no_row_outside_of_the_table(writer: SegmentWriter, row: int) -> None:
    before = writer.path.read_bytes()
    with pytest.raises(IndexError):
        writer.put_sequence(row, SEQUENCE)
    assert writer.path.read_bytes() == before


@pytest.mark.parametrize("phase", [Phase.CLOSED, Phase.FAILED])
def test_the_file_stays_after_the_end_and_says_how_it_was(
    writer: SegmentWriter, reader: SegmentReader, phase: Phase
) -> None:
    writer.put_state(NOW + 5, phase=Phase.RUN, running=2, totals={"late": 3})
    writer.close(phase)
    writer.close()
    snapshot = reader.snapshot(now=NOW)
    assert (snapshot.phase, snapshot.heartbeat, snapshot.running) == (phase, NOW + 5, 2)
    assert snapshot.totals == {"late": 3}


def test_control_codes_do_not_reach_a_terminal(tmp_path: Path) -> None:
    with (
        closing(create(tmp_path, pool=replace(POOL, name="a\x1b[2Jb\nc"))) as writer,
        closing(SegmentReader(writer.path)) as reader,
    ):
        assert reader.pool.name == "a?[2Jb?c"


def test_more_than_a_segment_describes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="251 tiers do not fit"):
        SegmentWriter.create(tmp_path, POOL, [GROUP], [TIER] * (MAX_TIERS + 1))
    with pytest.raises(FormatError, match="do not fit"):
        SegmentWriter.create(tmp_path, POOL, [replace(GROUP, name="g" * MAX_BYTES)], [])
    assert not list(tmp_path.iterdir())


def test_a_failed_creation_leaves_nothing(tmp_path: Path) -> None:
    negative = replace(GROUP, slots=Slots(-1, 0, 0, 0, 0))
    with pytest.raises(struct.error):
        SegmentWriter.create(tmp_path, POOL, [negative], [])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("row", [0, 63, 64, 127, 129])
def test_of_many_rows_the_one_that_changed_is_read(tmp_path: Path, row: int) -> None:
    with (
        closing(create(tmp_path, sequences=130)) as writer,
        closing(SegmentReader(writer.path)) as reader,
    ):
        for place in range(130):
            writer.put_sequence(place, replace(SEQUENCE, number=place + 1))
        before = reader.snapshot(now=NOW).sequences
        assert reader.snapshot(now=NOW).sequences is before
        writer.put_sequence(row, replace(SEQUENCE, number=1000))
        after = reader.snapshot(now=NOW).sequences
        changed = [i for i in range(130) if after[i] is not before[i]]
        assert (changed, after[row].number) == ([row], 1000)


def test_an_order_that_moved_is_read_again(writer: SegmentWriter, reader: SegmentReader) -> None:
    order = [Victim("g0", n, SlotClass.LIVE, n + 1, n, NOW, "nvme0", n) for n in range(8)]
    for victims in (order, order[1:], [order[7], *order[:3]], [replace(order[2], lost=99)], []):
        writer.put_victims(0, victims)
        assert reader.snapshot(now=NOW).victims == tuple(victims)
