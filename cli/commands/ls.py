# SPDX-License-Identifier: Apache-2.0
"""``tiercache ls``: the keys that are on a disk.

Covers the list, which is printed while the index is read. A sequence's keys are not known there:
the index has hashes of blocks, and no prompt.
"""

from collections.abc import Iterable, Iterator
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING, Final

import click

from tiercache.cli import cold, diagnostics, listing, output
from tiercache.cli.listing import Column, Form
from tiercache.cli.parameters import Count
from tiercache.cli.table import plural, size

if TYPE_CHECKING:
    from tiercache.tiers.nvme.offline import OfflineNamespace, OfflinePool, StoredEntry

    Found = tuple[OfflineNamespace, StoredEntry]

SCHEMA: Final = "tiercache.ls/1"

COLUMNS: Final = (
    Column("key", "KEY", left=True, least=67),
    Column("bytes", "BYTES", size, least=8),
    Column("slot", "SLOT", least=7, spare=True),
    Column("stamp", "STAMP", least=9, spare=True),
    Column("namespace", "NAMESPACE", left=True, least=16, spare=True),
    Column("group"),
    Column("hash"),
    Column("checksum"),
)

EXAMPLES = """\b
Columns:
  KEY    group and hash of the block
  STAMP  a count, not a time: the higher, the younger
  BYTES  of the record, over all workers

\b
Examples:
  tiercache ls --pool /mnt/nvme/tiercache
  tiercache ls 5f0c                    keys that begin so
  tiercache ls --group g7 --newest 10
  tiercache ls --csv | wc -l
"""


@click.command(epilog=EXAMPLES)
@click.argument("prefixes", nargs=-1, metavar="[PREFIX]...")
@click.option("--group", metavar="GROUP", help="Of one group.")
@click.option("--newest", type=Count(), metavar="N", help="The N youngest, the youngest first.")
@click.option("--limit", type=Count(), metavar="N", help="N at most.  [all]")
@cold.options
@listing.options
def ls(
    *,
    prefixes: tuple[str, ...],
    group: str | None,
    newest: int | None,
    limit: int | None,
    pool: str | None,
    namespace: str | None,
    form: str | None,
) -> None:
    """List the keys in the index of a tier on disk, whether a server uses it or not.

    Nothing is locked, changed or repaired, and a server does not wait: what it stores or evicts
    meanwhile may be listed or not.
    """
    from tiercache.tiers.nvme.offline import open_readonly

    with open_readonly(cold.directory(pool)) as opened:
        namespaces = cold.chosen(opened, namespace)
        found = cold.entries(namespaces, cold.chosen_groups(namespaces, group))
        if prefixes:
            found = (each for each in found if any(cold.matches(each[1], p) for p in prefixes))
        if newest is not None:
            found = iter(nlargest(newest, found, key=lambda each: each[1].stamp))
        _print(islice(found, limit), opened, Form(form or Form.TABLE))
        if torn := sum(one.torn for one in namespaces):
            diagnostics.warning(f"left out {torn} damaged pages: tiercache verify says more")


def row(namespace: "OfflineNamespace", entry: "StoredEntry") -> dict[str, object]:
    return {
        "key": cold.name_of(entry),
        "bytes": namespace.record_bytes.get(entry.group_id),
        "slot": entry.slot,
        "stamp": entry.stamp,
        "namespace": namespace.name,
        "group": f"g{entry.group_id}",
        "hash": entry.block_hash.hex(),
        "checksum": f"{entry.checksum:016x}",
    }


def _print(found: "Iterable[Found]", pool: "OfflinePool", form: Form) -> None:
    rows = (row(*each) for each in found)
    match form:
        case Form.JSON:
            output.lines(_json(rows, cold.source(pool)))
        case Form.CSV:
            output.lines(listing.csv_lines(COLUMNS, rows))
        case Form.TABLE:
            output.lines(_table(rows))
            output.text(listing.fitted(cold.trailer(pool)))


def _table(rows: Iterable[dict[str, object]]) -> Iterator[str]:
    stream = listing.Stream(COLUMNS)
    yield stream.head()
    printed = 0
    for each in rows:
        printed += 1
        yield stream.line(each)
    yield plural(printed, "key")


def _json(rows: Iterable[dict[str, object]], source: dict[str, object]) -> Iterator[str]:
    """The document, row by row: a disk may hold millions."""
    head = output.dumps(listing.document(SCHEMA, source, []), compact=True)
    line = head.removesuffix("]}")
    for number, each in enumerate(rows):
        yield line + "," * (number > 0)
        line = output.dumps(each, compact=True)
    yield line
    yield "]}"
