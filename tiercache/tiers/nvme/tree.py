# SPDX-License-Identifier: Apache-2.0
"""The files of a namespace as they should be: what is there too much, of the wrong kind or size.

Covers names, kinds, modes, owners and sizes: ``scan`` looks, the rest decides. Not what is in the
files.
"""

import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tiercache.tiers.nvme.environment import CLEARED, COMPACT, DATA
from tiercache.tiers.nvme.environment import LOCK as READERS
from tiercache.tiers.nvme.findings import Check, Finding, Remedy
from tiercache.tiers.nvme.namespace import INDEX, LOCK, META
from tiercache.tiers.nvme.segments import UNFINISHED, segment_number

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
#: What ``meta.json`` is called until it is whole.
_NEW_META: Final = Path(META).with_suffix(".new").name


class Seen(NamedTuple):
    """A file or directory: ``name`` is its path below the namespace."""

    name: str
    mode: int
    uid: int
    nbytes: int
    occupied: int
    """Bytes on disk: less than ``nbytes`` where there are holes."""


def scan(directory: Path) -> list[Seen]:
    """All there is in a namespace, but not what is below a directory that is not ours.

    Files may vanish meanwhile. Raises OSError.
    """
    found = []
    for name in sorted(each.name for each in directory.iterdir()):
        found += _look(directory, name)
        if found and found[-1].name == name and stat.S_ISDIR(found[-1].mode) and _has_files(name):
            for below in sorted((directory / name).iterdir()):
                found += _look(directory, f"{name}/{below.name}")
    return found


def _look(directory: Path, name: str) -> list[Seen]:
    try:
        seen = (directory / name).lstat()
    except FileNotFoundError:
        return []
    return [Seen(name, seen.st_mode, seen.st_uid, seen.st_size, seen.st_blocks * 512)]


def _has_files(name: str) -> bool:
    return name == INDEX or group_of(name) is not None


def group_of(name: str) -> int | None:
    """The group whose directory is called ``name``."""
    digits = name.removeprefix("g")
    is_number = digits.isascii() and digits.isdecimal()
    return int(digits) if is_number and name == f"g{int(digits)}" else None


def segment_sizes(seen: Iterable[Seen]) -> dict[int, dict[int, int]]:
    """Bytes of the segments that are regular files, by group and number."""
    sizes: dict[int, dict[int, int]] = {}
    for one in seen:
        directory, _, file = one.name.partition("/")
        group, number = group_of(directory), segment_number(file)
        if group is not None and number >= 0 and _is_finished_file(one):
            sizes.setdefault(group, {})[number] = one.nbytes
    return sizes


def _is_finished_file(one: Seen) -> bool:
    return stat.S_ISREG(one.mode) and not one.name.endswith(UNFINISHED)


def check(
    directory: Path,
    seen: Iterable[Seen],
    record_bytes: Mapping[int, int],
    *,
    segment_bytes: int,
    owner: int,
) -> Iterator[Finding]:
    """What is not as the tier makes it. ``owner`` is the user whose namespace it is."""
    for one in seen:
        path = directory / one.name
        if finding := _stranger(one, path, record_bytes):
            yield finding
            continue
        if not stat.S_ISLNK(one.mode):
            yield from _access(one, path, owner)
        top, _, file = one.name.partition("/")
        group = group_of(top)
        if file and group is not None and group in record_bytes:
            yield from _size(one, path, record_bytes[group], segment_bytes)


def _stranger(one: Seen, path: Path, groups: Mapping[int, int]) -> Finding | None:
    """What does not belong there, or is not of the kind that belongs there."""
    expected = _expected(one.name, groups)
    if expected is None:
        return Finding(Check.ORPHANS, "unknown", f"{one.name} is not ours", Remedy.REMOVE, path)
    if expected == 0:
        text = f"{one.name} was left unfinished"
        return Finding(Check.ORPHANS, "unfinished", text, Remedy.REMOVE, path)
    if stat.S_ISLNK(one.mode) and one.name != META:  # that one may still be of use
        text = f"{one.name} is a symbolic link"
        return Finding(Check.FILES, "link", text, Remedy.REMOVE, path)
    if stat.S_IFMT(one.mode) not in {expected, stat.S_IFLNK}:
        text = f"{one.name} is no {'directory' if expected == stat.S_IFDIR else 'regular file'}"
        return Finding(Check.FILES, "kind", text, Remedy.REMOVE, path)
    return None


def _expected(name: str, groups: Mapping[int, int]) -> int | None:
    """The kind of what belongs under a name: 0 for a leftover, None where nothing does."""
    top, _, file = name.partition("/")
    if not file:
        kinds = {META: stat.S_IFREG, LOCK: stat.S_IFREG, INDEX: stat.S_IFDIR, _NEW_META: 0}
        return stat.S_IFDIR if group_of(top) in groups else kinds.get(top)
    if top == INDEX:
        files = (DATA, READERS, CLEARED)
        return stat.S_IFREG if file in files else 0 if file == COMPACT else None
    if group_of(top) not in groups or segment_number(file) < 0:
        return None
    return 0 if file.endswith(UNFINISHED) else stat.S_IFREG


def _access(one: Seen, path: Path, owner: int) -> Iterator[Finding]:
    wanted = DIRECTORY_MODE if stat.S_ISDIR(one.mode) else FILE_MODE
    mode = stat.S_IMODE(one.mode)
    if mode != wanted:
        text = f"{one.name} has mode {mode:04o}, not {wanted:04o}"
        yield Finding(Check.ACCESS, "mode", text, Remedy.MODE, path, number=wanted)
    if one.uid != owner:
        text = f"{one.name} belongs to user {one.uid}, not {owner}"
        yield Finding(Check.ACCESS, "owner", text, Remedy.OWNER, path, number=owner)


def _size(one: Seen, path: Path, record: int, segment_bytes: int) -> Iterator[Finding]:
    full = max(1, segment_bytes // record) * record
    whole = min(full, one.nbytes // record * record)
    if one.nbytes > full:
        text = f"{one.name} has {one.nbytes} bytes, {one.nbytes - full} too many"
        yield Finding(Check.FILES, "too-long", text, Remedy.CUT, path, number=full)
    elif one.nbytes > whole:
        text = f"{one.name} ends within a record, at {one.nbytes} bytes"
        yield Finding(Check.FILES, "cut-off", text, Remedy.CUT, path, number=whole)
