# SPDX-License-Identifier: Apache-2.0
"""What the kernel says about host memory: how much is left, and in which pages a range lies.

Covers /proc/meminfo, control groups of both versions, reserved huge pages and /proc/self/smaps,
as snapshots. It reserves nothing: processes that ask at the same time are told the same bytes.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_VMA = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")
#: Of private memory, of shared memory, and of reserved pages mapped by several or by one.
_HUGE = ("AnonHugePages:", "ShmemPmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:")
_HUGE_PAGE_BYTES = 2 << 20


class _Controller(NamedTuple):
    """Names that one version of the memory controller gives to its files and statistics."""

    limit: str
    usage: str
    reclaimable: tuple[str, ...]


_V1 = _Controller(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
_V2 = _Controller("memory.max", "memory.current", ("inactive_file", "active_file"))


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that this process can still allocate before the kernel swaps or kills.

    The least of MemAvailable and, for its control group and every parent of it, the limit minus
    what is in use. File pages do not count as in use: a container that has just read a model's
    weights is full of them, and the kernel drops them first.

    ``root`` is where ``proc`` and ``sys`` are looked up. Raises OSError without /proc/meminfo.
    """
    return max(0, min([_fields(root / "proc/meminfo")["MemAvailable:"] << 10, *_rooms(root)]))


def reserved_bytes(root: Path = Path("/")) -> int:
    """Bytes in the 2 MiB pages that an administrator set aside and nobody has taken.

    They do not count as available: no other memory is made of them.
    """
    pool = root / "sys/kernel/mm/hugepages/hugepages-2048kB"
    try:
        free, promised = (int((pool / f"{of}_hugepages").read_text()) for of in ("free", "resv"))
    except OSError:
        return 0
    return (free - promised) * _HUGE_PAGE_BYTES


def huge_page_bytes(start: int, end: int, smaps: Path = Path("/proc/self/smaps")) -> int | None:
    """Bytes of the memory in [start, end) that are mapped as 2 MiB pages; None if unknown.

    Counts whole mappings that touch the range: the kernel may have merged it with a neighbour.
    """
    try:
        with smaps.open() as lines:
            return min(_huge_bytes(lines, start, end), end - start)
    except OSError:
        return None


def _huge_bytes(lines: Iterable[str], start: int, end: int) -> int:
    total = 0
    inside = False
    for line in lines:
        if vma := _VMA.match(line):
            inside = int(vma[1], 16) < end and int(vma[2], 16) > start
        elif inside and line.startswith(_HUGE):
            total += int(line.split()[1]) << 10
    return total


def _rooms(root: Path) -> Iterator[int]:
    """Limit minus usage of every limited control group above this process, bytes."""
    for controller, mount, group in _memory_groups(root):
        directory = mount / group
        for level in (directory, *directory.parents):
            room = _room(controller, level)
            if room is not None:
                yield room
            if level == mount:
                break


def _room(controller: _Controller, directory: Path) -> int | None:
    try:
        limit = (directory / controller.limit).read_text().strip()
        if limit == "max":
            return None
        usage = int((directory / controller.usage).read_text())
        statistics = _fields(directory / "memory.stat")
    except OSError:
        # The root group has no limit, and a container may not show the groups above its own.
        return None
    reclaimable = sum(statistics.get(name, 0) for name in controller.reclaimable)
    return int(limit) - max(0, usage - reclaimable)


def _memory_groups(root: Path) -> Iterator[tuple[_Controller, Path, PurePosixPath]]:
    """(version, mount point, path below it) of each memory controller this process is under."""
    groups = dict(_own_groups(root))
    for line in _lines(root / "proc/self/mountinfo"):
        mounted, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        if kind == "cgroup2":
            controller = _V2
        elif kind == "cgroup" and "memory" in options.split(","):
            controller = _V1
        else:
            continue
        _, _, _, base, point, *_ = mounted.split(" ")
        group = groups.get(controller, PurePosixPath(base))
        below = group.relative_to(base) if group.is_relative_to(base) else PurePosixPath()
        yield controller, root / point.lstrip("/"), below


def _own_groups(root: Path) -> Iterator[tuple[_Controller, PurePosixPath]]:
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield _V2, PurePosixPath(path)
        elif "memory" in controllers.split(","):
            yield _V1, PurePosixPath(path)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _fields(path: Path) -> dict[str, int]:
    """The first number after each name of a 'name number' file."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows}
