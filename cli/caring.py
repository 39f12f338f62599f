# SPDX-License-Identifier: Apache-2.0
"""What the commands share that look after a pool on disk.

Covers their arguments, asking before anything is changed, and progress on stderr. What they do to
a pool is ``tiercache.tiers.nvme``'s.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tiercache.cli.diagnostics import ExitCode
from tiercache.cli.parameters import ParamType
from tiercache.cli.table import size
from tiercache.errors import ConfigError, TierCacheError

if TYPE_CHECKING:
    from tiercache.tiers.nvme.offline import OfflineNamespace, StoredEntry

#: How often progress is shown.
INTERVAL_S: Final = 0.2

pool_argument = click.argument("pool", type=click.Path(path_type=Path), metavar="POOL")
namespace_option = click.option(
    "--namespace",
    metavar="NAME",
    help="Of one model and layout only; the first digits are enough.",
)
json_option = click.option("as_json", "-j", "--json", is_flag=True, help="Print one JSON document.")
progress_option = click.option(
    "--progress", is_flag=True, help="With --json, say on stderr how far it is, as JSON lines."
)


def writing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-n/--dry-run`` and ``--yes``."""
    dry = click.option("-n", "--dry-run", is_flag=True, help="Say what would be done; do nothing.")
    yes = click.option("--yes", is_flag=True, help="Do not ask.")
    return dry(yes(command))


class Share(ParamType):
    """A share such as 1%, 0.01 or 1."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            name = param.opts[0] if param is not None else "value"
            raise ConfigError(name, value, "a share from 0 to 1, or from 0% to 100%")
        return share


@contextmanager
def opened(pool: Path, namespace: str | None) -> "Iterator[list[OfflineNamespace]]":
    """The namespaces to look at: all, or the one that was chosen. Raises NoPoolError."""
    from tiercache.tiers.nvme.offline import open_readonly

    with open_readonly(pool) as found:
        yield list(found.namespaces) if namespace is None else [found.only(namespace)]


@contextmanager
def opened_one(pool: Path, namespace: str | None) -> "Iterator[OfflineNamespace]":
    """The only namespace, or the one that was chosen. Raises NoPoolError."""
    from tiercache.tiers.nvme.offline import open_readonly

    with open_readonly(pool) as found:
        yield found.only(namespace)


def free_entries(one: "OfflineNamespace") -> "list[StoredEntry]":
    """All entries of a namespace that nobody uses, which is closed then. Raises PoolBusyError."""
    from tiercache.tiers.nvme.reclaim import read_entries
    from tiercache.tiers.nvme.writing import check_free

    check_free(one.directory)
    try:
        return read_entries(one)
    finally:
        one.close()


def agree(question: str, *, yes: bool) -> None:
    """Ask on a terminal; a no ends the command. Raises click.UsageError where nobody can answer."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError("nobody can be asked here: give --yes to go on, or -n to look")
    if not click.confirm(question, err=True):
        click.echo("nothing was changed", err=True)
        raise SystemExit(ExitCode.PROBLEM)


@contextmanager
def attempting(what: str) -> Iterator[None]:
    """Turn errors of the system and of LMDB into one of ours that says what failed."""
    import lmdb

    try:
        yield
    except (OSError, lmdb.Error) as error:
        raise TierCacheError(f"{what}: {error}") from error


class Progress:
    """How far a command is, on stderr: a line on a terminal, or JSON lines if asked for.

    ``total`` of 0 is unknown. Locking: none.
    """

    def __init__(self, what: str, *, as_json: bool, wanted: bool, unit: str = "bytes") -> None:
        self._what = what
        self._unit = unit
        self._lines = as_json and wanted
        self._line = sys.stderr.isatty() and not as_json
        self._shown = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._shown < INTERVAL_S or not (self._line or self._lines):
            return
        self._shown = now
        if self._lines:
            line = {
                "type": "progress",
                "what": self._what,
                "done": done,
                "total": total,
                "unit": self._unit,
            }
            click.echo(json.dumps(line), err=True)
        else:
            of = f" of {self._amount(total)}" if total else ""
            click.echo(f"\r\033[K{self._what}: {self._amount(done)}{of}", nl=False, err=True)

    def _amount(self, number: int) -> str:
        return size(number) if self._unit == "bytes" else str(number)

    def end(self) -> None:
        """Clear the line."""
        if self._line and self._shown:
            click.echo("\r\033[K", nl=False, err=True)
