# SPDX-License-Identifier: Apache-2.0
"""Looking for damage in a namespace, without changing it.

Covers meta.json, the index, its entries against the files, and records against their checksums;
names and sizes of files are ``tree``'s. How it is put right is ``repair``. While a server writes,
what was found is looked at once more, and only what is still so counts.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tiercache.errors import DamageError, FormatError
from tiercache.tiers.nvme import tree
from tiercache.tiers.nvme.environment import DATA
from tiercache.tiers.nvme.findings import Audit, Check, Facts, Finding, Remedy
from tiercache.tiers.nvme.namespace import FORMAT, LOCK, META, namespace
from tiercache.tiers.nvme.offline import OfflineNamespace, StoredEntry
from tiercache.tiers.nvme.pages import Location, is_intact, page_at
from tiercache.tiers.nvme.records import checksum
from tiercache.tiers.nvme.segments import segment_name
from tiercache.tiers.nvme.tree import Seen

#: Bytes read so far, and in all.
Progress = Callable[[int, int], None]
#: A record may be of as many workers' parts; a server says how many, if its fingerprint does.
_MAX_WORKERS: Final = 64
#: What is no file does not keep us waiting.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: How often a record is looked at again while a server writes.
_LOOKS: Final = 3


def audit(
    found: OfflineNamespace,
    *,
    share: float = 0.0,
    capacity: int | None = None,
    progress: Progress = lambda _done, _total: None,
) -> Audit:
    """Look at everything but records, and at a random ``share`` of those.

    ``capacity`` is what a server may use, in bytes. Raises FormatError for another version,
    TierCacheError without access, DamageError for what cannot even be looked at.
    """
    if found.format not in {None, FORMAT}:
        text = f"format {found.format} found, this version reads {FORMAT}"
        raise FormatError(f"the namespace {found.directory} cannot be read: {text}")
    try:
        first = _look(found, capacity)
        findings, facts = first.findings, first.facts
        if findings and _is_written(found):
            still = {(one.code, one.path) for one in _look(found, capacity).findings}
            findings = tuple(one for one in findings if (one.code, one.path) in still)
        if share and not _is_lost(findings):
            findings += tuple(_records(found, facts, share, findings, progress))
    except OSError as error:
        raise DamageError(f"the namespace {found.directory} cannot be read: {error}") from error
    return Audit(findings, facts)


def _is_lost(findings: Iterable[Finding]) -> bool:
    return any(one.remedy in {Remedy.CLEAR, Remedy.EMPTY} for one in findings)


def _look(found: OfflineNamespace, capacity: int | None) -> Audit:
    seen = tree.scan(found.directory)
    facts = Facts()
    findings = [*_meta(found, seen)]
    files = tree.check(
        found.directory,
        seen,
        found.record_bytes,
        segment_bytes=found.segment_bytes,
        owner=found.directory.stat().st_uid,
    )
    if _is_lost(findings):
        # All goes but the lock, which whoever puts it right must be able to take.
        findings += [one for one in files if one.path == found.directory / LOCK]
    else:
        findings += files
        sizes = tree.segment_sizes(seen)
        findings += _index(found, sizes, facts)
        facts.segments = sum(map(len, sizes.values()))
        facts.segment_bytes = sum(sum(each.values()) for each in sizes.values())
    facts.occupied = sum(one.occupied for one in seen) + 4096
    findings += _space(facts, capacity)
    return Audit(tuple(findings), facts)


# --- meta.json


def _meta(found: OfflineNamespace, seen: list[Seen]) -> Iterator[Finding]:
    path = found.directory / META
    if found.meta is None:
        if any(one.nbytes for one in seen if "/" in one.name):
            what = "damaged" if any(one.name == META for one in seen) else "missing"
            text = f"{META} is {what}: nobody knows what the records are"
            yield Finding(Check.META, f"meta-{what}", text, Remedy.EMPTY, path)
        elif any(one.name == META for one in seen):
            text = f"{META} is damaged"
            yield Finding(Check.META, "meta-damaged", text, Remedy.EMPTY, path)
    elif namespace(found.fingerprint) != found.name or not found.record_bytes:
        text = f"{META} has the fingerprint of {namespace(found.fingerprint)}"
        yield Finding(Check.META, "fingerprint", text, Remedy.EMPTY, path)
    elif path.is_symlink():
        text = f"{META} is a symbolic link"
        yield Finding(Check.META, "meta-link", text, Remedy.META, path)


# --- the index


def _index(
    found: OfflineNamespace, sizes: Mapping[int, Mapping[int, int]], facts: Facts
) -> Iterator[Finding]:
    data = found.index_directory / DATA
    if not found.indexed:
        if sizes:
            text = f"{DATA} is missing: no record can be found"
            yield Finding(Check.INDEX, "index-missing", text, Remedy.CLEAR, data)
        return
    try:
        yield from _readers(found, facts)
        yield from _pages(found, facts)
        for group_id in found.groups:
            yield from _entries(found, group_id, sizes.get(group_id, {}), facts)
    except DamageError as error:
        yield Finding(Check.INDEX, "index-damaged", str(error), Remedy.CLEAR, data)


def _readers(found: OfflineNamespace, facts: Facts) -> Iterator[Finding]:
    readers = found.index.readers()
    facts.readers = len(readers)
    if dead := {one.pid for one in readers if not one.alive}:
        text = f"{len(dead)} processes that died while they read the index keep pages of it"
        yield Finding(Check.READERS, "dead-readers", text, Remedy.READERS)


def _pages(found: OfflineNamespace, facts: Facts) -> Iterator[Finding]:
    keys = found.index.keys()
    facts.pages = len(keys)
    groups = found.record_bytes
    if strange := tuple(key for key in keys if (at := page_at(key)) is None or at[0] not in groups):
        text = f"{len(strange)} pages of the index belong to no group"
        yield Finding(Check.PAGES, "strange-pages", text, Remedy.PAGES, keys=strange)
    torn = tuple(
        key
        for group_id in groups
        for rows in found.index.rows(group_id)
        for key, page in rows
        if not is_intact(key, page)
    )
    if torn:
        text = f"{len(torn)} pages of the index are damaged"
        yield Finding(Check.PAGES, "damaged-pages", text, Remedy.PAGES, keys=torn)


# --- entries


def _entries(
    found: OfflineNamespace, group_id: int, sizes: Mapping[int, int], facts: Facts
) -> Iterator[Finding]:
    entries = [entry for chunk in found.entries(group_id) for entry in chunk]
    facts.entries[group_id] = len(entries)
    lost = _lost(found, group_id, entries, sizes)
    yield from lost
    absent = {at for finding in lost for at in finding.locations}
    if old := tuple(at for at in _superseded(entries) if at not in absent):
        text = f"{len(old)} entries of group {group_id} are of blocks that have a younger one"
        yield Finding(Check.ENTRIES, "duplicates", text, Remedy.ENTRIES, None, old)
    counting = len(entries) - len(absent) - len(old)
    facts.record_bytes += counting * found.record_bytes[group_id]


def _superseded(entries: Iterable[StoredEntry]) -> Iterator[Location]:
    youngest: dict[bytes, StoredEntry] = {}
    for entry in sorted(entries, key=lambda entry: entry.stamp):
        if older := youngest.get(entry.block_hash):
            yield Location(older.group_id, older.slot)
        youngest[entry.block_hash] = entry


def _lost(
    found: OfflineNamespace,
    group_id: int,
    entries: Iterable[StoredEntry],
    sizes: Mapping[int, int],
) -> list[Finding]:
    """Entries whose records no file holds, by segment."""
    per_segment, record = found.slots_per_segment(group_id), found.record_bytes[group_id]
    lost: dict[int, list[Location]] = {}
    for entry in entries:
        number, index = divmod(entry.slot, per_segment)
        if (index + 1) * record > sizes.get(number, 0):
            lost.setdefault(number, []).append(Location(group_id, entry.slot))
    return [
        _lost_finding(found.group_directory(group_id), number, tuple(of), sizes)
        for number, of in lost.items()
    ]


def _lost_finding(
    directory: Path, number: int, locations: tuple[Location, ...], sizes: Mapping[int, int]
) -> Finding:
    name = f"{directory.name}/{segment_name(number)}"
    if number in sizes:
        code, why = "short-segment", f"beyond the end of {name}"
    elif number > max(sizes, default=-1) and sizes:
        code, why = "beyond-slots", f"beyond the last segment, in {name}"
    else:
        code, why = "missing-segment", f"in {name}, which is missing"
    text = f"{len(locations)} entries lie {why}"
    path = directory / segment_name(number)
    return Finding(Check.ENTRIES, code, text, Remedy.ENTRIES, path, locations)


def _space(facts: Facts, capacity: int | None) -> Iterator[Finding]:
    if capacity is not None and facts.occupied > capacity:
        text = f"{facts.occupied} bytes are occupied, the capacity is {capacity}: prune"
        yield Finding(Check.SPACE, "over-capacity", text, Remedy.NONE)


# --- records


class Verifier:
    """Compares records with their checksums, in whatever number of workers' parts they are.

    The fingerprint may say how many; else the first record that verifies tells. Locking: none.
    """

    def __init__(self, fingerprint: Mapping[str, object]) -> None:
        said = fingerprint.get("tensor_parallel_size")
        self._workers = said if isinstance(said, int) and 0 < said <= _MAX_WORKERS else 1
        self._known = False

    def verify(self, block_hash: bytes, record: memoryview, expected: int) -> bool:
        """Whether ``record`` is what was stored."""
        others = () if self._known else range(1, _MAX_WORKERS + 1)
        for workers in (self._workers, *others):
            if self._matches(workers, block_hash, record, expected):
                self._workers, self._known = workers, True
                return True
        return False

    @staticmethod
    def _matches(workers: int, block_hash: bytes, record: memoryview, expected: int) -> bool:
        size, rest = divmod(len(record), workers)
        if rest:
            return False
        parts = (record[n * size : (n + 1) * size] for n in range(workers))
        return checksum(block_hash, parts) == expected


class RecordReader:
    """Reads records of a namespace, one after the other, past the page cache's memory.

    One file is open at a time. Locking: none. Raises: OSError.
    """

    def __init__(self, found: OfflineNamespace) -> None:
        self._found = found
        self._path: Path | None = None
        self._fd = -1

    def read(self, group_id: int, slot: int) -> memoryview | None:
        """The bytes of a record; None if they are not all there."""
        file, offset, nbytes = self._found.location(group_id, slot)
        if file != self._path:
            self.close()
            with suppress(FileNotFoundError):
                self._fd = os.open(file, _READ)
                self._path = file
        if self._fd < 0:
            return None
        record = os.pread(self._fd, nbytes, offset)
        os.posix_fadvise(self._fd, offset, nbytes, os.POSIX_FADV_DONTNEED)
        return memoryview(record) if len(record) == nbytes else None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._path = -1, None


def _records(
    found: OfflineNamespace,
    facts: Facts,
    share: float,
    known: Iterable[Finding],
    progress: Progress,
) -> Iterator[Finding]:
    """Compare a share of the records; those that are known to be lost are left out."""
    lost = {at for finding in known for at in finding.locations}
    chosen = [
        entry
        for group_id in found.groups
        for chunk in found.entries(group_id)
        for entry in chunk
        if (group_id, entry.slot) not in lost and (share >= 1 or random.random() < share)  # noqa: S311 - a sample
    ]
    verifier = Verifier(found.fingerprint)
    bad = compare(found, chosen, verifier, facts, progress)
    # What a server replaced meanwhile is no damage. It writes a slot a moment before the index
    # says so, and then that entry is gone when it is looked at again.
    for _ in range(_LOOKS if _is_written(found) else 0):
        bad = [entry for entry in bad if _is_still(found, entry)]
        bad = compare(found, bad, verifier, Facts(), lambda _done, _total: None)
    for group_id, count in Counter(entry.group_id for entry in bad).items():
        text = f"{count} records of group {group_id} do not match their checksums"
        locations = tuple(Location(group_id, e.slot) for e in bad if e.group_id == group_id)
        path = found.group_directory(group_id)
        yield Finding(Check.RECORDS, "bad-records", text, Remedy.ENTRIES, path, locations)


def _is_written(found: OfflineNamespace) -> bool:
    return found.pid not in {None, os.getpid()}


def _is_still(found: OfflineNamespace, entry: StoredEntry) -> bool:
    now = found.index.entry(entry.group_id, entry.slot)
    return now is not None and tuple(now) == (entry.block_hash, entry.checksum, entry.stamp)


def compare(
    found: OfflineNamespace,
    entries: Iterable[StoredEntry],
    verifier: Verifier,
    facts: Facts,
    progress: Progress,
) -> list[StoredEntry]:
    """The entries whose records are not what was stored, or cannot be read."""
    entries = list(entries)
    total = sum(found.record_bytes[entry.group_id] for entry in entries)
    reader = RecordReader(found)
    bad = []
    try:
        for entry in entries:
            if not _is_right(reader, verifier, entry):
                bad.append(entry)
            facts.read += 1
            facts.read_bytes += found.record_bytes[entry.group_id]
            progress(facts.read_bytes, total)
    finally:
        reader.close()
    return bad


def _is_right(reader: RecordReader, verifier: Verifier, entry: StoredEntry) -> bool:
    try:
        record = reader.read(entry.group_id, entry.slot)
    except OSError:
        return False
    return record is not None and verifier.verify(entry.block_hash, record, entry.checksum)
