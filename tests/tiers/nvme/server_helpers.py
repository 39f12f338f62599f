# SPDX-License-Identifier: Apache-2.0
"""A process that serves from a pool while a test looks at it from outside.

LMDB does not open one index twice in a process, as its locks belong to the process.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.tiers.nvme.tier_helpers import Rig, keys

ROOT = Path(__file__).parents[3]
#: What ``pool`` stores: keys of group 0 and of group 1.
STORED = [*keys(range(24)), *keys(range(6), 1)]


class Server:
    """A process with an open tier that does what it is told, one line each."""

    def __init__(self, path: Path) -> None:
        code = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
            f"from tests.tiers.nvme.server_helpers import serve; serve(sys.argv[1])"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer("open")

    @property
    def pid(self) -> int:
        return self.process.pid

    def store(self, first: int, count: int) -> None:
        """Store keys of group 0, named after numbers."""
        self._say(f"store {first} {count}")
        self._answer("stored")

    def churn(self) -> None:
        """Store one key after another until killed."""
        self._say("churn")
        self._answer("churning")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        if kind is not None:
            self.process.kill()
        self.process.wait(30)
        self.process.stdout.close()

    def _say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def _answer(self, expected: str) -> None:
        assert self.process.stdout
        assert self.process.stdout.readline() == expected + "\n"


def serve(path: str) -> None:
    """What the process of a ``Server`` does."""
    with Rig(Path(path)) as rig:
        tier = rig.open()
        say("open")
        for line in sys.stdin:
            what, *numbers = line.split()
            if what == "store":
                first, count = map(int, numbers)
                rig.stored(tier, keys(range(first, first + count)))
                say("stored")
            else:
                say("churning")
                number = 1_000_000
                while True:
                    number += 8
                    rig.stored(tier, keys(range(number, number + 8)))


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def fill(path: Path) -> Path:
    """Make a pool with ``STORED`` by the real tier, closed; returns its namespace."""
    with Rig(path) as rig:
        tier = rig.open()
        rig.stored(tier, STORED[:24])
        rig.stored(tier, STORED[24:], at_once=2)
        namespace: Path = tier._disk.namespace.directory
        tier.close()
    return namespace


@contextmanager
def reopened(path: Path) -> Iterator[list[bytes]]:
    """What the real tier serves of ``path``; asserts that every byte is right."""
    with Rig(path) as rig:
        tier = rig.open()
        found = [key for group in tier._groups.values() for key in group.table.slot_of]
        by_group = [[k for k in found if k[-1] == g] for g in (0, 1)]
        yield [key for run in by_group if run for key in rig.loaded(tier, run)]
        tier.close()
