# SPDX-License-Identifier: Apache-2.0
"""Reads traces of real requests: Mooncake, Qwen-Bailian and kv-cache-tester, gzipped or not.

Covers files, lines and what to do with those that cannot be read; what a record means is known to
``flat`` and ``conversations``. Reads as it goes and keeps nothing.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple, TypeVar, cast

from tiercache.errors import ConfigError, TraceError
from tiercache.replay.conversations import (
    EVERYTHING,
    Conversation,
    Selection,
    is_conversation,
    spread,
)
from tiercache.replay.fields import Record, UnreadableError
from tiercache.replay.flat import FLAT_FORMATS, FlatReader
from tiercache.replay.turns import Stream, Turn

KNOWN = "Mooncake and Qwen-Bailian JSON lines, kv-cache-tester JSON and its compact form"
#: Lines that are looked at to tell the format: the first ones may be damaged.
PROBED_LINES = 100
GZIP_MAGIC = b"\x1f\x8b"

Item = TypeVar("Item")


class Malformed(NamedTuple):
    """A line that cannot be read, counted from 1, and why; line 0 is the file as a whole."""

    path: Path
    line: int
    reason: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line else str(self.path)
        return f"{where}: {self.reason}"


Report = Callable[[Malformed], None]


def ignore(malformed: Malformed) -> None:
    """Say nothing about a line that was skipped."""


def open_trace(
    path: Path,
    *,
    block_tokens: int,
    id_tokens: int | None = None,
    selection: Selection = EVERYTHING,
    strict: bool = False,
    report: Report = ignore,
) -> Stream:
    """Find out what ``path`` holds and return its turns.

    Args:
        path: a file, or a folder whose files are read in the order of their names.
        block_tokens: tokens of a block of the cache.
        id_tokens: tokens of a block of the trace, where it is not what its format says.
        selection: of a trace of conversations, which ones. Of other traces, whose requests bear
            the time at which they came, ``max_requests`` counts from the beginning of the trace.
        strict: refuse a line that cannot be read instead of skipping it.
        report: told of each line that is skipped, anew whenever the stream is iterated.

    Raises:
        TraceError: nothing can be read, now or, a line of a ``strict`` trace, later.
        ConfigError: the selection does not suit the trace.
    """
    trace = _Trace(path, strict, report)
    flat = trace.format()
    if flat is None:
        begin = partial(_conversations, trace, block_tokens, id_tokens, selection)
    elif selection.conversations is None:
        begin = partial(_requests, trace, partial(flat, block_tokens, id_tokens), selection)
    else:
        allowed = f"no number: {path.name} holds requests, not conversations to choose from"
        raise ConfigError("conversations", selection.conversations, allowed)
    return Stream(path.name, block_tokens, begin)


def _requests(
    trace: "_Trace", make_reader: Callable[[], FlatReader], selection: Selection
) -> Iterator[Turn]:
    return islice(trace.read(make_reader().read), selection.max_requests)


def _conversations(
    trace: "_Trace", block_tokens: int, id_tokens: int | None, selection: Selection
) -> Iterator[Turn]:
    read = partial(Conversation.read, block_tokens=block_tokens, id_tokens=id_tokens)
    return spread(trace.read(read), selection)


@dataclass(frozen=True, slots=True)
class _Trace:
    """The lines of all files of a trace."""

    path: Path
    strict: bool
    report: Report

    def format(self) -> type[FlatReader] | None:
        """The format of single requests that the trace has; None for conversations."""
        reason: object = f"{self.path}: holds nothing; known are {KNOWN}"
        for found in islice(self._lines(), PROBED_LINES):
            if isinstance(found, Malformed):
                reason = found
            elif is_conversation(found.record):
                return None
            elif flat := next((f for f in FLAT_FORMATS if f.fields <= found.record.keys()), None):
                return flat
            else:
                unknown = f"of no known format; known are {KNOWN}"
                reason = Malformed(found.file, found.line, unknown)
        raise TraceError(str(reason))

    def read(self, read: Callable[[Record], Item]) -> Iterator[Item]:
        """What ``read`` makes of each record; what raises UnreadableError is malformed."""
        for found in self._lines():
            if isinstance(found, Malformed):
                self._refuse(found)
                continue
            file, line, record = found
            try:
                item = read(record)
            except (UnreadableError, RecursionError) as error:
                self._refuse(Malformed(file, line, str(error)))
            else:
                yield item

    def _refuse(self, malformed: Malformed) -> None:
        if self.strict:
            raise TraceError(str(malformed))
        self.report(malformed)

    def _lines(self) -> Iterator["_Line | Malformed"]:
        for file in self._files():
            yield from _lines(file)

    def _files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        return sorted(file for file in self.path.iterdir() if file.is_file())


class _Line(NamedTuple):
    file: Path
    line: int
    record: Record


def _lines(file: Path) -> Iterator[_Line | Malformed]:
    """Records of one file with their line, or what is wrong with it."""
    number = 0
    try:
        with closing(_open(file)) as lines:
            for number, line in enumerate(lines, 1):
                # One that begins with a bracket alone is the first of an indented document.
                rest = lines.read() if number == 1 and line.strip() in (b"{", b"[") else b""
                if line.strip():
                    yield from _records(file, number, line + rest)
    except (OSError, EOFError, zlib.error) as error:
        # Before the first line it is not the line that is at fault.
        failed = number + 1 if number else 0
        reason = getattr(error, "strerror", None) or error
        yield Malformed(file, failed, f"cannot be read: {reason}")


def _records(file: Path, number: int, line: bytes) -> Iterator[_Line | Malformed]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        yield Malformed(file, number, f"not JSON: {error}")
        return
    for record in value if isinstance(value, list) else [value]:
        if isinstance(record, dict):
            yield _Line(file, number, record)
        else:
            yield Malformed(file, number, "not a JSON object")


def _open(file: Path) -> IO[bytes]:
    with file.open("rb") as raw:
        zipped = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    return cast(IO[bytes], gzip.open(file)) if zipped else file.open("rb")
