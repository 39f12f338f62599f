# SPDX-License-Identifier: Apache-2.0
"""The connection to a Mooncake store: its blocking calls, as codes, and its registered memory.

Covers what the package wants to be told and what it answers. Does not know keys, groups or
checksums. The package is an extra and is not imported before somebody connects.
"""

import ctypes
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

from tiercache.errors import TierCacheError
from tiercache.tierconfig import MooncakeConfig

#: Seconds that the master has at start-up to take a connection. The package itself tries for 90.
REACH_S: Final = 5.0
#: What there is not.
NOT_FOUND: Final = -704
EXISTS: Final = 1
#: Codes of calls that did not reach the master or were not answered.
_UNREACHED: Final = range(-999, -899)
_REFUSED: Final = -900
#: After a restart of the master each connection that the package keeps, and there are about eight,
#: fails once and at once. Then a master that is not there takes the package 4.5 s for each call.
TRIES: Final = 16
REFUSED_S: Final = 0.5

#: Without it the package opens a connection for each part of each record over TCP: those that its
#: peer does not take at once cost a second each, and each leaves a port that is not free for long.
POOL: Final = "MC_TCP_ENABLE_CONNECTION_POOL"

Parts = Sequence[memoryview]


def is_unreached(code: int) -> bool:
    """Whether a code says that the master is not there."""
    return code in _UNREACHED


class Client:
    """A store that is set up, ``raw``, with the memory that it may copy from and into.

    Locking: call it from any thread; the package lets go of the interpreter lock meanwhile. A call
    on a store that is closed ends the process, so the last call that runs closes it, and our lock
    is held for moments only. A call to a master that hangs comes back after the package's 30 s.
    Raises: TierCacheError once it is closed; else whatever the package raises; what goes wrong with
    a key is its code.
    """

    def __init__(self, raw: Any, replicas: int = 1) -> None:
        self._raw = raw
        self._replicas = replicas
        self._registered: list[tuple[int, Any]] = []
        """Addresses, with what keeps the memory there from being unmapped."""
        self._lock = Lock()
        self._calls = 0
        self._closed = False

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """The store, which is not closed meanwhile."""
        with self._lock:
            if self._closed:
                raise TierCacheError("mooncake: the store is closed")
            self._calls += 1
        try:
            yield self._raw
        finally:
            with self._lock:
                self._calls -= 1
                last = self._over
            if last:
                self._end()

    @property
    def _over(self) -> bool:
        """With the lock held: whether it is closed, and no call runs any more."""
        return self._closed and not self._calls

    def register(self, region: memoryview) -> None:
        """Let ``region`` be copied from and into. Raises TierCacheError."""
        address, owner = _address(region)
        with self._open() as raw:
            code = raw.register_buffer(address, region.nbytes)
        if code:
            raise TierCacheError(f"mooncake: {region.nbytes} bytes were not registered: {code}")
        self._registered.append((address, owner))

    def exist(self, names: Sequence[str]) -> list[int]:
        """``EXISTS``, 0 or an error, for each of ``names``."""
        with self._open() as raw:
            return _insist(lambda: raw.batch_is_exist(list(names)))

    def put(
        self, names: Sequence[str], records: Sequence[Parts], *, pinned: bool = False
    ) -> list[int]:
        """Store the parts of each record as one; 0 or an error, 0 too for what is there.

        ``pinned``: the store evicts them after all others, as long as its master's soft pins last.
        """
        config = self._how(pinned=pinned)
        addresses, sizes, owners = _places(records)
        with self._open() as raw:
            put = raw.batch_put_from_multi_buffers
            codes = _insist(lambda: put(list(names), addresses, sizes, config))
        del owners
        return codes

    def _how(self, *, pinned: bool) -> Any:
        from mooncake.store import ReplicateConfig, SoftPinAction

        config = ReplicateConfig()
        config.replica_num = self._replicas
        if pinned:
            config.soft_pin_action = SoftPinAction.ENABLE
        return config

    def get(self, names: Sequence[str], records: Sequence[Parts]) -> list[int]:
        """Fill the parts of each record; the bytes that came, or an error."""
        addresses, sizes, owners = _places(records)
        with self._open() as raw:
            get = raw.batch_get_into_multi_buffers
            codes = _insist(lambda: get(list(names), addresses, sizes))
        del owners
        return codes

    def remove(self, names: Sequence[str]) -> None:
        """Remove what is there, whoever reads it."""
        with self._open() as raw:
            raw.batch_remove(list(names), True)

    def close(self) -> None:
        """Take the memory back and hang up, which takes a second, once no call runs any more.

        Does not wait for those that run. May be called twice.
        """
        with self._lock:
            idle = not (self._closed or self._calls)
            self._closed = True
        if idle:
            self._end()

    def _end(self) -> None:
        while self._registered:
            address, owner = self._registered.pop()
            self._raw.unregister_buffer(address)
            del owner
        self._hang_up()

    def _hang_up(self) -> None:
        self._raw.close()


def connect(name: str, config: MooncakeConfig) -> Client:
    """Set up the client of tier ``name``; sets ``POOL`` in the environment, unless it is set.

    Raises TierCacheError: the package is missing, the master does not answer, or refuses.
    """
    try:
        from mooncake.store import MooncakeDistributedStore
    except ImportError as error:
        raise TierCacheError(
            "a tier of type 'mooncake' needs a package that is not installed: "
            f"pip install 'tiercache-kv[mooncake]' ({error})"
        ) from error
    own = _own_address(name, config.master)
    os.environ.setdefault(POOL, "1")
    raw = MooncakeDistributedStore()
    code = raw.setup(
        config.host or own,
        config.metadata,
        config.segment,
        0,
        config.protocol,
        config.devices,
        config.master,
    )
    if code:
        raise TierCacheError(f"tier {name}: the store at {config.master} cannot be used: {code}")
    return Client(raw, config.replicas)


def _own_address(name: str, master: str) -> str:
    """The address from which this machine reaches the master, for others to reach it."""
    host, _, port = master.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACH_S) as probe:
            address: str = probe.getsockname()[0]
            return address
    except OSError as error:
        raise TierCacheError(f"tier {name}: no master at {master}: {error}") from error


def _insist(call: Callable[[], Sequence[int]]) -> list[int]:
    """What ``call`` says once it has reached the master, or keeps saying."""
    give_up = time.monotonic() + REFUSED_S
    codes = list(call())
    for _ in range(TRIES - 1):
        if time.monotonic() > give_up or any(code != _REFUSED for code in codes):
            break
        codes = list(call())
    return codes


def _address(view: memoryview) -> tuple[int, Any]:
    owner = ctypes.c_char.from_buffer(view)
    return ctypes.addressof(owner), owner


def _places(records: Sequence[Parts]) -> tuple[list[list[int]], list[list[int]], list[Any]]:
    """Addresses and sizes of the parts of each record, and what must outlive their use."""
    addresses, sizes, owners = [], [], []
    for parts in records:
        found = [_address(part) for part in parts]
        addresses.append([address for address, _ in found])
        sizes.append([part.nbytes for part in parts])
        owners += [owner for _, owner in found]
    return addresses, sizes, owners
