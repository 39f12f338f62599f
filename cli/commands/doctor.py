# SPDX-License-Identifier: Apache-2.0
"""``tiercache doctor``: is this machine, and a disk, ready for a server?"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tiercache.cli import output
from tiercache.cli.caring import json_option
from tiercache.cli.diagnostics import ExitCode
from tiercache.cli.parameters import Size
from tiercache.cli.table import clean

if TYPE_CHECKING:
    from tiercache.cli.checkup import Line

SCHEMA: Final = "tiercache.doctor/1"

EXAMPLES = """\b
Exit code 1 if something fails; a warning costs speed or comfort only.

\b
Examples:
  tiercache doctor
  tiercache doctor /mnt/nvme/tiercache --capacity 2TiB
  tiercache doctor --json | jq '.data[] | select(.state != "ok")'
"""


@click.command(epilog=EXAMPLES)
@click.argument("pool", type=click.Path(path_type=Path), required=False, metavar="[POOL]")
@click.option(
    "--capacity", type=Size(), metavar="SIZE", help="Of the tier that POOL is for, as 2TiB."
)
@json_option
def doctor(*, pool: Path | None, capacity: int | None, as_json: bool) -> int:
    """Look at limits, memory and versions, and with POOL at the disk that it is on.

    POOL is a tier's directory, which need not be there yet. Nothing is changed.
    """
    if capacity is not None and pool is None:
        raise click.UsageError("--capacity is for POOL, which is missing")
    lines = list(_lines(pool, capacity))
    failed = any(line.state.value == "fail" for line in lines)
    if as_json:
        rows = [{**line._asdict(), "state": line.state.value} for line in lines]
        output.document({"schema": SCHEMA, "data": rows})
    else:
        _print(lines)
    return ExitCode.PROBLEM if failed else ExitCode.OK


def _lines(pool: Path | None, capacity: int | None) -> "Iterator[Line]":
    from tiercache.cli import checkup, diskcheck
    from tiercache.stats import pools

    yield from checkup.software()
    yield from checkup.machine()
    yield checkup.statistics(pools.directory())
    if pool is not None:
        yield from diskcheck.disk(pool, capacity)


def _print(lines: "Sequence[Line]") -> None:
    widest = max(len(line.check) for line in lines)
    for line in lines:
        output.text(f"{line.state.value:4}  {line.check:{widest}}  {clean(line.text)}")
        if line.cure:
            output.text(f"{'':4}  {'':{widest}}  -> {line.cure}")
    states = [line.state.value for line in lines]
    output.text(f"{states.count('fail')} failed, {states.count('warn')} warnings")
