# SPDX-License-Identifier: Apache-2.0
"""A namespace as files that can be kept elsewhere and brought back.

Covers the format of an export, which is JSON lines (a header, then an entry each), and of its data,
which is a tar of records with those lines as its last member; writing both, reading both as
somebody else's, and adding what was read to a namespace that the caller holds.
"""

import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from io import BytesIO
from itertools import chain, starmap
from pathlib import Path
from typing import IO, Any, Final

from tiercache.errors import DamageError, FormatError, TierCacheError
from tiercache.tiers.nvme.audit import Progress, RecordReader, Verifier
from tiercache.tiers.nvme.namespace import FORMAT, namespace
from tiercache.tiers.nvme.offline import OfflineNamespace, StoredEntry, is_group
from tiercache.tiers.nvme.pages import HASH_BYTES, Entry, Location
from tiercache.tiers.nvme.reclaim import all_slots, read_entries
from tiercache.tiers.nvme.segments import Segments
from tiercache.tiers.nvme.writing import index_of, write_at

SCHEMA: Final = "tiercache.export/1"
INDEX_MEMBER: Final = "index.jsonl"
#: A line that is longer is no entry, and no header that we write.
MAX_LINE_BYTES: Final = 16 << 20
_U64: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class Export:
    """What a file says: whose entries they are, and the entries."""

    fingerprint: Mapping[str, Any]
    entries: tuple[StoredEntry, ...]

    @property
    def record_bytes(self) -> dict[int, int]:
        return {int(group): size for group, size in self.fingerprint["record_bytes"].items()}

    @property
    def name(self) -> str:
        """Of the namespace that it is of."""
        return namespace(self.fingerprint)


# --- writing


def lines(found: OfflineNamespace, entries: Sequence[StoredEntry]) -> Iterator[str]:
    """The lines of an export, without line ends."""
    header = {
        "schema": SCHEMA,
        "namespace": found.name,
        "format": FORMAT,
        "fingerprint": found.fingerprint,
        "entries": len(entries),
    }
    yield json.dumps(header, separators=(",", ":"))
    for entry in entries:
        row = {
            "group": entry.group_id,
            "hash": entry.block_hash.hex(),
            "slot": entry.slot,
            "checksum": f"{entry.checksum:016x}",
            "stamp": entry.stamp,
        }
        yield json.dumps(row, separators=(",", ":"))


def write_data(
    found: OfflineNamespace,
    entries: Sequence[StoredEntry],
    output: IO[bytes],
    progress: Progress,
) -> list[StoredEntry]:
    """Write the records that verify, and the lines for them; returns their entries.

    Others were replaced meanwhile, or are damaged. Raises OSError.
    """
    verifier = Verifier(found.fingerprint)
    total = sum(found.record_bytes[entry.group_id] for entry in entries)
    done, written = 0, []
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as tar:
        with closing(RecordReader(found)) as reader:
            for entry in entries:
                record = reader.read(entry.group_id, entry.slot)
                done += found.record_bytes[entry.group_id]
                progress(done, total)
                if record and verifier.verify(entry.block_hash, record, entry.checksum):
                    _add(tar, _member(entry), record)
                    written.append(entry)
        text = "".join(line + "\n" for line in lines(found, written))
        _add(tar, INDEX_MEMBER, text.encode())
    return written


def _member(entry: StoredEntry) -> str:
    return f"g{entry.group_id}/{entry.block_hash.hex()}"


def _add(tar: tarfile.TarFile, name: str, content: bytes | memoryview) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    info.mode = 0o600
    tar.addfile(info, BytesIO(content))


# --- reading


def read_export(source: IO[bytes]) -> Export:
    """Read the lines of an export. Raises FormatError, which names the line."""
    rows = _rows(source)
    header = next(rows, {})
    _check_header(header)
    fingerprint = header["fingerprint"]
    export = Export(fingerprint, ())
    sizes = export.record_bytes
    entries = tuple(_entry(row, number, sizes) for number, row in enumerate(rows, 2))
    if len(entries) != header.get("entries"):
        text = f"{header.get('entries')} entries were written, {len(entries)} are there"
        raise FormatError(f"the export is cut off: {text}")
    return Export(fingerprint, entries)


