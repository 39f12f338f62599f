# SPDX-License-Identifier: Apache-2.0
"""A namespace: the directory of one fingerprint, and the lock that makes us its only writer.

Covers where a tier's files lie, who may use them, and which file systems they may lie on. Not what
is in the index or in the segments. What changes the bytes of a block is in the fingerprint, so that
what another model, layout or rank has stored is in another directory: a miss, never a wrong hit.
"""

import ctypes
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from tiercache import __version__
from tiercache.errors import ConfigError

logger = logging.getLogger(__name__)

#: Version of everything below a namespace's directory.
FORMAT: Final = 1
#: The field of a fingerprint that changes at every start if the engine's hashes are random.
HASH_SEED: Final = "hash_seed"
#: What a seed starts with that no later start has: nothing stored under it is found again.
RANDOM_SEED: Final = "random:"

META, LOCK, INDEX = "meta.json", "lock", "index"
#: Far more than we write into a file: what is longer is cut off, and damaged by that.
_META_BYTES: Final = 1 << 20
_PID_BYTES: Final = 20
#: What a namespace's directory is called.
NAME: Final = re.compile("[0-9a-f]{16}")
#: Magic numbers of statfs(2). LMDB maps its file and locks through memory: both need one kernel.
NETWORK: Final = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB",
    0xFF534D42: "CIFS",
    0x01021997: "9P",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x19830326: "BeeGFS",
    0x47504653: "GPFS",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x73757245: "Coda",
    0x786F4256: "VirtualBox's shared folders",
    0xAAD7AAEA: "PanFS",
}
FUSE: Final = 0x65735546


class Unused(NamedTuple):
    """A namespace beside ours that no process has open."""

    name: str
    nbytes: int
    """What its files occupy. It counts for no quota."""
    differs: tuple[str, ...]
    """Fields of the fingerprint that are not as in ours; none if its meta.json cannot be read."""
    lost: bool
    """Whether its hash seed was a random one: nobody will ever open it again."""


def namespace(fingerprint: Mapping[str, object]) -> str:
    """Name of the directory for a fingerprint: 16 hex digits.

    Fingerprints that are equal as JSON, in whatever order, have the same name. Raises TypeError
    for values that JSON does not know.
    """
    return hashlib.sha256(_canonical(fingerprint).encode()).hexdigest()[:16]


