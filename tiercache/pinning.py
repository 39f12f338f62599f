# SPDX-License-Identifier: Apache-2.0
"""Registering host memory with CUDA, so that the copy engines reach it without staging.

Covers registration, its order between processes and undoing it. Does not allocate memory, and
there is no fallback: memory that should be pinned and is not would be several times slower
without anybody noticing.
"""

import errno
import fcntl
import logging
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tiercache.errors import TierCacheError

logger = logging.getLogger(__name__)

#: Bytes of one registration at most. From 512 GiB on, drivers since r580 refuse a single call
#: whatever memory is free; a call of this size takes about 7 s.
MAX_PIECE_BYTES = 64 << 30
_PAGE_BYTES = 4096


class Span(NamedTuple):
    """One region to register: where it is, and the ``unit`` bytes that are copied together."""

    group_id: int
    address: int
    nbytes: int
    unit: int


def default_lock() -> Path:
    """The lock file shared by this user's processes. It stays: removing one races with waiters."""
    return Path(tempfile.gettempdir()) / f"tiercache-pin-{os.getuid()}.lock"


@contextmanager
def registered(spans: Sequence[Span], lock: Path | None = None) -> Iterator[None]:
    """Keep ``spans`` registered with CUDA while the context is open.

    Locking: holds an flock on ``lock`` while it registers, and only then. Workers that register
    at the same time make each other's page migrations fail, which the driver reports as
    "invalid argument" or "out of memory".

    Raises: TierCacheError naming group, size and code; whatever was registered by then is undone.
    """
    with ExitStack() as undo:
        try:
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            with _exclusive(lock or default_lock()):
                for span in spans:
                    for address, nbytes in _pieces(span):
                        _register(cudart, span.group_id, address, nbytes)
                        undo.callback(_unregister, cudart, address)
        except (AssertionError, OSError, RuntimeError) as error:
            raise TierCacheError(f"cannot register host memory with CUDA: {error}") from error
        yield


def _pieces(span: Span) -> Iterator[tuple[int, int]]:
    """(address, bytes) of the registrations: whole pages, and no unit across two of them."""
    step = math.lcm(span.unit, _PAGE_BYTES)
    step *= max(1, MAX_PIECE_BYTES // step)
    for offset in range(0, span.nbytes, step):
        yield span.address + offset, min(step, span.nbytes - offset)


def _register(cudart: Any, group_id: int, address: int, nbytes: int) -> None:
    code = int(cudart.cudaHostRegister(address, nbytes, 0))
    if code:
        raise TierCacheError(
            f"region of group {group_id}: cudaHostRegister of {nbytes} bytes "
            f"({nbytes / 2**30:.2f} GiB) failed with code {code}"
        )


def _unregister(cudart: Any, address: int) -> None:
    code = int(cudart.cudaHostUnregister(address))
    if code:
        logger.warning("cudaHostUnregister of %#x failed with code %d", address, code)


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        # Anybody can put a file of this name there, and lock it for ever.
        if (owner := os.fstat(descriptor).st_uid) != os.geteuid():
            raise OSError(errno.EPERM, f"belongs to user {owner}", str(path))
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # Unlock as well as close: a process forked meanwhile shares the open file and its lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
