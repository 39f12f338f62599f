# SPDX-License-Identifier: Apache-2.0
"""A Mooncake store on this machine: its master, and processes that add memory to it."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

LOCAL = "127.0.0.1"
START_S = 30.0
#: Seconds after which the master takes a machine that is gone for gone.
CLIENT_TTL_S = 2

_MACHINE = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
code = store.setup(sys.argv[1], "P2PHANDSHAKE", int(sys.argv[3]), 0, "tcp", "", sys.argv[2])
print("ready" if not code else code, flush=True)
sys.stdin.read()
"""


def program() -> Path | None:
    """The master's program; None where the package is not installed."""
    spec = find_spec("mooncake")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "mooncake_master"


class Master:
    """A master that can be stopped, killed and started again at the same port.

    Raises FileNotFoundError where the package is not installed, TimeoutError if it does not start.
    """

    def __init__(self) -> None:
        found = program()
        if found is None:
            raise FileNotFoundError("mooncake_master: the extra tiercache-kv[mooncake] is missing")
        self._program = found
        self._port, self._metrics = _free_port(), _free_port()
        self.address = f"{LOCAL}:{self._port}"
        self.start()

    def start(self) -> None:
        flags = {
            "rpc_address": LOCAL,
            "rpc_port": self._port,
            "metrics_port": self._metrics,
            "client_ttl": CLIENT_TTL_S,
        }
        command = [str(self._program), *(f"--{name}={value}" for name, value in flags.items())]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _until(self._answers)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((LOCAL, self._port)) == 0

    def stop(self) -> None:
        """Have it hang, until ``go_on``."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def master() -> Iterator[Master]:
    """A master that is killed at the end."""
    running = Master()
    try:
        yield running
    finally:
        running.kill()


@contextmanager
def machine(running: Master, nbytes: int = 64 << 20) -> Iterator[None]:
    """A process that adds ``nbytes`` to the store; killed at the end."""
    command = [sys.executable, "-c", _MACHINE, LOCAL, running.address, str(nbytes)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if (said := process.stdout.readline()) != "ready\n":
            raise RuntimeError(f"no memory was added to the store: {said!r}")
        yield
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        port: int = probe.getsockname()[1]
        return port


def _until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"the store's master does not answer after {START_S:.0f} s")
        time.sleep(0.01)
