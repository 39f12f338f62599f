# SPDX-License-Identifier: Apache-2.0
"""Recordings, ``tiercache.record/1``: a head and one line of JSON for each snapshot.

Covers the format, writing and playing. A line has only those fields of a snapshot that changed
since the line before, so a server at rest costs a hundred bytes per look. A recording is played
line by line, however long it is. What was written by somebody else is checked value by value.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from tiercache.errors import FormatError, TierCacheError
from tiercache.stats.model import Snapshot
from tiercache.tui.plain import from_plain, to_plain
from tiercache.tui.sources import Source
from tiercache.tui.trouble import SourceError, Trouble

SCHEMA = "tiercache.record/1"
FAMILY = "tiercache.record/"
#: 4096 sequences and 8192 events are below 3 MB.
MAX_LINE_BYTES = 16 * 2**20
#: Events happen once: what a line does not have did not happen.
ONCE = "events"
#: On every line, so that the last one says how long the recording is.
TIME = "taken"


class Recorder:
    """A source that writes down what another one yields.

    A recording that fails (the disk is full) ends, is told of in ``notice``, and does not keep
    the numbers from the reader.

    Raises:
        TierCacheError: if the file exists or cannot be made.
    """

    def __init__(self, source: Source, path: Path, interval: float) -> None:
        self._source = source
        self._before: dict[str, Any] = {}
        self.notice = ""
        try:
            self._file = path.open("x", encoding="ascii")
        except OSError as failure:
            raise TierCacheError(f"cannot record to {path}: {_why(failure)}") from failure
        self._try_to_write({"schema": SCHEMA, "interval": interval, "target": source.target})

    @property
    def target(self) -> str:
        return self._source.target

    @property
    def span(self) -> tuple[float, float] | None:
        return self._source.span

    def fetch(self) -> Snapshot:
        snapshot = self._source.fetch()
        if not self._file.closed:
            self._record(to_plain(snapshot))
        return snapshot

    def close(self) -> None:
        self._file.close()
        self._source.close()

    def _record(self, plain: dict[str, Any]) -> None:
        same = {name for name, value in self._before.items() if value == plain[name]}
        changed = {name: value for name, value in plain.items() if name not in same - {TIME}}
        self._before = plain | {ONCE: []}
        self._try_to_write(changed)

    def _try_to_write(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n")
            self._file.flush()
        except OSError as failure:
            self.notice = f"recording ended: {_why(failure)}"
            self._give_up()

    def _give_up(self) -> None:
        try:
            self._file.close()
        except OSError:  # what could not be written is written once more; it is closed all the same
            return


class Recording:
    """A source that plays a file: each fetch yields the snapshot of the next line.

    Raises:
        TierCacheError: FormatError if it is no recording, or one of another version.
    """

    notice = ""

    def __init__(self, path: Path) -> None:
        self.target = str(path)
        try:
            self._file: BufferedReader = path.open("rb")
        except OSError as failure:
            raise TierCacheError(f"cannot read {path}: {_why(failure)}") from failure
        self._number = 0
        self._plain: dict[str, Any] = {}
        try:
            self.interval = self._read_head()
            self._next: Snapshot | None = self._read_snapshot()
            first = 0.0 if self._next is None else self._next.taken
            self.span = (first, max(first, self._last_taken(first)))
        except SourceError as failure:
            self._file.close()
            raise FormatError(str(failure)) from failure
        except BaseException:
            self._file.close()
            raise

    def fetch(self) -> Snapshot:
        snapshot = self._next
        if snapshot is None:
            raise SourceError(Trouble.ENDED, "the recording ends here")
        self._next = self._read_snapshot()
        return snapshot

    def close(self) -> None:
        self._file.close()

    def rest(self) -> Iterator[Snapshot]:
        """All that is left, one after the other."""
        while self._next is not None:
            yield self.fetch()

    def _read_head(self) -> float:
        head = self._line()
        schema = head.get("schema") if head is not None else None
        if not isinstance(schema, str) or not schema.startswith(FAMILY):
            self._refuse("this is no recording of tiercache-top")
        if schema != SCHEMA:
            written = schema.removeprefix(FAMILY)[:20]
            self._refuse(f"the recording has format {written}, this program reads 1")
        interval = head.get("interval") if head is not None else None
        if not isinstance(interval, int | float) or not 0 < interval < 10**6:
            self._refuse("interval is not a number of seconds")
        return float(interval)

    def _read_snapshot(self) -> Snapshot | None:
        changed = self._line()
        if changed is None:
            return None
        self._plain = self._plain | {ONCE: []} | changed
        try:
            snapshot = from_plain(Snapshot, self._plain)
        except (ValueError, RecursionError) as failure:
            self._refuse(str(failure))
        return replace(snapshot, source="record")

    def _line(self) -> dict[str, Any] | None:
        """The object on the next line, None at the end; a last line without its end is none."""
        raw = self._file.readline(MAX_LINE_BYTES + 1)
        self._number += 1
        if len(raw) > MAX_LINE_BYTES:
            self._refuse(f"longer than {MAX_LINE_BYTES} bytes")
        if not raw.endswith(b"\n"):
            return None
        try:
            found = json.loads(raw, parse_constant=_no_constant)
        except (ValueError, RecursionError) as failure:
            self._refuse(f"no JSON: {failure}")
        if not isinstance(found, dict):
            self._refuse("not a JSON object")
        return found

    def _last_taken(self, first: float) -> float:
        """When the last line was taken, read from the end of the file."""
        here = self._file.tell()
        end = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(here, end - 2 * MAX_LINE_BYTES))
        tail = self._file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
        self._file.seek(here)
        try:
            taken = json.loads(tail, parse_constant=_no_constant)[TIME]
        except (ValueError, LookupError, TypeError, RecursionError):
            return first
        return float(taken) if isinstance(taken, int | float) and 0 < taken < 10**12 else first

    def _refuse(self, why: str) -> NoReturn:
        raise SourceError(Trouble.FORMAT, f"{self.target}, line {self._number}: {why}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _why(failure: OSError) -> str:
    return (failure.strerror or str(failure)).lower()
