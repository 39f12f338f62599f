# SPDX-License-Identifier: Apache-2.0
"""What a soaked tier has acknowledged and not evicted, written down where no kill can take it.

Covers the file and who writes it: the books of the tier, which are watched. A record is in the
kernel's hands before the tier goes on: "stored" follows the acknowledgement, "gone" comes before
the entry can leave the index.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tiercache.blocks import Key
from tiercache.tiers.nvme.space import Allocation, SlotTable

STORED, GONE, OPENED, RESET, BORN = b"+", b"-", b"o", b"r", b"b"
_PAYLOAD: Final = 36
_RECORD: Final = 1 + _PAYLOAD


@dataclass(slots=True)
class Past:
    """What earlier processes left."""

    kept: set[Key] = field(default_factory=set)
    """What must be there."""
    oldest: int = 0
    """A reset that a kill cut short may have left blocks of epochs from here on."""
    epoch: int = 0
    born: int = 0
    """Conversations that began."""

    @property
    def epochs(self) -> range:
        return range(self.oldest, self.epoch + 1)


class Journal:
    """The file at ``path``, begun anew from what it says. Locking: none."""

    def __init__(self, path: Path) -> None:
        self.past = _replay(path)
        fresh = path.with_suffix(".new")
        self._file = fresh.open("wb", buffering=0)
        self.note(RESET, [_pair(self.past.oldest, self.past.epoch)])
        self.note(BORN, [_pair(self.past.born, 0)])
        self.note(OPENED, [b""])
        self.note(STORED, self.past.kept)
        fresh.replace(path)

    def note(self, what: bytes, payloads: Iterable[bytes]) -> None:
        if records := b"".join(what + payload.ljust(_PAYLOAD, b"\0") for payload in payloads):
            self._file.write(records)

    def begin_reset(self, oldest: int, epoch: int) -> None:
        self.note(RESET, [_pair(oldest, epoch)])

    def begin_talk(self, number: int) -> None:
        self.note(BORN, [_pair(number + 1, 0)])

    def close(self) -> None:
        self._file.close()


def _pair(one: int, other: int) -> bytes:
    return one.to_bytes(8, "big") + other.to_bytes(8, "big")


def _replay(path: Path) -> Past:
    past, resetting, cleared = Past(), False, False
    for what, payload in _records(path):
        if what == STORED:
            past.kept.add(Key(payload))
            # Nothing is stored before what was cleared has left the index.
            cleared |= resetting
            past.oldest, resetting = (past.epoch if resetting else past.oldest), False
        elif what == GONE:
            past.kept.discard(Key(payload))
        elif what == OPENED:
            resetting = cleared = False
        elif what == RESET:
            past.oldest, past.epoch = int.from_bytes(payload[:8]), int.from_bytes(payload[8:16])
            resetting = True
        else:
            past.born = max(past.born, int.from_bytes(payload[:8]))
    if cleared:
        past.kept.clear()  # what is stored after a reset is not for the next process
    return past


def _records(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Whole records: the last one may have been cut off."""
    found = path.read_bytes() if path.exists() else b""
    for start in range(0, len(found) - _RECORD + 1, _RECORD):
        yield found[start : start + 1], found[start + 1 : start + _RECORD]


@contextmanager
def watched(journal: Journal) -> Iterator[list[SlotTable]]:
    """Have the books of every tier that is opened meanwhile told to ``journal``; yields them."""
    tables: list[SlotTable] = []
    restore, publish = SlotTable.restore, SlotTable.publish
    allocate, drop, clear = SlotTable.allocate, SlotTable.drop, SlotTable.clear

    def restored(table: SlotTable, keys: Sequence[Key], slots: Sequence[int]) -> None:
        tables.append(table)
        restore(table, keys, slots)

    def published(table: SlotTable, keys: Iterable[Key]) -> list[Key]:
        stored = publish(table, keys)
        journal.note(STORED, stored)
        return stored

    def allocated(table: SlotTable, keys: Collection[Key]) -> Allocation | None:
        allocation = allocate(table, keys)
        journal.note(GONE, allocation.evicted if allocation else ())
        return allocation

    def dropped(table: SlotTable, keys: Sequence[Key]) -> dict[Key, int]:
        gone = drop(table, keys)
        journal.note(GONE, gone)
        return gone

    def cleared(table: SlotTable) -> None:
        gone = list(table.slot_of)
        clear(table)
        journal.note(GONE, gone)

    new = {"restore": restored, "publish": published, "allocate": allocated}
    with patched(SlotTable, new | {"drop": dropped, "clear": cleared}):
        yield tables


@contextmanager
def patched(owner: Any, new: Mapping[str, Any]) -> Iterator[None]:
    """Have ``owner`` do something else meanwhile."""
    before = {name: getattr(owner, name) for name in new}
    for name, value in new.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
