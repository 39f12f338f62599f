# SPDX-License-Identifier: Apache-2.0
"""The format of the index: pages of entries, and what a group's pages say together.

Covers bytes only: no file, no transaction. A page is the value of one key of LMDB and holds the
entries of ``PAGE_SLOTS`` neighbouring slots of a group, behind a seal that covers them and the key.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import xxhash

from tiercache.errors import InvariantError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: The longest block hash; shorter ones are padded.
HASH_BYTES: Final = 40
#: Entries per page: with LMDB's header, a page fills two pages of 4 KiB to 99 %.
PAGE_SLOTS: Final = 127
#: Entries decoded at once: 2 MiB, which stay in the cache. Fresh memory takes twice the time.
CHUNK_ROWS: Final = 32_768

_KEY: Final = struct.Struct(">HI")  # group, page: big-endian, so that LMDB sorts by number
_ENTRY: Final = struct.Struct(f"<{HASH_BYTES}sB7xQQ")  # hash, its length (0: none), checksum, stamp
_SEAL: Final = struct.Struct("<Q")
_U64: Final = 1 << 64
#: Where in an entry the stamp is, in words of 8 bytes; and one that no count of ours reaches.
_STAMP: Final = _ENTRY.size // 8 - 1
_FORGED_STAMP: Final = 1 << 63

PAGE_BYTES: Final = _SEAL.size + PAGE_SLOTS * _ENTRY.size

Page = bytes | bytearray | memoryview
#: By key of the page: index in the page, packed entry.
Edits = dict[bytes, list[tuple[int, bytes]]]


class Location(NamedTuple):
    """A slot of one group on disk."""

    group_id: int
    slot: int


class Entry(NamedTuple):
    """What lies in a slot: its block's hash, the record's checksum, and when it was stored."""

    block_hash: bytes
    checksum: int
    """Unsigned, 64 bits, as is the stamp."""
    stamp: int
    """A count, not a time: the higher, the younger."""


class Loaded(NamedTuple):
    """The entries of a group, the oldest first."""

    keys: list[bytes]
    """Block hashes, each once, followed by what ``decode`` was told to put behind each."""
    slots: list[int]
    """In the same order."""
    checksums: Sequence[int]
    """In the same order; an array of numpy if there are any."""


class Decoded(NamedTuple):
    """What the pages of a group hold."""

    loaded: Loaded
    stale: list[int]
    """Slots whose entries do not count, and are to be removed."""
    next_stamp: int
    """Greater than every stamp."""


def page_key(group_id: int, number: int) -> bytes:
    return _KEY.pack(group_id, number)


def page_number(key: bytes) -> int:
    """Number of a page in its group. Raises struct.error for what is no key."""
    number: int = _KEY.unpack(key)[1]
    return number


def page_at(key: bytes) -> tuple[int, int] | None:
    """Group and number of a page; None for what is no key."""
    return _KEY.unpack(key) if len(key) == _KEY.size else None


def page_count(slots: int) -> int:
    return -(-slots // PAGE_SLOTS)


def is_page_of(key: bytes, slots: Mapping[int, int]) -> bool:
    """Whether a key is one of a page that has slots."""
    if len(key) != _KEY.size:
        return False
    group_id, number = _KEY.unpack(key)
    return bool(number < page_count(slots.get(group_id, 0)))


def is_intact(key: bytes, page: Page) -> bool:
    return len(page) == PAGE_BYTES and _SEAL.unpack_from(page) == (_seal(key, page),)


def to_edits(changes: Mapping[Location, Entry | None]) -> Edits:
    """Sort changes by page. Raises InvariantError for an entry that does not fit."""
    edits: Edits = {}
    for (group_id, slot), entry in changes.items():
        number, index = divmod(slot, PAGE_SLOTS)
        edits.setdefault(_KEY.pack(group_id, number), []).append((index, _pack(entry)))
    return edits


def edit(key: bytes, page: bytes | None, edits: list[tuple[int, bytes]]) -> bytearray:
    """Return the page (None: one without entries) with ``edits`` made, sealed."""
    edited = bytearray(page or PAGE_BYTES)
    for index, entry in edits:
        start = _SEAL.size + index * _ENTRY.size
        edited[start : start + _ENTRY.size] = entry
    _SEAL.pack_into(edited, 0, _seal(key, edited))
    return edited


def entries_of(page: Page) -> memoryview:
    """The packed entries of a page, which is what ``decode`` takes."""
    return memoryview(page)[_SEAL.size :]


def unpack(page: Page) -> Iterator[tuple[int, Entry]]:
    """The entries of a page as they are, with their places in it."""
    for index, row in enumerate(_ENTRY.iter_unpack(entries_of(page))):
        block_hash, length, checksum, stamp = row
        if length:
            yield index, Entry(block_hash[:length], checksum, stamp)


def decode(numbers: Sequence[int], entries: bytes, slots: int, suffix: bytes = b"") -> Decoded:
    """Read the ``entries`` of a group's pages, one after the other; ``numbers`` says which pages.

    Of entries with the same hash the youngest counts; those beyond ``slots`` do not, nor any that
    we cannot have made: with a hash too long, or a stamp after which there is no other. Written for
    a million entries: each step over all of them that is not numpy's takes a tenth of a second.
    """
    import numpy as np

    table = np.frombuffer(entries, np.uint8).reshape(-1, _ENTRY.size)
    words = np.frombuffer(entries, "<u8").reshape(-1, _ENTRY.size // 8)
    used = _counting(table, words[:, _STAMP])
    if not len(used):
        return Decoded(Loaded([], [], []), [], 0)
    checksums, stamps = words[used, -2:].T
    order = np.argsort(stamps)
    rows, checksums = used[order], checksums[order]
    pages, places = np.divmod(rows, PAGE_SLOTS)
    numbered = np.array(numbers, np.int64)[pages] * PAGE_SLOTS + places
    found, beyond = numbered.tolist(), bool(numbered.max() >= slots)
    names: list[bytes] = []
    for start in range(0, len(rows), CHUNK_ROWS):
        names += _names(table[rows[start : start + CHUNK_ROWS]], suffix)
    loaded, stale = Loaded(names, found, checksums), []
    if len(set(names)) < len(names) or beyond:
        youngest = dict(zip(names, range(len(names)), strict=True)).values()
        kept = sorted(row for row in youngest if found[row] < slots)
        loaded = Loaded([names[row] for row in kept], [found[row] for row in kept], checksums[kept])
        stale = sorted({*found}.difference(loaded.slots))
    return Decoded(loaded, stale, int(stamps[order[-1]]) + 1)


def _counting(
    table: "NDArray[np.uint8]", stamps: "NDArray[np.uint64]"
) -> "NDArray[np.signedinteger[Any]]":
    """Rows with an entry that we can have made."""
    import numpy as np

    lengths = table[:, HASH_BYTES]
    return np.flatnonzero((lengths > 0) & (lengths <= HASH_BYTES) & (stamps < _FORGED_STAMP))


def _names(table: "NDArray[np.uint8]", suffix: bytes) -> list[bytes]:
    """The hash of each packed entry, followed by ``suffix``."""
    import numpy as np

    lengths = table[:, HASH_BYTES]
    longest = int(lengths.max())
    names = np.empty((len(table), longest + len(suffix)), np.uint8)
    names[:, :longest] = table[:, :longest]
    names[:, longest:] = np.frombuffer(suffix, np.uint8)
    # Void, as numpy's strings take zeros that end a hash for padding.
    packed: list[bytes] = names.view(f"V{names.shape[1]}").ravel().tolist()
    if lengths.min() < longest:
        return [name[:n] + suffix for name, n in zip(packed, lengths.tolist(), strict=True)]
    return packed


def _pack(entry: Entry | None) -> bytes:
    if entry is None:
        return bytes(_ENTRY.size)
    block_hash, checksum, stamp = entry
    if not (0 < len(block_hash) <= HASH_BYTES and 0 <= checksum < _U64 and 0 <= stamp < _U64):
        raise InvariantError(f"the index cannot hold {entry}")
    return _ENTRY.pack(block_hash, len(block_hash), checksum, stamp)


def _seal(key: bytes, page: Page) -> int:
    """Checksum of the entries and the key: a bit that flips in a key would move a whole page."""
    return xxhash.xxh3_64_intdigest(entries_of(page), int.from_bytes(key, "big"))
