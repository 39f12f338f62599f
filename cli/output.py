# SPDX-License-Identifier: Apache-2.0
"""Standard output: stdout is data, so only the result of a command goes there.

Covers every line written to stdout. Notes, warnings and errors are ``tiercache.cli.diagnostics``.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final

from tiercache.cli.diagnostics import ExitCode, printable

if TYPE_CHECKING:
    from rich.text import Text


#: A system call for each line would take longer than to make it.
LINES: Final = 256


def text(line: str) -> None:
    """Write one line, without the control codes that are in it.

    Raises:
        SystemExit: if the reader has gone away.
    """
    _write(printable(line))


def lines(many: Iterable[str]) -> None:
    """Write lines, many at a time. Raises as ``text`` does."""
    left = iter(many)
    while part := list(islice(left, LINES)):
        _write("\n".join(map(printable, part)))


def data(content: bytes | memoryview) -> None:
    """Write bytes as they are. Raises as ``text`` does."""
    with _quiet():
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def document(data: Mapping[str, object], *, compact: bool = False) -> None:
    """Write one JSON document."""
    text(dumps(data, compact=compact))


def dumps(data: Mapping[str, object], *, compact: bool = False) -> str:
    """The JSON of ``data``; ``compact`` puts it on one line."""
    if compact:
        return json.dumps(data, allow_nan=False, separators=(",", ":"))
    return json.dumps(data, allow_nan=False, indent=2)


def _write(line: str) -> None:
    with _quiet():
        print(line, flush=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """End without a word where the reader of stdout has gone away."""
    try:
        yield
    except BrokenPipeError:
        # The interpreter flushes stdout once more as it ends, and would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(ExitCode.BROKEN_PIPE) from None


def styled(lines: Iterable["Text"]) -> None:
    """Write lines with their styles, or without where NO_COLOR, TERM or a pipe says so."""
    from rich.console import Console

    console = Console(highlight=False)
    for line in lines:
        with console.capture() as captured:
            console.print(line, soft_wrap=True, end="")
        _write(captured.get())
