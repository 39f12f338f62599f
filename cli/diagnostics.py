# SPDX-License-Identifier: Apache-2.0
"""Standard error and exit codes: how a command says that something went wrong.

Covers every line written to stderr and every exit status. What goes to stdout is
``tiercache.cli.output``.
"""

import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NoReturn

import click

from tiercache.errors import (
    ConfigError,
    DamageError,
    FormatError,
    NoPoolError,
    PoolBusyError,
    TierCacheError,
)


class ExitCode(IntEnum):
    """Every status a command of ours ends with."""

    OK = 0
    """It did what was asked."""
    PROBLEM = 1
    """It ran, and what it found is not well: no server answers, or no cache is on."""
    USAGE = 2
    """The command line or a setting cannot be used."""
    NO_POOL = 3
    """There is no such pool."""
    FORMAT = 4
    """Something is of a version that this program does not read."""
    BUSY = 5
    """A running process uses the pool that was to be changed."""
    DAMAGED = 6
    """What is stored is damaged beyond repair."""
    NOT_RUNNING = 7
    """No server answers, or its process has ended."""
    INTERRUPTED = 130
    """Ended by Ctrl-C."""
    BROKEN_PIPE = 141
    """The reader of stdout went away, as in ``| head``."""


#: Statuses of errors that are told apart; all others are ``PROBLEM``.
STATUS: Mapping[type[TierCacheError], ExitCode] = {
    NoPoolError: ExitCode.NO_POOL,
    FormatError: ExitCode.FORMAT,
    PoolBusyError: ExitCode.BUSY,
    DamageError: ExitCode.DAMAGED,
}


def run(command: click.Command, program: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run ``command`` and exit; whatever it raises on purpose becomes one line on stderr."""
    sys.exit(_outcome(command, program, arguments))


def error(program: str, message: str) -> None:
    """Say on one line what is wrong, whatever line breaks ``message`` has."""
    print(f"{program}: error: {printable(' '.join(message.split()))}", file=sys.stderr)


def warning(message: str) -> None:
    """Say on one line, while a command runs, what it makes do with."""
    program = click.get_current_context().find_root().info_name
    print(f"{program}: warning: {printable(' '.join(message.split()))}", file=sys.stderr)


def printable(text: str) -> str:
    """Text without what a terminal would obey, or could not show: names may come from a file."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def _outcome(command: click.Command, program: str, arguments: Sequence[str] | None) -> int:
    try:
        result = command.main(arguments, prog_name=program, standalone_mode=False)
    except click.Abort:
        return ExitCode.INTERRUPTED
    except click.ClickException as failure:
        error(program, failure.format_message())
        return failure.exit_code
    except ConfigError as failure:
        error(program, str(failure))
        return ExitCode.USAGE
    except TierCacheError as failure:
        error(program, str(failure))
        return STATUS.get(type(failure), ExitCode.PROBLEM)
    return result if isinstance(result, int) else ExitCode.OK
