# SPDX-License-Identifier: Apache-2.0
"""What the tests of the segment files share."""

import mmap
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tiercache.tiers.nvme.segments import Segments

PAGE = 4096
RECORD = 2 * PAGE
#: Ten slots in segments of four: 0-3, 4-7, 8-9.
SLOTS = 10
SEGMENT = 4 * RECORD + PAGE

Transfer = Callable[[int, int, Sequence[memoryview]], None]


def segments(
    directory: Path, slots: int = SLOTS, *, record_bytes: int = RECORD, segment_bytes: int = SEGMENT
) -> closing[Segments]:
    return closing(Segments(directory, record_bytes, slots, segment_bytes=segment_bytes))


def sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.lstat().st_size for path in sorted(directory.iterdir())}


def nbytes(directory: Path) -> int:
    return sum(sizes(directory).values())


def records_of(slots: list[int], contents: list[bytes]) -> tuple[mmap.mmap, list[memoryview]]:
    memory = mmap.mmap(-1, max(1, len(slots)) * PAGE)
    view = memoryview(memory)
    records = [view[i * PAGE : (i + 1) * PAGE] for i in range(len(slots))]
    for slot, record, content in zip(slots, records, contents, strict=True):
        if content:
            record[: len(content)] = content
            record[-1] = slot
    return memory, records


def transfer(group: Segments, call: Transfer, slots: list[int], records: list[memoryview]) -> None:
    for run in group.runs(slots):
        call(run.fd, run.offset, records[run.start : run.start + run.count])


@contextmanager
def mounted(kind: str, where: Path, options: str = "defaults") -> Iterator[Path]:
    where.mkdir()
    command = ["mount", "-t", kind, "-o", options, "none", str(where)]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"cannot mount {kind} here: {tried.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)
