# SPDX-License-Identifier: Apache-2.0
"""``tiercache import``: bring back what ``tiercache export`` wrote."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tiercache.cli import output
from tiercache.cli.caring import (
    Progress,
    agree,
    attempting,
    json_option,
    pool_argument,
    progress_option,
    writing_options,
)
from tiercache.cli.diagnostics import ExitCode
from tiercache.cli.table import count, size
from tiercache.errors import FormatError, NoPoolError

if TYPE_CHECKING:
    from tiercache.tiers.nvme.offline import OfflineNamespace
    from tiercache.tiers.nvme.transfer import Added, Data, Export

SCHEMA: Final = "tiercache.import/1"
#: What stays free on the file system, as for a server that is not told otherwise.
MIN_FREE_BYTES: Final = 1 << 30

EXAMPLES = """\b
Examples:
  tiercache import /mnt/nvme/tiercache records.tar
  tiercache import /mnt/other/tiercache records.tar --create --yes
  tiercache import /mnt/nvme/tiercache index.jsonl -n      an index that was lost
"""


@click.command("import", epilog=EXAMPLES)
@pool_argument
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--create", is_flag=True, help="Make the namespace, if it is not there.")
@writing_options
@json_option
@progress_option
def import_(
    *,
    pool: Path,
    file: Path,
    create: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    progress: bool,
) -> int:
    """Add entries to a pool that no server uses: all of a tar with records, or nothing.

    A FILE without records is an index: its entries come back if their records still lie where they
    did. Nothing that is there is overwritten, every record is verified, and only what is of the
    very same model and layout is taken. A server with less room gives up the oldest entries.
    """
    with attempting(f"{file} cannot be imported"), _read(file) as (found, data):
        new = create and not (pool / found.name).is_dir()
        one = None if new else _target(pool, found)
        wanted = len(found.entries) if one is None else _wanted(one, found)
        if not as_json:
            where = f"{pool / found.name}, which is made" if one is None else one.directory
            output.text(
                f"{count(wanted)} of {count(len(found.entries))} entries are new to {where}"
            )
        added = None
        if not dry_run:
            agree("Add them?", yes=yes)
            shown = Progress("writing records", as_json=as_json, wanted=progress)
            added = _add(pool, one, found, data, shown)
            shown.end()
    _report(found, wanted, added, as_json=as_json)
    return ExitCode.PROBLEM if added is not None and added.refused else ExitCode.OK


@contextmanager
def _read(file: Path) -> "Iterator[tuple[Export, Data | None]]":
    from tiercache.tiers.nvme.transfer import Data, read_export

    with file.open("rb") as source:
        is_lines = source.read(1) == b"{"
        source.seek(0)
        if is_lines:
            yield read_export(source), None
            return
    data = Data(file)
    try:
        yield data.export, data
    finally:
        data.close()


def _target(pool: Path, found: "Export") -> "OfflineNamespace":
    """The namespace that an export is of. Raises NoPoolError, and FormatError for another one."""
    from tiercache.tiers.nvme.offline import open_readonly

    opened = open_readonly(pool)
    for one in opened.namespaces:
        if one.name == found.name and one.fingerprint == found.fingerprint:
            return one
    if len(opened.namespaces) == 1:
        [one] = opened.namespaces
        fields = sorted(one.fingerprint.keys() | found.fingerprint.keys())
        differs = [f for f in fields if one.fingerprint.get(f) != found.fingerprint.get(f)]
        text = f"{', '.join(differs)} differ" if differs else "its meta.json is damaged"
        raise FormatError(f"the export is not of the namespace {one.directory}: {text}")
    raise NoPoolError(f"{pool} has no namespace {found.name}, of which the export is: use --create")


def _wanted(one: "OfflineNamespace", found: "Export") -> int:
    from tiercache.tiers.nvme.transfer import absent
    from tiercache.tiers.nvme.writing import check_free

    check_free(one.directory)
    wanted = len(absent(one, found.entries))
    one.close()
    return wanted


def _add(
    pool: Path,
    one: "OfflineNamespace | None",
    found: "Export",
    data: "Data | None",
    progress: Progress,
) -> "Added":
    from tiercache.tiers.nvme.environment import inherit
    from tiercache.tiers.nvme.transfer import add_data, add_index
    from tiercache.tiers.nvme.writing import held

    one = _create(pool, found) if one is None else one
    try:
        with held(one.directory):
            inherit(one.index_directory)
            if data is None:
                return add_index(one, found.entries)
            return add_data(one, data, progress, min_free=MIN_FREE_BYTES)
    finally:
        one.close()


def _create(pool: Path, found: "Export") -> "OfflineNamespace":
    from tiercache.tiers.nvme.namespace import Namespace
    from tiercache.tiers.nvme.offline import OfflineNamespace

    fields = {name: value for name, value in found.fingerprint.items() if name != "record_bytes"}
    made = Namespace.open(pool, fields, found.record_bytes)
    made.close()
    return OfflineNamespace(made.directory)


def _report(found: "Export", wanted: int, added: "Added | None", *, as_json: bool) -> None:
    if as_json:
        document: dict[str, object] = {
            "schema": SCHEMA,
            "namespace": found.name,
            "entries": len(found.entries),
            "wanted": wanted,
            "dry_run": added is None,
            "added": added.added if added else 0,
            "refused": added.refused if added else 0,
            "record_bytes": added.nbytes if added else 0,
        }
        output.document(document)
    elif added is not None:
        refused = f"; {count(added.refused)} are no longer where they were" if added.refused else ""
        output.text(f"added {count(added.added)} entries, {size(added.nbytes)}{refused}")
