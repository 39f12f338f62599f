# SPDX-License-Identifier: Apache-2.0
"""What the tests of shared memory share: real processes that own and visit it, who holds what."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tiercache.sharing import ArenaTicket

MIB = 1 << 20
SHAPES = {0: (3, MIB), 7: (5, 4096)}

#: Answers each line that it is sent with what it evaluates to.
ANSWER = """
for line in sys.stdin:
    print(repr(eval(line)), flush=True)
"""
#: A process with memory under a ticket, laid out as an arena's, but without torch and its seconds.
OWNER = (
    """
import os, pickle, sys
from contextlib import ExitStack
from tiercache.sharing import ALIGNMENT, Memfd, Memory, Region, published, unique_name

name, shared = unique_name(), sys.argv[1] == "True"
release = ExitStack()
memfd = Memfd(name, 3 * ALIGNMENT) if shared else None
memory = Memory(3 * ALIGNMENT, memfd and memfd.descriptor)
regions = {0: Region(0, 3, 1 << 20), 7: Region(2 * ALIGNMENT, 5, 4096)}
ticket = release.enter_context(published(name, memory, memfd, regions))
memory.collapse()
memory.populate()
if shared:
    release.callback(memfd.close)
slots = {number: memory.view(place.offset, place.nbytes) for number, place in regions.items()}

def fill(group, byte):
    slots[group][:] = bytes([byte]) * len(slots[group])

print(pickle.dumps(ticket).hex(), flush=True)
"""
    + ANSWER
)
#: A process with a real arena.
ARENA = (
    """
import sys
from tiercache import arena as arena_module
from tiercache.arena import HostArena

arena_module.reserved_bytes = lambda: 0
arena = HostArena(*eval(sys.argv[1]), shared=True)
print("made", flush=True)
"""
    + ANSWER
)
#: A process that attaches to one: it never imports torch.
VISITOR = (
    """
import pickle, sys
from tiercache.sharing import attach

attached = attach(pickle.loads(bytes.fromhex(sys.argv[1])))
assert "torch" not in sys.modules
print("attached", flush=True)
"""
    + ANSWER
)


class Process:
    """Python code in a process of its own, which answers expressions with their values."""

    def __init__(self, code: str, argument: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.greeting = self._answer()

    def ask(self, expression: str) -> Any:
        assert self._process.stdin
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()
        return eval(self._answer())

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def end(self) -> int:
        """The exit status once it has run to its end, finalisers and all."""
        self._process.communicate()
        return self._process.returncode

    def _answer(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()


@contextmanager
def owner(*, shared: bool = True) -> Iterator[tuple[Process, ArenaTicket]]:
    process = Process(OWNER, str(shared))
    try:
        yield process, pickle.loads(bytes.fromhex(process.greeting))
    finally:
        process.kill()


@contextmanager
def visitor(ticket: ArenaTicket) -> Iterator[Process]:
    process = Process(VISITOR, pickle.dumps(ticket).hex())
    try:
        assert process.greeting == "attached"
        yield process
    finally:
        process.kill()


def holders(name: str) -> set[str]:
    """Every process that has the memfd ``name`` open or mapped."""
    found = set()
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if name in (directory / "maps").read_text():
                found.add(f"{directory.name} maps it")
        for descriptor in directory.glob("fd/*"):
            with suppress(OSError):
                if name in str(descriptor.readlink()):
                    found.add(f"{directory.name} has it open")
    return found


def mapped(text: str) -> int:
    return Path("/proc/self/maps").read_text().count(text)
