# SPDX-License-Identifier: Apache-2.0
"""What lies on disk: the directory of a tier, and the entries of its index.

Covers which directory a command reads and how a key is found by its first digits. How the index is
read, in short transactions that a server does not notice, is ``tiercache.tiers.nvme.offline``.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiercache.errors import NoPoolError, TierCacheError

if TYPE_CHECKING:
    from tiercache.tiers.nvme.offline import OfflineNamespace, OfflinePool, StoredEntry


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--pool`` and ``--namespace`` for a command that reads a disk."""
    pool = click.option(
        "--pool",
        metavar="DIR|NAME|PID",
        help="A tier's directory, or a server that has one.  [$TIERCACHE_POOL, or the only server]",
    )
    namespace = click.option(
        "--namespace",
        metavar="NAME",
        help="Of one model and layout only; the first digits are enough.",
    )
    return pool(namespace(command))


def directory(pool: str | None) -> Path:
    """The directory that ``--pool`` means: itself, or that of a server's NVMe tier.

    Raises: NoPoolError, which says what to give.
    """
    given = pool or os.environ.get("TIERCACHE_POOL")
    if given and Path(given).is_dir():
        return Path(given)
    if given and os.sep in given and not given.endswith(".tcs"):
        raise NoPoolError(f"there is no directory {given}")
    return _of_server(given)


def _of_server(which: str | None) -> Path:
    from tiercache.cli import pools

    try:
        snapshot = pools.look(which)
    except NoPoolError as error:
        if which is not None:
            raise
        text = "no server runs here: give the directory of a tier with --pool DIR"
        raise NoPoolError(text) from error
    pid = 0 if snapshot.pool is None else snapshot.pool.pid
    found = opened_by(pid) if snapshot.alive else []
    if len(found) == 1:
        return found[0]
    what = (
        "has several tiers on disks: " + ", ".join(map(str, found))
        if found
        else "has no tier on a disk open"
    )
    raise NoPoolError(f"process {pid} {what}; give the directory of a tier with --pool DIR")


def opened_by(pid: int) -> list[Path]:
    """Directories of the tiers that a process has open: it holds a lock in each namespace."""
    from tiercache.tiers.nvme.namespace import LOCK, NAME

    found = set()
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                file = descriptor.readlink()
                if file.name == LOCK and NAME.fullmatch(file.parent.name):
                    found.add(file.parent.parent)
    return sorted(found)


def chosen(pool: "OfflinePool", name: str | None) -> "list[OfflineNamespace]":
    """All namespaces, or the one that ``name`` is the beginning of. Raises NoPoolError."""
    return list(pool.namespaces) if name is None else [pool.only(name)]


def chosen_groups(namespaces: "Iterable[OfflineNamespace]", name: str | None) -> list[int]:
    """Numbers of the groups to read. Raises click.UsageError, which names those there are."""
    there = sorted({group for namespace in namespaces for group in namespace.groups})
    if name is None:
        return there
    number = name.removeprefix("g")
    if not number.isdecimal() or int(number) not in there:
        known = ", ".join(f"g{group}" for group in there) or "none"
        raise click.UsageError(f"there is no group {name!r}; there are: {known}")
    return [int(number)]


def entries(
    namespaces: "Iterable[OfflineNamespace]", groups: Iterable[int]
) -> "Iterator[tuple[OfflineNamespace, StoredEntry]]":
    """All entries; between two chunks no transaction is open."""
    groups = list(groups)
    for namespace in namespaces:
        for group in (g for g in groups if g in namespace.groups):
            for entry in chain.from_iterable(namespace.entries(group)):
                yield namespace, entry


def name_of(entry: "StoredEntry") -> str:
    """A key as it is called: group and hash, as in ``g0:5f0c...``."""
    return f"g{entry.group_id}:{entry.block_hash.hex()}"


def matches(entry: "StoredEntry", prefix: str) -> bool:
    """Whether a key begins like this; the group may be left out."""
    name = name_of(entry)
    return name.startswith(prefix) or name.partition(":")[2].startswith(prefix)


def by_prefix(
    found: "Iterable[tuple[OfflineNamespace, StoredEntry]]", prefix: str
) -> "tuple[OfflineNamespace, StoredEntry]":
    """The one entry whose key begins like this; of the same key in one namespace, the youngest.

    Raises: TierCacheError if there is none, click.UsageError if there are several.
    """
    keys: dict[tuple[str, str], tuple[OfflineNamespace, StoredEntry]] = {}
    for namespace, entry in found:
        if matches(entry, prefix):
            name = (namespace.name, name_of(entry))
            if name not in keys or keys[name][1].stamp < entry.stamp:
                keys[name] = (namespace, entry)
            if len(keys) > 1:
                raise click.UsageError(_ambiguous(prefix, list(keys)))
    if not keys:
        raise TierCacheError(f"no key begins with {prefix!r}; 'tiercache ls' lists them")
    return next(iter(keys.values()))


def source(pool: "OfflinePool") -> dict[str, object]:
    """For programs: where entries come from, and who writes there."""
    owners = {namespace.name: namespace.pid for namespace in pool.namespaces}
    return {
        "kind": "index",
        "path": str(pool.path),
        "namespaces": [{"name": name, "pid": pid} for name, pid in owners.items()],
        "alive": any(pid is not None for pid in owners.values()),
    }


def trailer(pool: "OfflinePool") -> str:
    """For people: ``source: index of /mnt/nvme, in use by pid 41712``."""
    pids = sorted({namespace.pid for namespace in pool.namespaces if namespace.pid is not None})
    users = ", ".join(f"pid {pid}" if pid else "a process" for pid in pids)
    return f"source: index of {pool.path}, {f'in use by {users}' if users else 'not in use'}"


def _ambiguous(prefix: str, keys: list[tuple[str, str]]) -> str:
    """Two keys of namespaces that ``prefix`` is the beginning of, and how to tell them apart."""
    (one, first), (other, second) = keys[:2]
    if one != other:
        return f"{prefix!r} is not unique: it is in {one} and in {other}; give a --namespace"
    if first.partition(":")[2] == second.partition(":")[2]:
        return f"{prefix!r} is in several groups; give the group, as in {first}"
    return f"{prefix!r} is not unique: {first} and {second}"
