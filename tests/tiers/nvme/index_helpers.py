# SPDX-License-Identifier: Apache-2.0
"""What the tests of the index share, also with the processes that they start and kill."""

import random
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tiercache.blocks import Key, key_hash
from tiercache.tiers.nvme.index import Entry, Index, Location

ROOT = Path(__file__).parents[3]
SLOTS = {0: 700, 3: 300}
ALL_SLOTS = [Location(group_id, slot) for group_id, n in SLOTS.items() for slot in range(n)]

Table = dict[Location, Entry]
Found = set[tuple[int, int, bytes, int]]


class Opener(ExitStack):
    """Opens indexes, in ``path`` unless told otherwise, and closes them at its own end."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def __call__(
        self,
        slots: dict[int, int] = SLOTS,
        *,
        path: Path | None = None,
        durable: bool = False,
        map_bytes: int = 1 << 40,
    ) -> Index:
        index = Index(path or self.path, slots, durable=durable, map_bytes=map_bytes)
        self.callback(index.close)
        return index


def occupied(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def entry(stamp: int, name: bytes = b"") -> Entry:
    return Entry(name or b"hash %d" % stamp, stamp * 3, stamp)


def contents(index: Index) -> Found:
    """Everything an index loads: (group, slot, hash, checksum)."""
    found: Found = set()
    for group_id in index._slots:
        entries = zip(*index.load(group_id), strict=True)
        found |= {(group_id, slot, key_hash(Key(key)), sum_) for key, slot, sum_ in entries}
    return found


def expected(table: Table) -> Found:
    return {(*at, one.block_hash, one.checksum) for at, one in table.items()}


def changes(step: int) -> dict[Location, Entry | None]:
    """Step ``step`` of a history that every process knows."""
    rng = random.Random(step)
    chosen = rng.sample(ALL_SLOTS, rng.choice([1, 3, 40]))
    return {
        at: None if rng.random() < 0.2 else entry(step, b"%d %d %d" % (step, *at)) for at in chosen
    }


def after(steps: int) -> Table:
    """What an index holds after the first ``steps`` steps."""
    table: dict[Location, Entry | None] = {}
    for step in range(steps):
        table |= changes(step)
    return {at: one for at, one in table.items() if one is not None}


def write(index: Index, steps: int, first: int = 0) -> None:
    for step in range(first, steps):
        index.update(changes(step))


def command(code: str, *arguments: object) -> list[str]:
    """Command of a process that runs ``code``, with everything here imported."""
    names = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from {__name__} import *"
    return [sys.executable, "-c", f"{names}\n{code}", *map(str, arguments)]


def run(code: str, *arguments: object) -> str:
    done = subprocess.run(command(code, *arguments), capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout
