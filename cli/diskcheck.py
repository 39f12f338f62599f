# SPDX-License-Identifier: Apache-2.0
"""What ``tiercache doctor POOL`` looks at: whether a disk suits a pool, and how the pool there is.

Covers the file system, direct I/O, room, access, and who reads the indexes. Damage is what
``tiercache verify`` looks for.
"""

import errno
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tiercache.cli.checkup import Line, State
from tiercache.cli.table import size
from tiercache.errors import NoPoolError, TierCacheError

if TYPE_CHECKING:
    from tiercache.tiers.nvme.offline import OfflineNamespace

#: What a tier leaves free unless told otherwise.
MIN_FREE_BYTES: Final = 1 << 30
PAGE_BYTES: Final = 4096
#: Names of file systems by the number that statfs gives.
LOCAL: Final = {
    0xEF53: "ext4",
    0x58465342: "XFS",
    0x9123683E: "Btrfs",
    0x2FC12FC1: "ZFS",
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0xF2F52010: "F2FS",
    0x794C7630: "overlay",
    0xCA451A4E: "bcachefs",
}
#: File systems that lie in memory, or above another one.
MEMORY: Final = ("tmpfs", "ramfs")


def disk(path: Path, capacity: int | None) -> Iterator[Line]:
    """Whether ``path`` suits a tier of ``capacity`` bytes."""
    if not path.is_dir():
        text = f"{path} is no directory" if path.exists() else f"{path} is not there yet"
        yield Line("path", State.FAIL if path.exists() else State.WARN, text, f"mkdir -p {path}")
        path = next((level for level in path.absolute().parents if level.is_dir()), Path("/"))
    yield access(path)
    yield file_system(path)
    yield direct_io(path)
    yield room(path, capacity)
    yield from _pool(path)


def access(path: Path) -> Line:
    if os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return Line("access", State.OK, f"{path} can be read and written")
    cure = f"chown {os.geteuid()} {path}, or run as the user of the server"
    return Line("access", State.FAIL, f"{path} cannot be read and written", cure)


def file_system(path: Path) -> Line:
    from tiercache.tiers.nvme.namespace import FUSE, NETWORK
    from tiercache.tiers.nvme.namespace import file_system as magic_of

    try:
        magic = magic_of(path)
    except OSError as error:
        return Line("file system", State.FAIL, str(error.strerror), "choose another path")
    return kind(magic, NETWORK.get(magic), is_fuse=magic == FUSE)


def kind(magic: int, network: str | None, *, is_fuse: bool) -> Line:
    """What to make of a file system's number, and of its name if it is across a network."""
    if network:
        text = f"{network} is across a network, where an index gets damaged"
        return Line("file system", State.FAIL, text, "choose a path on a local disk")
    if is_fuse:
        return Line("file system", State.WARN, "FUSE", "make sure that no network is behind it")
    name = LOCAL.get(magic, f"number {magic:#x}")
    if name in MEMORY:
        text = f"{name} lies in memory: nothing survives a restart of the machine"
        return Line("file system", State.WARN, text, "choose a path on a disk")
    if name == "overlay":
        text = "overlay: a container's own layer goes with the container"
        return Line("file system", State.WARN, text, "mount a disk into the container")
    return Line("file system", State.OK, name)


def direct_io(path: Path) -> Line:
    """Write and read a page of a file that has no name, past the page cache."""
    try:
        _transfer(path)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.EOPNOTSUPP}:
            cure = "choose ext4 or XFS on a disk; without it, pages are copied once more"
            return Line("direct I/O", State.WARN, "not on this file system", cure)
        return Line("direct I/O", State.FAIL, f"cannot be tried: {error.strerror}", "see access")
    return Line("direct I/O", State.OK, "works")


def _transfer(path: Path) -> None:
    with tempfile.TemporaryFile(dir=path) as file, closing(mmap.mmap(-1, PAGE_BYTES)) as page:
        # Opened once more: a temporary file is not open for direct I/O.
        descriptor = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDWR | os.O_DIRECT)
        try:
            os.pwrite(descriptor, page, 0)
            os.preadv(descriptor, [page], 0)
        finally:
            os.close(descriptor)


def room(path: Path, capacity: int | None) -> Line:
    from tiercache.tiers.nvme.namespace import occupied

    stat = os.statvfs(path)
    free = stat.f_bavail * stat.f_frsize
    if not stat.f_blocks:
        return Line("room", State.WARN, "this file system does not know its size", "watch it")
    if capacity is None:
        if free < MIN_FREE_BYTES:
            text = f"{size(free)} free; a tier stops growing below {size(MIN_FREE_BYTES)}"
            return Line("room", State.WARN, text, "tiercache prune, or a smaller min_free")
        return Line("room", State.OK, f"{size(free)} free (--capacity SIZE: is it enough?)")
    used = occupied(path)
    if free + used < capacity + MIN_FREE_BYTES:
        text = f"{size(free)} free and {size(used)} used, too little for {size(capacity)}"
        cure = f"a capacity of at most {size(max(0, free + used - MIN_FREE_BYTES))}"
        return Line("room", State.FAIL, text, cure)
    return Line("room", State.OK, f"{size(free)} free, {size(used)} of {size(capacity)} used")


# --- the pool


def _pool(path: Path) -> Iterator[Line]:
    from tiercache.tiers.nvme.offline import open_readonly

    try:
        with open_readonly(path) as pool:
            for one in pool.namespaces:
                yield _namespace(one)
    except NoPoolError:
        yield Line("pool", State.OK, "none yet: the first server makes it")
    except TierCacheError as error:
        yield Line("pool", State.FAIL, str(error), "run as the user of the server")


def _namespace(one: "OfflineNamespace") -> Line:
    pid = one.pid
    user = "not in use" if pid is None else f"in use by pid {pid}" if pid else "in use"
    if one.meta is None and one.indexed:
        return Line(one.name, State.FAIL, "meta.json is damaged", "tiercache verify --fix")
    if not one.indexed:
        return Line(one.name, State.OK, f"empty, {user}")
    try:
        readers, info = one.index.readers(), one.index.info()
    except TierCacheError as error:
        return Line(one.name, State.FAIL, str(error), "tiercache verify --fix")
    dead = sum(not reader.alive for reader in readers)
    text = f"{user}, {len(readers)} readers, index {size(info.file_bytes)}"
    if dead:
        cure = "restart the server, which frees their places"
        return Line(one.name, State.WARN, f"{dead} readers have died; {text}", cure)
    return Line(one.name, State.OK, text)
