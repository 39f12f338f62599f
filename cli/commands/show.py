# SPDX-License-Identifier: Apache-2.0
"""``tiercache show``: one entry on a disk, where its record lies, and its bytes."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from tiercache.cli import cold, listing, output
from tiercache.cli.diagnostics import ExitCode
from tiercache.cli.listing import Column, Form
from tiercache.cli.table import count
from tiercache.errors import TierCacheError

if TYPE_CHECKING:
    from tiercache.tiers.nvme.offline import OfflineNamespace, OfflinePool, RecordAt, StoredEntry

SCHEMA: Final = "tiercache.show/1"
LINE_BYTES: Final = 16

FIELDS: Final = tuple(
    Column(name)
    for name in (
        "key",
        "namespace",
        "group",
        "hash",
        "bytes",
        "file",
        "offset",
        "present",
        "slot",
        "stamp",
        "checksum",
        "verified",
    )
)

EXAMPLES = """\b
Examples:
  tiercache show 5f0c
  tiercache show g7:5f0c --verify
  tiercache show 5f0c --hex | head
  tiercache show 5f0c --raw > block.bin
"""


@click.command(epilog=EXAMPLES)
@click.argument("key", metavar="KEY")
@click.option("--verify", is_flag=True, help="Read the record and compare its checksum.")
@click.option("as_hex", "--hex", is_flag=True, help="Print the record's bytes as hexadecimals.")
@click.option("raw", "--raw", is_flag=True, help="Write the record as it is, to a file or a pipe.")
@click.option("--group", metavar="GROUP", help="Look in one group only.")
@cold.options
@listing.options
def show(
    *,
    key: str,
    verify: bool,
    as_hex: bool,
    raw: bool,
    group: str | None,
    pool: str | None,
    namespace: str | None,
    form: str | None,
) -> int:
    """Say of one entry on a disk where its record lies, or print it.

    The first digits of KEY are enough. Status 1: --verify found that it is not what was stored.
    """
    if [as_hex, raw, form is not None].count(True) > 1:
        raise click.UsageError("--hex, --raw and --format exclude each other")
    if raw and sys.stdout.isatty():
        raise click.UsageError("--raw would fill the terminal: send it to a file or a pipe")
    from tiercache.tiers.nvme.offline import open_readonly

    with open_readonly(cold.directory(pool)) as opened:
        namespaces = cold.chosen(opened, namespace)
        groups = cold.chosen_groups(namespaces, group)
        place, entry = cold.by_prefix(cold.entries(namespaces, groups), key.lower())
        if as_hex or raw:
            _dump(read(place, entry), as_hex=as_hex)
            return ExitCode.OK
        verified = verifies(place, entry) if verify else None
        _describe(opened, row(place, entry, verified=verified), form)
    return ExitCode.PROBLEM if verified is False else ExitCode.OK


def _dump(record: memoryview, *, as_hex: bool) -> None:
    if as_hex:
        for line in _hex(record):
            output.text(line)
    else:
        output.data(record)


def _describe(pool: "OfflinePool", row: dict[str, object], form: str | None) -> None:
    if form not in {None, Form.TABLE}:
        listing.show(form, schema=SCHEMA, source=cold.source(pool), columns=FIELDS, rows=[row])
        return
    for name, words in _lines(row):
        for line in listing.paragraph(name, words, 11):
            output.text(line)
    output.text(listing.fitted(cold.trailer(pool)))


def row(
    namespace: "OfflineNamespace", entry: "StoredEntry", *, verified: bool | None
) -> dict[str, object]:
    at = namespace.location(entry.group_id, entry.slot)
    return {
        "key": cold.name_of(entry),
        "namespace": namespace.name,
        "group": f"g{entry.group_id}",
        "hash": entry.block_hash.hex(),
        "bytes": at.nbytes,
        "file": str(at.file),
        "offset": at.offset,
        "present": _present(at),
        "slot": entry.slot,
        "stamp": entry.stamp,
        "checksum": f"{entry.checksum:016x}",
        "verified": verified,
    }


def _present(at: "RecordAt") -> bool:
    try:
        return at.file.stat().st_size >= at.offset + at.nbytes
    except OSError:
        return False


def _lines(row: dict[str, object]) -> Iterator[tuple[str, str]]:
    yield "key", str(row["key"])
    yield "namespace", str(row["namespace"])
    yield "size", f"{count(int(str(row['bytes'])))} bytes, over all workers"
    yield "file", str(row["file"])
    missing = "" if row["present"] else "; the file ends before it, or is not there"
    yield "offset", f"{count(int(str(row['offset'])))}, slot {row['slot']}{missing}"
    yield "stamp", str(row["stamp"])
    words = {None: "not verified: --verify reads it", True: "verified", False: "DOES NOT VERIFY"}
    verified = row["verified"]
    assert verified is None or isinstance(verified, bool)
    yield "checksum", f"{row['checksum']}, {words[verified]}"


def read(namespace: "OfflineNamespace", entry: "StoredEntry") -> memoryview:
    """The record's bytes. Raises TierCacheError if they are not there, or were just replaced."""
    from tiercache.tiers.nvme.audit import RecordReader

    reader = RecordReader(namespace)
    try:
        record = reader.read(entry.group_id, entry.slot)
    except OSError as error:
        raise TierCacheError(f"{cold.name_of(entry)} cannot be read: {error.strerror}") from error
    finally:
        reader.close()
    now = namespace.index.entry(entry.group_id, entry.slot)
    if now is None or now.stamp != entry.stamp:
        raise TierCacheError(f"{cold.name_of(entry)} was evicted while it was read")
    if record is None:
        file = namespace.location(entry.group_id, entry.slot).file
        raise TierCacheError(f"the record is missing: {file} ends before it, or is not there")
    return record


def verifies(namespace: "OfflineNamespace", entry: "StoredEntry") -> bool:
    """Whether the record is what was stored. Raises as ``read`` does."""
    from tiercache.tiers.nvme.audit import Verifier

    record = read(namespace, entry)
    return Verifier(namespace.fingerprint).verify(entry.block_hash, record, entry.checksum)


def _hex(record: memoryview) -> Iterator[str]:
    """Lines of sixteen bytes with their offset; lines that repeat are a star, as usual."""
    before, starred = b"", False
    for offset in range(0, len(record), LINE_BYTES):
        line = bytes(record[offset : offset + LINE_BYTES])
        if line == before:
            if not starred:
                yield "*"
            starred = True
            continue
        before, starred = line, False
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        yield f"{offset:08x}  {line.hex(' ')}  |{text}|"
    yield f"{len(record):08x}"
