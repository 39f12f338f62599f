# SPDX-License-Identifier: Apache-2.0
"""Reads a segment while it is being written, without the writer knowing.

Covers what is consistent: each row by itself, and each event. Two rows may be a publication apart.
A file may hold anything: it costs a FormatError at worst. Rows that did not change since the
snapshot before are not decoded again.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress, count
from operator import ne
from pathlib import Path
from typing import Generic, TypeVar

from tiercache.errors import FormatError
from tiercache.stats import manifest, rows
from tiercache.stats.files import SegmentFile
from tiercache.stats.format import HEADER_BYTES, MAX_BYTES, RING, Layout, Table, unpack_header
from tiercache.stats.manifest import Manifest
from tiercache.stats.model import Event, Phase, Pool, Snapshot

#: A change takes the writer a microsecond, or as long as somebody else has its processor.
_TRIES = 100
_PAUSE_S = 50e-6
_RING_MASK = RING - 1
#: Rows whose versions are compared at once.
_BLOCK = 64

T = TypeVar("T")
Unpack = Callable[[int, bytes, int], T | None]


class SegmentReader:
    """A segment that is looked at again and again.

    Locking: none; one thread at a time. Raises: NoPoolError if the file cannot be opened,
    FormatError if it is of another format, damaged, or cut short meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = SegmentFile(path)
        try:
            with _named(path):
                self._begin()
        except FormatError:
            self.close()
            raise

    @property
    def pool(self) -> Pool:
        return self._pool

    @property
    def phase(self) -> Phase:
        with _named(self.path):
            self._state.refresh(patient=True)
            return self._state.whole()[0].phase

    @property
    def alive(self) -> bool:
        """Whether the writer runs; where its pid means nothing, whether it has not ended."""
        process = self._identity.process
        return process.is_alive if process.is_near else self.phase in (Phase.INIT, Phase.RUN)

    def snapshot(self, *, now: float) -> Snapshot:
        """What there is, with the events that no snapshot of this reader had yet.

        ``now`` is when it is taken, in seconds since the epoch.
        """
        alive = self.alive
        with _named(self.path):
            torn = not self._refresh(patient=alive)
            [state] = self._state.whole()
            events, total = self._ring.new()
            return Snapshot(
                *(now, state.heartbeat, state.phase, alive, state.running, self._pool),
                groups=self._groups.whole(),
                tiers=self._tiers.whole(),
                ram=self._restores.values[0],
                missed=self._restores.values[1],
                totals=state.totals,
                sequences=self._sequences.present(),
                sequences_dropped=self._file.word(self._layout.dropped),
                victims=tuple(v for row in self._victims.values for v in row or ()),
                events=events,
                events_total=total,
                events_lost=self._ring.lost,
                torn=torn,
            )

    def close(self) -> None:
        """Close the file; more than once does no harm."""
        self._file.close()

    def _refresh(self, *, patient: bool) -> bool:
        """Read all tables; whether all rows are whole."""
        first = (self._state, self._groups, self._tiers)
        tables = (*first, self._restores, self._victims, self._sequences)
        whole = [table.refresh(patient=patient) for table in tables]
        return all(whole)

    def _begin(self) -> None:
        file = self._file
        self._identity, counts = unpack_header(file.read(0, HEADER_BYTES))
        self._layout = layout = Layout(counts)
        if counts.manifest_bytes > manifest.MAX_BYTES or layout.nbytes > MAX_BYTES:
            raise FormatError("the header is damaged")
        if layout.nbytes > file.nbytes:
            raise FormatError("the file has been cut short")
        fixed = Manifest.decode(file.read(layout.manifest.offset, counts.manifest_bytes))
        if (len(fixed.groups), len(fixed.tiers)) != (counts.groups, counts.tiers):
            raise FormatError("header and manifest differ")
        self._pool = replace(fixed.pool, path=str(self.path))
        codecs = rows.Codecs(fixed)
        self._state = _Rows(file, layout.state, codecs.state.unpack)
        self._groups = _Rows(file, layout.groups, codecs.groups.unpack)
        self._tiers = _Rows(file, layout.tiers, codecs.tiers.unpack)
        self._restores = _Rows(file, layout.restores, codecs.restores.unpack)
        self._victims = _Rows(file, layout.victims, codecs.victims.unpack)
        self._sequences = _Rows(file, layout.sequences, codecs.sequences.unpack)
        self._ring = _Ring(file, layout, codecs.events)