class Namespace:
    """The open namespace ``directory``; made by ``open``.

    Locking: none; open and close it from one thread. The lock on the directory belongs to the
    process: forked children do not inherit it.
    """

    directory: Path
    unused: list[Unused]
    """What lay beside it when it was opened, and was left there."""

    def __init__(self, directory: Path) -> None:
        """Lock the directory, which exists. Raises OSError, and ConfigError if it is locked."""
        self.directory = directory
        self.unused = []
        self._descriptor: int | None = _lock(directory)
        _LOCKED.add(self)

    @classmethod
    def open(
        cls, path: Path, fingerprint: Mapping[str, object], record_bytes: Mapping[int, int]
    ) -> "Namespace":
        """Create or open the namespace of a fingerprint below ``path``, and lock it.

        ``record_bytes``, by group, is part of the fingerprint. If meta.json is damaged, or belongs
        to another fingerprint, the index is removed. Logs what lies unused beside it; removes that
        of which the hash seed was random.

        Raises:
            ConfigError: names the option ``path``: it is on a network file system, cannot be
                written, is not ours, has another format, or another process writes to it.
            TypeError: a value in the fingerprint that JSON does not know.
        """
        records = {str(group_id): size for group_id, size in record_bytes.items()}
        whole = json.loads(_canonical({**fingerprint, "record_bytes": records}))
        try:
            _check_file_system(path)
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory = path / namespace(whole)
            make_private(directory)
            opened = cls(directory)
            try:
                opened._prepare(whole, record_bytes)
            except BaseException:
                opened.close()
                raise
        except OSError as error:
            raise _refusal(path, f"a directory that this process can use ({error})") from error
        return opened

    @property
    def index_directory(self) -> Path:
        return self.directory / INDEX

    def group_directory(self, group_id: int) -> Path:
        return self.directory / f"g{group_id}"

    def close(self) -> None:
        """Let another process write. Does nothing the second time."""
        if (descriptor := self._forget()) is not None:
            # A child that was not forked by Python still has the descriptor, and with it the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def let_go(self) -> None:
        """In a forked child: leave the lock to the parent, whom it must not outlive."""
        if (descriptor := self._forget()) is not None:
            os.close(descriptor)

    def _forget(self) -> int | None:
        descriptor, self._descriptor = self._descriptor, None
        return descriptor

    def _prepare(self, fingerprint: dict[str, Any], groups: Iterable[int]) -> None:
        meta = read_meta(self.directory)
        if meta is not None and meta["format"] != FORMAT:
            found = f"format {meta['format']} found, this version reads {FORMAT}"
            raise _refusal(self.directory, f"a namespace that this version can read: {found}")
        make_private(self.index_directory)
        if meta is None or meta["fingerprint"] != fingerprint:
            self._begin(fingerprint)
        for group_id in groups:
            make_private(self.group_directory(group_id))
        for unused in _unused(self.directory, fingerprint):
            if not unused.lost or not _remove(self.directory.with_name(unused.name), unused.nbytes):
                self.unused.append(unused)
                _log(unused)

    def _begin(self, fingerprint: dict[str, Any]) -> None:
        """Write meta.json. Nobody knows what an index holds that has none, or a wrong one."""
        if any(self.index_directory.iterdir()):
            text = "tiercache namespace %s: begins anew, as its meta.json is missing or damaged"
            logger.warning(text, self.directory)
            shutil.rmtree(self.index_directory)
            make_private(self.index_directory)
        created_by = f"tiercache {__version__}"
        meta = {"format": FORMAT, "created_by": created_by, "fingerprint": fingerprint}
        write_whole(self.directory / META, json.dumps(meta, indent=2) + "\n")


_LOCKED: Final[WeakSet[Namespace]] = WeakSet()


def _after_fork() -> None:
    for opened in list(_LOCKED):
        opened.let_go()


os.register_at_fork(after_in_child=_after_fork)


def file_system(path: Path) -> int:
    """Magic number of the file system that ``path`` lies on, as statfs(2) tells it."""
    buffer = ctypes.create_string_buffer(512)  # four times what the structure needs
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), buffer):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    # The first field is a long, which on 64-bit machines is 8 bytes; magic numbers have 4.
    return int.from_bytes(buffer.raw[:8], sys.byteorder) & 0xFFFFFFFF


def _check_file_system(path: Path) -> None:
    """Refuse what is across a network; ``path`` need not exist yet."""
    absolute = path.absolute()
    magic = file_system(next(level for level in (absolute, *absolute.parents) if level.exists()))
    if magic in NETWORK:
        kind = NETWORK[magic]
        raise _refusal(path, f"a directory on a local disk ({kind} is a network file system)")
    if magic == FUSE:
        text = "tiercache: path %s is on FUSE; with a network behind it, the index gets damaged"
        logger.warning(text, path)


def _refusal(path: Path, allowed: str) -> ConfigError:
    return ConfigError("path", str(path), allowed)


