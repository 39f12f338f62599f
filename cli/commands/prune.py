# SPDX-License-Identifier: Apache-2.0
"""``tiercache prune``: make room on a disk by giving up the oldest entries, or whole namespaces."""

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tiercache.cli import diagnostics, output
from tiercache.cli.caring import (
    Share,
    agree,
    attempting,
    free_entries,
    json_option,
    namespace_option,
    opened,
    pool_argument,
    writing_options,
)
from tiercache.cli.commands.compact import shrink
from tiercache.cli.diagnostics import ExitCode
from tiercache.cli.parameters import Size
from tiercache.cli.table import count, duration
from tiercache.cli.table import size as sized

if TYPE_CHECKING:
    from tiercache.tiers.nvme.offline import OfflineNamespace, StoredEntry

SCHEMA: Final = "tiercache.prune/1"

EXAMPLES = """\b
Order:
  The index knows which entry is older, but not when it was stored: so there is no age
  to give. Of several namespaces, that which was opened longest ago goes first.

\b
Examples:
  tiercache prune /mnt/nvme/tiercache --until-free 100GiB -n
  tiercache prune /mnt/nvme/tiercache --keep 50% --yes
  tiercache prune /mnt/nvme/tiercache --unused-namespaces
"""


@click.command(epilog=EXAMPLES)
@pool_argument
@click.option(
    "--until-free", type=Size(), metavar="SIZE", help="Until the file system has so much free."
)
@click.option(
    "--keep", type=Share(), metavar="SHARE", help="Keep the youngest SHARE of each group, as 50%."
)
@click.option(
    "--unused-namespaces",
    is_flag=True,
    help="Remove all namespaces but those in use and the one that was opened last.",
)
@namespace_option
@writing_options
@json_option
def prune(
    *,
    pool: Path,
    until_free: int | None,
    keep: float | None,
    unused_namespaces: bool,
    namespace: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove the oldest entries of a pool that no server uses, and give their space back.

    Space that no entry needs is given back first. Removed entries are not overwritten: that is what
    'tiercache drop' does.
    """
    if [until_free is not None, keep is not None, unused_namespaces].count(True) != 1:
        raise click.UsageError("give one of --until-free, --keep and --unused-namespaces")
    with opened(pool, namespace) as namespaces:
        if unused_namespaces:
            rows = _unused(namespaces)
        elif keep is not None:
            rows = [_beyond(one, keep) for one in namespaces]
        else:
            rows = _until_free(pool, namespaces, until_free or 0)
        if not as_json:
            _print(rows)
        if rows and not dry_run:
            agree("Remove this?", yes=yes)
            for row in rows:
                with attempting(f"the namespace {row['namespace']} could not be pruned"):
                    _prune(row)
    free = _free(pool)
    if as_json:
        output.document(_document(pool, rows, free, dry_run=dry_run))
    else:
        output.text(f"{sized(free)} free on this file system")
    return _outcome(until_free or 0, free, dry_run=dry_run)


def _document(
    pool: Path, rows: Sequence[dict[str, Any]], free: int, *, dry_run: bool
) -> dict[str, object]:
    data = [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows]
    head = {"schema": SCHEMA, "path": str(pool), "dry_run": dry_run, "free_bytes": free}
    return {**head, "data": data}


def _outcome(wanted: int, free: int, *, dry_run: bool) -> int:
    if dry_run or free >= wanted:
        return ExitCode.OK
    diagnostics.warning(f"{sized(wanted)} were asked for, and nothing is left to remove")
    return ExitCode.PROBLEM


def _free(pool: Path) -> int:
    stat = os.statvfs(pool)
    return stat.f_bavail * stat.f_frsize


def _age(one: "OfflineNamespace") -> float:
    return one.opened_at or 0.0


def _row(
    one: "OfflineNamespace", gone: "Sequence[StoredEntry]", reclaimable: int, *, whole: bool = False
) -> dict[str, Any]:
    nbytes = sum(one.record_bytes[entry.group_id] for entry in gone)
    return {
        "namespace": one.name,
        "model": one.model,
        "opened_at": one.opened_at,
        "whole": whole,
        "entries": len(gone),
        "entry_bytes": nbytes,
        "unused_bytes": reclaimable,
        "_namespace": one,
        "_gone": gone,
    }


def _beyond(one: "OfflineNamespace", keep: float) -> dict[str, Any]:
    from tiercache.tiers.nvme.reclaim import beyond_share, steps

    entries = free_entries(one)
    reclaimable = sum(step.nbytes for step in steps(one, entries))
    return _row(one, beyond_share(entries, keep), reclaimable)


def _until_free(
    pool: Path, namespaces: "Sequence[OfflineNamespace]", wanted: int
) -> list[dict[str, Any]]:
    """First all space without entries, of all namespaces; then the oldest entries."""
    from tiercache.tiers.nvme.reclaim import oldest, steps

    wanted -= _free(pool)
    if wanted <= 0:
        return []
    found = [(one, free_entries(one)) for one in sorted(namespaces, key=_age)]
    reclaimable = [sum(step.nbytes for step in steps(one, entries)) for one, entries in found]
    wanted -= sum(reclaimable)
    rows = []
    for (one, entries), nbytes in zip(found, reclaimable, strict=True):
        gone = oldest(entries, one.record_bytes, wanted)
        row = _row(one, gone, nbytes)
        wanted -= row["entry_bytes"]
        rows.append(row)
    return [row for row in rows if row["entries"] or row["unused_bytes"]]


def _unused(namespaces: "Sequence[OfflineNamespace]") -> list[dict[str, Any]]:
    idle = sorted((one for one in namespaces if one.pid is None), key=_age)
    if len(idle) == len(namespaces):
        idle = idle[:-1]
    return [_row(one, [], one.nbytes, whole=True) for one in idle]


def _prune(row: dict[str, Any]) -> None:
    from tiercache.tiers.nvme.pages import Location
    from tiercache.tiers.nvme.reclaim import still_there
    from tiercache.tiers.nvme.writing import held, index_of

    one, gone = row["_namespace"], row["_gone"]
    with held(one.directory):
        if row["whole"]:
            shutil.rmtree(one.directory)
            return
        gone = still_there(one, gone)
        one.close()
        if gone:
            with index_of(one.directory) as index:
                index.change({Location(each.group_id, each.slot): None for each in gone})
        shrink(one)


def _print(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        if row["whole"]:
            age = "never opened"
            if row["opened_at"]:
                age = f"opened {duration(time.time() - row['opened_at'])} ago"
            model = row["model"] or "unknown model"
            text = f"whole, {sized(row['unused_bytes'])}, {model}, {age}"
        else:
            text = (
                f"{count(row['entries'])} entries, {sized(row['entry_bytes'])}; "
                f"without entries: {sized(row['unused_bytes'])}"
            )
        output.text(f"{row['namespace']}  {text}")
    if not rows:
        output.text("nothing to remove")
