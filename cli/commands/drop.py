# SPDX-License-Identifier: Apache-2.0
"""``tiercache drop``: remove entries from a pool on disk, and overwrite their records."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tiercache.cli import output
from tiercache.cli.caring import (
    Progress,
    agree,
    attempting,
    free_entries,
    json_option,
    namespace_option,
    opened,
    pool_argument,
    progress_option,
    writing_options,
)
from tiercache.cli.table import count
from tiercache.cli.table import size as sized
from tiercache.errors import TierCacheError

if TYPE_CHECKING:
    from tiercache.tiers.nvme.offline import OfflineNamespace, StoredEntry

SCHEMA: Final = "tiercache.drop/1"
#: Keys that are listed before it is asked.
SHOWN: Final = 20

EXAMPLES = """\b
What remains:
  Records are overwritten with zeros, so that nothing of them can be read from the files.
  What a flash drive has set aside underneath, and snapshots of the file system, are out
  of reach: whoever must not leave them there encrypts the disk.

\b
Examples:
  tiercache drop /mnt/nvme/tiercache 5f0c g7:9a
  tiercache drop /mnt/nvme/tiercache 5f0c --free-slots --yes
  tiercache drop /mnt/nvme/tiercache --all -n
"""


@click.command(epilog=EXAMPLES)
@pool_argument
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("everything", "--all", is_flag=True, help="Every entry, and all that slots hold.")
@click.option(
    "--free-slots", is_flag=True, help="Overwrite slots without entries, too: earlier copies."
)
@namespace_option
@writing_options
@json_option
@progress_option
def drop(
    *,
    pool: Path,
    keys: tuple[str, ...],
    everything: bool,
    free_slots: bool,
    namespace: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    progress: bool,
) -> None:
    """Remove entries from a pool that no server uses, and overwrite their records with zeros.

    A KEY is the beginning of a block's hash, which drops it in all groups, or of group and hash as
    in g7:5f0c; it must be of one block. The index is rewritten: no trace of the keys stays in it.
    """
    if everything == bool(keys):
        raise click.UsageError("give either keys or --all")
    with opened(pool, namespace) as namespaces:
        chosen = [(one, free_entries(one)) for one in namespaces]
        if keys:
            chosen = _matching(chosen, keys)
        rows = [_row(one, entry) for one, entries in chosen for entry in entries]
        if not as_json:
            _print(rows)
        done = 0
        if not dry_run:
            agree(f"Drop {count(len(rows))} entries for good?", yes=yes)
            shown = Progress("overwriting", as_json=as_json, wanted=progress)
            for one, entries in chosen:
                with attempting(f"the namespace {one.directory} could not be changed"):
                    done += _drop(one, entries, everything, everything or free_slots, shown)
            shown.end()
    if as_json:
        document = {"schema": SCHEMA, "path": str(pool), "dry_run": dry_run}
        output.document({**document, "overwritten_bytes": done, "data": rows})
    elif not dry_run:
        output.text(f"dropped {count(len(rows))} entries, overwrote {sized(done)}")


def _matching(
    found: "Sequence[tuple[OfflineNamespace, list[StoredEntry]]]", keys: Sequence[str]
) -> "list[tuple[OfflineNamespace, list[StoredEntry]]]":
    """The entries that the keys are of. Raises TierCacheError and click.UsageError."""
    from tiercache.cli import cold

    wanted = set()
    for key in keys:
        hashes = {
            entry.block_hash
            for _, entries in found
            for entry in entries
            if cold.matches(entry, key)
        }
        if not hashes:
            raise TierCacheError(f"no key begins with {key!r}; 'tiercache ls' lists them")
        if len(hashes) > 1:
            first, second = sorted(each.hex() for each in hashes)[:2]
            raise click.UsageError(f"{key!r} is not unique: {first}, {second}, ...")
        wanted.add(key)
    return [
        (one, [entry for entry in entries if any(cold.matches(entry, key) for key in wanted)])
        for one, entries in found
    ]


def _drop(
    one: "OfflineNamespace",
    entries: "Sequence[StoredEntry]",
    everything: bool,  # noqa: FBT001 - a plan of one command
    free_slots: bool,  # noqa: FBT001 - likewise
    progress: Progress,
) -> int:
    """Remove entries from the index, then overwrite their slots; bytes that were overwritten."""
    from tiercache.tiers.nvme.pages import Location
    from tiercache.tiers.nvme.reclaim import (
        all_slots,
        erase,
        read_entries,
        segment_files,
        still_there,
    )
    from tiercache.tiers.nvme.writing import held, index_of

    if not entries and not free_slots:
        return 0
    with held(one.directory):
        now = read_entries(one)
        gone = now if everything else still_there(one, entries)
        one.close()
        if one.indexed:
            with index_of(one.directory) as index:
                index.change({Location(each.group_id, each.slot): None for each in gone})
                index.compact()
        slots = all_slots(one) if free_slots else _slots(gone)
        for entry in set(now) - set(gone):
            slots.get(entry.group_id, set()).discard(entry.slot)
        total = sum(len(of) * one.record_bytes[group_id] for group_id, of in slots.items())
        done = 0
        for nbytes in erase(one, slots):
            done += nbytes
            progress(done, total)
        for file in segment_files(one) if everything else ():
            file.unlink()
        return done


def _slots(entries: "Sequence[StoredEntry]") -> dict[int, set[int]]:
    slots: dict[int, set[int]] = {}
    for entry in entries:
        slots.setdefault(entry.group_id, set()).add(entry.slot)
    return slots


def _row(one: "OfflineNamespace", entry: "StoredEntry") -> dict[str, Any]:
    from tiercache.cli import cold

    return {
        "key": cold.name_of(entry),
        "namespace": one.name,
        "slot": entry.slot,
        "bytes": one.record_bytes[entry.group_id],
    }


def _print(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows[:SHOWN]:
        output.text(f"{row['key']}  {sized(row['bytes'])}")
    if len(rows) > SHOWN:
        output.text(f"and {count(len(rows) - SHOWN)} more")
