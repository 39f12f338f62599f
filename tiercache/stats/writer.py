# SPDX-License-Identifier: Apache-2.0
"""Writes a segment: one process, in place, without ever waiting for a reader.

Covers changes that readers may look at midway. The order of stores is what they rely on, and each
version or number is one aligned store: exact on x86-64; elsewhere a reader may take an event for
lost.
"""

import mmap
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tiercache.errors import UnsupportedError
from tiercache.stats import files, model, rows
from tiercache.stats.format import FORMAT, RING, Counts, Identity, Layout, Table, pack_header
from tiercache.stats.manifest import Manifest
from tiercache.stats.model import Group, Kind, Phase, Pool, Restores, Tier, Victim
from tiercache.stats.process import Process

#: No group, or no tier: in the arguments of ``SegmentWriter.event``.
NONE = -1

_CODES = {kind: code for code, kind in enumerate(rows.KINDS)}
_RECORD = rows.EventRecord.struct.pack
#: The largest number of each of its fields.
_MOST = tuple((1 << bits) - 1 for bits in (64, 64, 8, 8, 16, 32, 32, 64, 32, 64, 64))
_RECORD_BYTES = rows.EventRecord.width
_RING_MASK = RING - 1

T = TypeVar("T")


class SegmentWriter:
    """A segment that its pool writes; made with ``create``.

    The file is left behind, so that one can look at it after a crash.

    Locking: none; one thread at a time. Raises: struct.error from ``put_*`` for a number that is
    negative or has more than 64 bits, and IndexError for a row that there is not; nothing has
    changed then.
    """

    def __init__(self, path: Path, memory: mmap.mmap, layout: Layout, manifest: Manifest) -> None:
        self.path = path
        self._memory = memory
        self._words = memoryview(memory).cast("Q")
        self._layout = layout
        self._codecs = rows.Codecs(manifest)
        self._state = rows.State(manifest.pool.started, Phase.INIT, 0, {})
        self._ring = layout.ring.offset
        self._last = layout.events.word
        self._events = 0

    @classmethod
    def create(
        cls,
        directory: Path,
        pool: Pool,
        groups: Sequence[Group],
        tiers: Sequence[Tier],
        *,
        rank: int = 0,
        sequences: int = 4096,
    ) -> "SegmentWriter":
        """Make the file, which is whole when it appears and private to its user.

        ``pool.path`` is left to readers. There is room for so many ``sequences``. A segment of the
        same name, pid and rank is replaced.

        Raises: OSError if the directory is not private or has no room; FormatError for more
        groups or tiers than a segment describes; UnsupportedError on a big-endian machine.
        """
        if sys.byteorder != "little":
            raise UnsupportedError("segments are for little-endian machines")
        manifest = Manifest.of(pool, groups, tiers)
        encoded = manifest.encode()
        counts = Counts(len(encoded), len(groups), len(tiers), sequences)
        header = pack_header(Identity(FORMAT, rank, Process.of(pool.pid)), counts)
        layout = Layout(counts)
        name = files.FileName(pool.name, pool.pid, rank)
        folder = files.open_private(directory)
        try:
            with files.appearing(folder, name, layout.nbytes) as memory:
                writer = cls(directory / str(name), memory, layout, manifest)
                memory[: len(header)] = header
                memory[layout.manifest.offset : layout.manifest.end] = encoded
                writer._put(layout.state, writer._codecs.state, 0, writer._state)
                writer.put_groups(groups)
                writer.put_tiers(tiers)
        finally:
            os.close(folder)
        return writer

    def event(
        self,
        kind: Kind,
        when_ns: int,
        *,
        group: int = NONE,
        tier: int = NONE,
        count: int = 0,
        sequence: int = 0,
        tokens: int = 0,
        nbytes: int = 0,
        duration_us: int = 0,
    ) -> None:
        """Add to the ring, at once. A number that does not fit becomes the nearest that does."""
        n = self._events + 1
        code, group, tier = _CODES[kind], group & 0xFFFF, tier & 0xFF
        row = (n, when_ns, code, tier, group, count, sequence, nbytes, duration_us, tokens, n)
        try:
            data = _RECORD(*row)
        except struct.error:
            data = _RECORD(*map(_fit, row, _MOST))
        at = self._ring + (n & _RING_MASK) * _RECORD_BYTES
        self._memory[at : at + _RECORD_BYTES] = data
        # Last: up to this number, readers take events for whole.
        self._words[self._last] = self._events = n

    def put_state(
        self, now: float, *, phase: Phase, running: int, totals: Mapping[str, int]
    ) -> None:
        """Also the heartbeat. ``totals`` are those of ``Snapshot.totals``; others are left out."""
        self._state = rows.State(now, phase, running, totals)
        self._put(self._layout.state, self._codecs.state, 0, self._state)

    def put_groups(self, groups: Sequence[Group]) -> None:
        """Of all groups, in the order of ``create``."""
        for place, group in enumerate(groups):
            self._put(self._layout.groups, self._codecs.groups, place, group)

    def put_tiers(self, tiers: Sequence[Tier]) -> None:
        """Of all tiers, in the order of ``create``."""
        for place, tier in enumerate(tiers):
            self._put(self._layout.tiers, self._codecs.tiers, place, tier)

    def put_restores(self, ram: Restores, missed: Restores) -> None:
        for place, restores in enumerate((ram, missed)):
            self._put(self._layout.restores, self._codecs.restores, place, restores)

    def put_victims(self, group: int, victims: Sequence[Victim]) -> None:
        """The first 64 are kept."""
        self._put(self._layout.victims, self._codecs.victims, group, victims)

    def put_sequence(self, row: int, sequence: model.Sequence) -> None:
        self._put(self._layout.sequences, self._codecs.sequences, row, sequence)

    def drop_sequence(self, row: int) -> None:
        self._put(self._layout.sequences, self._codecs.sequences, row, None)

    def put_dropped(self, n: int) -> None:
        """How many sequences there was no row for."""
        self._words[self._layout.dropped.word] = n

    def close(self, phase: Phase = Phase.CLOSED) -> None:
        """Say how it ended and let go of the memory; more than once does no harm."""
        if self._memory.closed:
            return
        self._put(self._layout.state, self._codecs.state, 0, self._state._replace(phase=phase))
        self._words.release()
        self._memory.close()

    def _put(self, table: Table, codec: rows.Codec[T], place: int, value: T) -> None:
        if not 0 <= place < table.rows.length:
            raise IndexError(place)
        data = codec.pack(value)
        word, at = table.versions.word + place, table.rows.at(place)
        # Odd until the row is whole; also if the change before this one was interrupted.
        odd = self._words[word] | 1
        self._words[word] = odd
        self._memory[at : at + len(data)] = data
        self._words[word] = odd + 1


def _fit(number: int, most: int) -> int:
    return min(max(number, 0), most)