def _rows(source: IO[bytes]) -> Iterator[dict[str, Any]]:
    number = 0
    while line := source.readline(MAX_LINE_BYTES):
        number += 1
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise FormatError(f"line {number} of the export is no JSON object")
        yield row


def _check_header(header: Mapping[str, Any]) -> None:
    schema = str(header.get("schema"))
    if schema != SCHEMA:
        is_other = schema.startswith(SCHEMA.partition("/")[0] + "/")
        what = f"is {schema}" if is_other else "is none"
        raise FormatError(f"the export {what}; this version reads {SCHEMA}")
    if header.get("format") != FORMAT:
        text = f"format {header.get('format')} found, this version reads {FORMAT}"
        raise FormatError(f"the export cannot be read: {text}")
    fingerprint = header.get("fingerprint")
    sizes = fingerprint.get("record_bytes") if isinstance(fingerprint, dict) else None
    if not isinstance(sizes, dict) or not all(starmap(is_group, sizes.items())):
        raise FormatError("the export has no fingerprint that says what its records are")


def _entry(row: Mapping[str, Any], number: int, sizes: Mapping[int, int]) -> StoredEntry:
    try:
        entry = StoredEntry(
            _whole(row["group"]),
            _whole(row["slot"]),
            bytes.fromhex(row["hash"]),
            int(row["checksum"], 16),
            _whole(row["stamp"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"line {number} of the export is no entry: {error!r}") from error
    if (
        entry.group_id not in sizes
        or not 0 < len(entry.block_hash) <= HASH_BYTES
        or not 0 <= entry.checksum < _U64
        or entry.slot >= 1 << 32
    ):
        raise FormatError(f"line {number} of the export is no entry of one of its groups")
    return entry


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _U64:
        raise ValueError(f"{value!r} is no count")
    return value


class Data:
    """The records of a tar, found by entry. Use ``close``. Raises FormatError, OSError."""

    def __init__(self, file: Path) -> None:
        with ExitStack() as undo:
            try:
                self._tar = undo.enter_context(tarfile.open(file, mode="r:"))
                self._members = {one.name: one for one in self._tar if one.isreg()}
                content = self._content(INDEX_MEMBER)
            except tarfile.TarError as error:
                raise FormatError(f"{file} is no tar that can be read: {error}") from error
            if content is None:
                raise FormatError(f"{file} is no data of an export: it has no {INDEX_MEMBER}")
            with content:
                self.export = read_export(content)
            undo.pop_all()

    def _content(self, name: str) -> IO[bytes] | None:
        member = self._members.get(name)
        return None if member is None else self._tar.extractfile(member)

    def record(self, entry: StoredEntry) -> bytes:
        """The bytes of a record. Raises DamageError if it is not there."""
        member = self._members.get(_member(entry))
        size = self.export.record_bytes[entry.group_id]
        content = self._tar.extractfile(member) if member and member.size == size else None
        if content is None:
            raise DamageError(f"the record {_member(entry)} is missing")
        with content:
            record = content.read()
        if len(record) != size:
            raise DamageError(f"the record {_member(entry)} is cut off")
        return record

    def close(self) -> None:
        self._tar.close()


# --- adding


@dataclass(frozen=True, slots=True)
class Added:
    """What came of an import; entries."""

    added: int
    present: int
    """Those whose blocks were there already."""
    refused: int
    """Those whose slots hold something else now."""
    nbytes: int


def absent(found: OfflineNamespace, entries: Iterable[StoredEntry]) -> list[StoredEntry]:
    """The youngest entries of blocks that a namespace does not have, the oldest first."""
    have = {(entry.group_id, entry.block_hash) for entry in read_entries(found)}
    youngest: dict[tuple[int, bytes], StoredEntry] = {}
    for entry in sorted(entries, key=lambda entry: entry.stamp):
        youngest[entry.group_id, entry.block_hash] = entry
    return [entry for name, entry in youngest.items() if name not in have]


def add_index(found: OfflineNamespace, entries: Sequence[StoredEntry]) -> Added:
    """Index what lies in the slots that an export names, if it is still there and nobody's."""
    taken = {(entry.group_id, entry.slot) for entry in read_entries(found)}
    wanted = absent(found, entries)
    verifier = Verifier(found.fingerprint)
    good = []
    with closing(RecordReader(found)) as reader:
        for entry in wanted:
            record = reader.read(entry.group_id, entry.slot)
            is_free = (entry.group_id, entry.slot) not in taken
            if is_free and record and verifier.verify(entry.block_hash, record, entry.checksum):
                good.append(entry)
                taken.add((entry.group_id, entry.slot))
    _publish(found, good, [entry.slot for entry in good])
    return Added(len(good), len(entries) - len(wanted), len(wanted) - len(good), 0)


def add_data(
    found: OfflineNamespace, data: Data, progress: Callable[[int, int], None], *, min_free: int
) -> Added:
    """Write records into slots that nobody has, and index all of them, or none.

    ``min_free`` bytes stay free. Raises DamageError for a record that does not verify,
    TierCacheError if there is no room, OSError.
    """
    wanted = absent(found, data.export.entries)
    found.close()
    with index_of(found.directory):
        pass  # there before the segments: segments without an index look as if it was lost
    slots = _allocate(found, wanted, min_free)
    verifier = Verifier(found.fingerprint)
    total = sum(found.record_bytes[entry.group_id] for entry in wanted)
    done = 0
    for entry, slot in zip(wanted, slots, strict=True):
        record = data.record(entry)
        if not verifier.verify(entry.block_hash, memoryview(record), entry.checksum):
            raise DamageError(f"the record {_member(entry)} does not match its checksum")
        at = found.location(entry.group_id, slot)
        write_at(at.file, at.offset, record)
        done += len(record)
        progress(done, total)
    _publish(found, wanted, slots)
    return Added(len(wanted), len(data.export.entries) - len(wanted), 0, total)


def _allocate(found: OfflineNamespace, entries: Sequence[StoredEntry], min_free: int) -> list[int]:
    """Slots for entries: free ones, then new ones behind the last. Makes room for all of them."""
    taken: dict[int, set[int]] = {group_id: set() for group_id in found.groups}
    for entry in read_entries(found):
        taken[entry.group_id].add(entry.slot)
    there = all_slots(found)
    free = {
        group_id: sorted(there[group_id] - taken[group_id], reverse=True)
        for group_id in found.groups
    }
    behind = {group_id: max(there[group_id] | taken[group_id], default=-1) for group_id in free}
    chosen = []
    for entry in entries:
        if free[entry.group_id]:
            chosen.append(free[entry.group_id].pop())
        else:
            behind[entry.group_id] += 1
            chosen.append(behind[entry.group_id])
    _make_room(found, entries, chosen, min_free)
    return chosen


def _make_room(
    found: OfflineNamespace, entries: Sequence[StoredEntry], chosen: Sequence[int], min_free: int
) -> None:
    """Allocate the segments of the slots ``chosen``, if there is room for all of them."""
    wanted: dict[int, list[int]] = {}
    for entry, slot in zip(entries, chosen, strict=True):
        wanted.setdefault(entry.group_id, []).append(slot)
    there = all_slots(found)
    with ExitStack() as stack:
        opened = []
        for group_id, slots in wanted.items():
            segments = Segments(
                found.group_directory(group_id),
                found.record_bytes[group_id],
                1 + max(chain(slots, there[group_id])),
                segment_bytes=found.segment_bytes,
                direct=False,
            )
            opened.append((stack.enter_context(closing(segments)), slots))
        needed = sum(segments.missing(slots) for segments, slots in opened)
        stat = os.statvfs(found.directory)
        if needed and stat.f_blocks and stat.f_bavail * stat.f_frsize < needed + min_free:
            text = f"{needed} bytes are needed, and {min_free} are to stay free"
            raise TierCacheError(f"{found.directory} has no room for it: {text}")
        for segments, slots in opened:
            segments.prepare(slots)


def _publish(found: OfflineNamespace, entries: Sequence[StoredEntry], slots: Sequence[int]) -> None:
    """Index entries in one transaction, as the youngest, in their order."""
    stamp = 1 + max((entry.stamp for entry in read_entries(found)), default=-1)
    found.close()
    changes: dict[Location, Entry | None] = {
        Location(entry.group_id, slot): Entry(entry.block_hash, entry.checksum, stamp + at)
        for at, (entry, slot) in enumerate(zip(entries, slots, strict=True))
    }
    with index_of(found.directory) as index:
        index.change(changes)
