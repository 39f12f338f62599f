# SPDX-License-Identifier: Apache-2.0
"""``tiercache export``: the index of a pool on disk as JSON lines, and its records as a tar."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import click

from tiercache.cli import diagnostics, output
from tiercache.cli.caring import (
    Progress,
    attempting,
    json_option,
    namespace_option,
    opened_one,
    pool_argument,
    progress_option,
)
from tiercache.cli.diagnostics import ExitCode
from tiercache.cli.table import count, size
from tiercache.errors import TierCacheError

if TYPE_CHECKING:
    from tiercache.tiers.nvme.offline import OfflineNamespace, StoredEntry

SCHEMA: Final = "tiercache.exported/1"

EXAMPLES = """\b
Format:
  The first line has "schema": "tiercache.export/1" and the fingerprint, each other line
  an entry. A tar of records ends with these lines: it can be imported by itself.

\b
Examples:
  tiercache export /mnt/nvme/tiercache | jq -r .hash | head
  tiercache export /mnt/nvme/tiercache -o index.jsonl
  tiercache export /mnt/nvme/tiercache --data records.tar
"""


@click.command(epilog=EXAMPLES)
@pool_argument
@namespace_option
@click.option(
    "target", "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Not stdout."
)
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="FILE.tar", help="Write the records, too."
)
@json_option
@progress_option
def export(
    *,
    pool: Path,
    namespace: str | None,
    target: Path | None,
    data: Path | None,
    as_json: bool,
    progress: bool,
) -> int:
    """Write the index of a pool as JSON lines, and with --data its records as a tar.

    A server that uses the pool does not wait; records that it replaces meanwhile are left out.
    Files that exist are not overwritten. --json says what was written, to files: with -o or --data.
    """
    from tiercache.tiers.nvme.reclaim import read_entries

    if as_json and target is None and data is None:
        raise click.UsageError("--json is about files: give -o or --data; the index is JSON anyway")
    with opened_one(pool, namespace) as one:
        if one.is_cleared:
            text = "its server has reset its caches, and what it stores is for nobody else"
            raise TierCacheError(f"{one.directory} cannot be exported: {text}")
        entries = read_entries(one)
        written = entries
        if data is not None:
            shown = Progress("writing records", as_json=as_json, wanted=progress)
            written = _write_data(one, entries, data, shown)
        if target is not None or data is None:
            _write_index(one, written, target)
        left_out = len(entries) - len(written)
        nbytes = sum(one.record_bytes[e.group_id] for e in written) if data else 0
        if as_json:
            counts = {"entries": len(written), "left_out": left_out, "record_bytes": nbytes}
            output.document({"schema": SCHEMA, "namespace": one.name, **counts})
        elif target is not None or data is not None:
            output.text(f"{count(len(written))} entries, {size(nbytes)} of records")
    if left_out:
        diagnostics.warning(f"{count(left_out)} records do not verify, and were left out")
    return ExitCode.PROBLEM if left_out else ExitCode.OK


def _write_index(
    one: "OfflineNamespace", entries: "Sequence[StoredEntry]", target: Path | None
) -> None:
    from tiercache.tiers.nvme.transfer import lines

    if target is None:
        for line in lines(one, entries):
            output.text(line)
        return
    with _new_file(target) as file:
        file.writelines(f"{line}\n".encode() for line in lines(one, entries))


def _write_data(
    one: "OfflineNamespace", entries: "Sequence[StoredEntry]", target: Path, progress: Progress
) -> "list[StoredEntry]":
    from tiercache.tiers.nvme.transfer import write_data

    with _new_file(target) as file:
        written = write_data(one, entries, file, progress)
    progress.end()
    return written


@contextmanager
def _new_file(target: Path) -> Iterator[IO[bytes]]:
    """A file that is there when it is whole, and that nobody else can read."""
    if target.exists() or target.is_symlink():
        raise TierCacheError(f"{target} is there already: remove it, or choose another name")
    unfinished = target.with_name(target.name + ".part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with attempting(f"{target} cannot be written"):
        descriptor = os.open(unfinished, flags, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.link(unfinished, target)
        finally:
            unfinished.unlink()
