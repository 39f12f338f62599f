# SPDX-License-Identifier: Apache-2.0
"""Where everything is in a segment: the header, and the columns that follow from its counts.

A segment is a file of columns of equal elements: the manifest, words that are changed one by one,
the versions and the rows of each table, and the ring of events. A row's version is odd while the
row is being changed, and no two changes leave it at the same number. Covers the header in both
directions and the place of every column. What a row means is ``rows``; reading and writing are
``reader`` and ``writer``.
"""

from struct import Struct
from typing import NamedTuple

from tiercache.errors import FormatError
from tiercache.stats import rows
from tiercache.stats.process import Process

MAGIC = b"TCSTATS1"
FORMAT = 1
HEADER_BYTES = 4096
#: Events that the ring has room for: a power of two.
RING = 8192
#: A segment has about 1 MB; what claims to have more than this is none.
MAX_BYTES = 64 << 20

#: The same in every format there will be, so that any program can say whose segment it is.
_IDENTITY = Struct("<8sHHIQQ")
_COUNTS = Struct("<4I")
#: Columns begin at the boundary of a cache line.
_ALIGNMENT = 64
_WORD = 8


class Column(NamedTuple):
    """``length`` elements of ``width`` bytes, ``offset`` bytes from the beginning of the file."""

    offset: int
    length: int
    width: int

    @property
    def end(self) -> int:
        return self.at(self.length)

    @property
    def word(self) -> int:
        """The place of the first of its words among all words of the file."""
        return self.offset // _WORD

    def at(self, place: int) -> int:
        return self.offset + place * self.width


class Table(NamedTuple):
    """Rows that change, each under its version."""

    versions: Column
    rows: Column


class Counts(NamedTuple):
    """How much there is of what differs between segments."""

    manifest_bytes: int
    groups: int
    tiers: int
    sequences: int


class Identity(NamedTuple):
    """Who writes a segment, and in which format."""

    format: int
    rank: int
    process: Process

    def pack(self) -> bytes:
        process = self.process
        return _IDENTITY.pack(MAGIC, self.format, self.rank, *process)

    @classmethod
    def unpack(cls, header: bytes) -> "Identity":
        """Raises: FormatError if this is no segment at all."""
        if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
            raise FormatError("not a segment")
        _, version, rank, *process = _IDENTITY.unpack_from(header)
        return cls(version, rank, Process(*process))


def pack_header(identity: Identity, counts: Counts) -> bytes:
    return (identity.pack() + _COUNTS.pack(*counts)).ljust(HEADER_BYTES, b"\0")


def unpack_header(header: bytes) -> tuple[Identity, Counts]:
    """Raises: FormatError for no segment, and for one in another format than ours."""
    identity = Identity.unpack(header)
    if identity.format != FORMAT:
        raise FormatError(f"server writes format {identity.format}, this program reads {FORMAT}")
    return identity, Counts(*_COUNTS.unpack_from(header, _IDENTITY.size))


class Layout:
    """The columns of a segment, one after the other."""

    def __init__(self, counts: Counts) -> None:
        self.nbytes = HEADER_BYTES
        self.manifest = self._column(counts.manifest_bytes, 1)
        #: The number of the last event. The first one has number 1.
        self.events = self._column(1, _WORD)
        #: Sequences that there was no row for.
        self.dropped = self._column(1, _WORD)
        self.state = self._table(1, rows.StateRow.width)
        self.groups = self._table(counts.groups, rows.GroupRow.width)
        self.tiers = self._table(counts.tiers, rows.TierRow.width)
        #: What RAM gave, and what was missed.
        self.restores = self._table(2, rows.RestoresRow.width)
        self.victims = self._table(counts.groups, rows.VictimsRow.width)
        self.sequences = self._table(counts.sequences, rows.SequenceRow.width)
        self.ring = self._column(RING, rows.EventRecord.width)

    def _column(self, length: int, width: int) -> Column:
        column = Column(-(-self.nbytes // _ALIGNMENT) * _ALIGNMENT, length, width)
        self.nbytes = column.end
        return column

    def _table(self, length: int, width: int) -> Table:
        return Table(self._column(length, _WORD), self._column(length, width))