class _Rows(Generic[T]):
    """The rows of one table by their place; None for those that were never written."""

    def __init__(self, file: SegmentFile, table: Table, unpack: Unpack[T]) -> None:
        self._file = file
        self._table = table
        self._unpack = unpack
        #: The version of each row that is in ``values``, as bytes of the column.
        self._seen = bytearray(table.versions.length * table.versions.width)
        self._present: tuple[T, ...] | None = None
        self.values: list[T | None] = [None] * table.rows.length

    def whole(self) -> tuple[T, ...]:
        """All rows, of a table that is complete from the beginning."""
        present = self.present()
        if len(present) < len(self.values):
            raise FormatError("a row is missing")
        return present

    def present(self) -> tuple[T, ...]:
        """The rows there are; the same tuple as long as nothing has changed."""
        if self._present is None:
            self._present = tuple([row for row in self.values if row is not None])
        return self._present

    def refresh(self, *, patient: bool) -> bool:
        """Read what has changed.

        False: a row stayed in the middle of a change, and its value is what was there. That takes
        100 tries if ``patient``; of a writer that has ended, nothing is to be waited for.
        """
        for _ in range(_TRIES if patient else 1):
            if self._read():
                return True
            if patient:
                time.sleep(_PAUSE_S)
        return False

    def _read(self) -> bool:
        """Whether nothing changed while it was read."""
        before = self._file.column(self._table.versions)
        changed = self._changed(before)
        return not changed or self._decode(changed, before)

    def _changed(self, versions: bytes) -> list[int]:
        """Rows that are not the ones seen, found block by block: few of thousands change."""
        if versions == self._seen:
            return []
        new, old = memoryview(versions).cast("Q"), memoryview(self._seen).cast("Q")
        changed: list[int] = []
        for first in range(0, len(new), _BLOCK):
            places = slice(first, first + _BLOCK)
            if new[places] != old[places]:
                changed += compress(count(first), map(ne, new[places], old[places]))
        return changed

    def _decode(self, changed: list[int], before: bytes) -> bool:
        """Whether all of ``changed`` kept one even version while they were read."""
        column, first = self._table.rows, changed[0]
        data = self._file.read(column.at(first), column.at(changed[-1] + 1) - column.at(first))
        versions = self._table.versions
        after = self._file.column(versions)
        self._present = None
        is_whole = True
        for place in changed:
            self.values[place] = self._unpack(place, data, (place - first) * column.width)
            word = slice(place * versions.width, (place + 1) * versions.width)
            if before[word] == after[word] and not before[word.start] & 1:
                self._seen[word] = before[word]
            else:
                is_whole = False
        return is_whole


class _Ring:
    """The events, each of them returned once."""

    def __init__(self, file: SegmentFile, layout: Layout, codec: rows.EventRecord) -> None:
        self._file = file
        self._layout = layout
        self._codec = codec
        self._next = 1
        self.lost = 0

    def new(self) -> tuple[tuple[Event, ...], int]:
        """Events since the last call, and the number of the last one."""
        last = self._file.word(self._layout.events)
        first = max(self._next, _oldest(last))
        if first > last:
            return (), last
        data = self._records(first, last)
        # What the writer got to meanwhile is half there at best.
        intact = range(max(first, _oldest(self._file.word(self._layout.events))), last + 1)
        width = self._layout.ring.width
        found = (self._codec.unpack(n, data, (n - first) * width) for n in intact)
        events = tuple(event for event in found if event is not None)
        self.lost += last + 1 - self._next - len(events)
        self._next = last + 1
        return events, last

    def _records(self, first: int, last: int) -> bytes:
        """The bytes of these events, at most a ring full, in their order."""
        ring = self._layout.ring
        begin, end = first & _RING_MASK, (last & _RING_MASK) + 1
        if begin < end:
            return self._file.read(ring.at(begin), (end - begin) * ring.width)
        older = self._file.read(ring.at(begin), ring.end - ring.at(begin))
        return older + self._file.read(ring.offset, end * ring.width)


def _oldest(last: int) -> int:
    """The first event that is there for sure: the one before it may be being overwritten."""
    return last - RING + 2


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