def make_private(directory: Path) -> None:
    """Create the directory; if it exists, check that it is one and ours, and close it to others."""
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    if directory.is_symlink():
        raise OSError(errno.ELOOP, "a symbolic link", str(directory))
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        owner = os.fstat(descriptor).st_uid
        if owner != os.geteuid():
            raise OSError(errno.EPERM, f"belongs to user {owner}", str(directory))
        os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def _lock(directory: Path) -> int:
    """Lock the directory; returns the descriptor that holds the lock, on a file with our pid."""
    file = directory / LOCK
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        descriptor = os.open(file, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Somebody may have removed the namespace since the file was opened: a lock on a file
            # that has no name any more excludes nobody.
            if file.exists() and os.path.samestat(file.stat(), os.fstat(descriptor)):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, b"%d\n" % os.getpid())
                return descriptor
        except BlockingIOError as error:
            holder = f"process {os.read(descriptor, 20).decode(errors='replace').strip()}"
            os.close(descriptor)
            allowed = f"a directory that no other process writes to ({holder} does)"
            raise _refusal(directory.parent, allowed) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def owner(directory: Path) -> int | None:
    """The process that has a namespace open, None if no one has; 0 if the lock does not say who.

    Not by trying the lock: a server that starts at that moment would be refused.
    """
    file = directory / LOCK
    try:
        if not is_locked(file):
            return None
        text = _read(file, _PID_BYTES).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else 0


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def read_meta(directory: Path) -> dict[str, Any] | None:
    """What meta.json says; None if it is missing or damaged."""
    try:
        meta = json.loads(_read(directory / META, _META_BYTES))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if not isinstance(meta, dict) or not isinstance(meta.get("fingerprint"), dict):
        return None
    return meta if isinstance(meta.get("format"), int) else None


def _read(file: Path, most: int) -> bytes:
    """The beginning of a file; nothing of a pipe or a device, which might never end."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        return os.read(descriptor, most) if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else b""
    finally:
        os.close(descriptor)


def write_whole(file: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all, even after a power loss."""
    unfinished = file.with_suffix(".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(unfinished, flags, 0o600), "w") as output:
        output.write(text)
        output.flush()
        os.fsync(output.fileno())
    unfinished.replace(file)
    descriptor = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unused(ours: Path, fingerprint: dict[str, Any]) -> Iterator[Unused]:
    """Namespaces beside ours that no process has open, as far as we may look at them."""
    for directory in sorted(ours.parent.iterdir()):
        if directory == ours or not NAME.fullmatch(directory.name) or directory.is_symlink():
            continue
        with suppress(OSError):
            if directory.stat().st_uid == os.geteuid() and not is_locked(directory / LOCK):
                meta = read_meta(directory)
                theirs = fingerprint if meta is None else meta["fingerprint"]
                differs = _differs(fingerprint, theirs)
                lost = HASH_SEED in differs and str(theirs.get(HASH_SEED)).startswith(RANDOM_SEED)
                yield Unused(directory.name, occupied(directory), differs, lost)


def is_locked(file: Path) -> bool:
    """Whether a process that we can see has the lock. To try it would make that one's start fail.

    By inode, as the kernel's list names a device otherwise than stat does on some file systems.
    """
    inode = f":{file.stat().st_ino}"
    with Path("/proc/locks").open() as locks:
        return any(" FLOCK " in line and line.split()[-3].endswith(inode) for line in locks)


def occupied(directory: Path) -> int:
    return sum(file.lstat().st_blocks * 512 for file in directory.rglob("*"))


def _remove(directory: Path, nbytes: int) -> bool:
    """Remove a namespace, unless somebody has it; meta.json, which says that we may, goes last."""
    try:
        descriptor = _lock(directory)
    except (OSError, ConfigError):
        return False
    try:
        for part in directory.iterdir():
            if part.is_dir():
                shutil.rmtree(part)
        shutil.rmtree(directory)
    except OSError as error:
        logger.warning("tiercache namespace %s: cannot be removed: %s", directory, error)
        return False
    finally:
        os.close(descriptor)
    text = "tiercache: removed namespace %s, %d bytes: its hash seed was random, nobody can use it"
    logger.info(text, directory.name, nbytes)
    return True


def _differs(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[str, ...]:
    missing = object()
    fields = sorted(ours.keys() | theirs.keys())
    return tuple(f for f in fields if ours.get(f, missing) != theirs.get(f, missing))


def _log(unused: Unused) -> None:
    why = ", ".join(f"{field.replace('_', ' ')} differs" for field in unused.differs)
    level = logging.INFO
    if unused.differs == (HASH_SEED,):
        level = logging.WARNING
        why += "; unless PYTHONHASHSEED is set, no start finds what an earlier one stored"
    text = "tiercache: namespace %s lies unused, %.2f GiB: %s"
    logger.log(level, text, unused.name, unused.nbytes / 2**30, why or "its meta.json is damaged")
