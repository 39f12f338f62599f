# SPDX-License-Identifier: Apache-2.0
"""Space on disk that no entry needs, and which entries to give up for more.

Covers what can be given back of segment files, who goes first, and overwriting what goes. The plan
is made of numbers; ``carry_out`` and ``erase`` do it, in a namespace that the caller holds.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from math import ceil
from pathlib import Path
from typing import NamedTuple

from tiercache.errors import TierCacheError
from tiercache.tiers.base import neighbours
from tiercache.tiers.nvme import tree
from tiercache.tiers.nvme.environment import sync
from tiercache.tiers.nvme.freeslots import gaps
from tiercache.tiers.nvme.offline import OfflineNamespace, StoredEntry
from tiercache.tiers.nvme.segments import segment_name, segment_number
from tiercache.tiers.nvme.tree import Seen
from tiercache.tiers.nvme.writing import cut, punch, wipe

Ranges = list[tuple[int, int]]
"""First byte, byte behind the last."""


class Way(StrEnum):
    """How a file's space is given back."""

    REMOVE = "remove"
    SHRINK = "shrink"
    """Cut off what is behind the last entry, and make holes before it."""


class Step(NamedTuple):
    """What is to be done to one segment."""

    file: Path
    way: Way
    length: int
    """Bytes that the file keeps."""
    holes: Ranges
    nbytes: int
    """Bytes on disk that it frees."""


def read_entries(found: OfflineNamespace) -> list[StoredEntry]:
    """All entries, the oldest first. Raises TierCacheError if a page of them is damaged."""
    entries = [
        entry for group_id in found.groups for entry in chain.from_iterable(found.entries(group_id))
    ]
    if found.torn:
        text = f"{found.torn} pages of the index of {found.directory} are damaged"
        raise TierCacheError(f"{text}: run tiercache verify --fix first")
    return sorted(entries, key=lambda entry: entry.stamp)


def still_there(found: OfflineNamespace, entries: Iterable[StoredEntry]) -> list[StoredEntry]:
    """Those of ``entries`` that the index has as they are: a server may have run meanwhile."""
    wanted = set(entries)
    return [entry for entry in read_entries(found) if entry in wanted]


def steps(found: OfflineNamespace, kept: Iterable[StoredEntry]) -> list[Step]:
    """How to give back all space that the entries ``kept`` do not need."""
    used: dict[tuple[int, int], list[int]] = {}
    for entry in kept:
        number, index = divmod(entry.slot, found.slots_per_segment(entry.group_id))
        used.setdefault((entry.group_id, number), []).append(index)
    planned = (
        _step(found, group_id, seen, used.get((group_id, number), []))
        for group_id, number, seen in _segments(found)
    )
    return [step for step in planned if step is not None]


def _segments(found: OfflineNamespace) -> Iterator[tuple[int, int, Seen]]:
    for seen in tree.scan(found.directory):
        directory, _, file = seen.name.partition("/")
        group_id = tree.group_of(directory)
        sizes = tree.segment_sizes([seen])
        if sizes and group_id is not None and group_id in found.record_bytes:
            yield group_id, segment_number(file), seen


def _step(found: OfflineNamespace, group_id: int, seen: Seen, used: list[int]) -> Step | None:
    file = found.directory / seen.name
    if not used:
        return Step(file, Way.REMOVE, 0, [], seen.occupied)
    record = found.record_bytes[group_id]
    length = min(seen.nbytes, (max(used) + 1) * record)
    holes = [(a * record, b * record) for a, b in gaps(used, max(used) + 1)]
    nbytes = max(0, seen.occupied - len(used) * record)
    if not nbytes and length == seen.nbytes:
        return None
    return Step(file, Way.SHRINK, length, holes, nbytes)


def carry_out(planned: Iterable[Step]) -> bool:
    """Give the space back; the server allocates it again when it writes. Raises OSError.

    False if the file system has no holes: then files are only cut and removed.
    """
    has_holes = True
    for step in planned:
        if step.way is Way.REMOVE:
            step.file.unlink()
            sync(step.file.parent)
            continue
        cut(step.file, step.length)
        has_holes = has_holes and punch(step.file, step.holes)
    return has_holes


def erase(found: OfflineNamespace, slots: Mapping[int, Collection[int]]) -> Iterator[int]:
    """Overwrite slots of groups with zeros; yields the bytes of each run. Raises OSError.

    What is behind the end of a file, or in a file that is missing, is not there to be erased.
    """
    for group_id, chosen in slots.items():
        for run in _runs(found, group_id, sorted(chosen)):
            file, start, _ = found.location(group_id, run.start)
            if not file.is_file() or file.is_symlink():
                continue
            end = start + len(run) * found.record_bytes[group_id]
            wipe(file, [(start, min(end, file.stat().st_size))])
            yield end - start


def _runs(found: OfflineNamespace, group_id: int, slots: Sequence[int]) -> Iterator[range]:
    """Neighbours that lie in one file."""
    size = found.slots_per_segment(group_id)
    for run in neighbours(slots):
        start = run.start
        while start < run.stop:
            stop = min(run.stop, (start // size + 1) * size)
            yield range(start, stop)
            start = stop


def all_slots(found: OfflineNamespace) -> dict[int, set[int]]:
    """Every slot that a file has, by group."""
    slots: dict[int, set[int]] = {group_id: set() for group_id in found.groups}
    for group_id, number, seen in _segments(found):
        first = number * found.slots_per_segment(group_id)
        count = -(-seen.nbytes // found.record_bytes[group_id])
        slots[group_id].update(range(first, first + count))
    return slots


def segment_files(found: OfflineNamespace) -> list[Path]:
    return [
        found.group_directory(group_id) / segment_name(number)
        for group_id, number, _ in _segments(found)
    ]


# --- who goes


def oldest(
    entries: Sequence[StoredEntry], record_bytes: Mapping[int, int], nbytes: int
) -> list[StoredEntry]:
    """The fewest of the oldest entries whose records have ``nbytes`` bytes; all, if too few."""
    chosen = []
    for entry in entries:
        if nbytes <= 0:
            break
        chosen.append(entry)
        nbytes -= record_bytes[entry.group_id]
    return chosen


def beyond_share(entries: Sequence[StoredEntry], share: float) -> list[StoredEntry]:
    """The oldest of each group but for ``share`` of it, rounded up; ``entries`` are by age."""
    by_group: dict[int, list[StoredEntry]] = {}
    for entry in entries:
        by_group.setdefault(entry.group_id, []).append(entry)
    gone: list[StoredEntry] = []
    for group in by_group.values():
        kept = ceil(len(group) * share - 1e-9)  # 7 % of 100 is not 8, whatever floats say
        gone += group[: len(group) - kept]
    return gone
