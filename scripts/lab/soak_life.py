# SPDX-License-Identifier: Apache-2.0
"""One process of a soak: it opens the tier, looks at what the one before left, and plays.

Covers the process as a whole, and what it says: a JSON object a line, so that whoever kills it
knows all but the last moment. Started by ``soak_lives``.
"""

import gc
import json
import logging
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from lab.program import say
from lab.soak_bytes import Bytes, arena
from lab.soak_engine import PATIENCE_S, Engine
from lab.soak_faults import Faults
from lab.soak_figures import sample
from lab.soak_journal import Journal, Past, patched, watched
from tiercache import events
from tiercache.blocks import GroupKind, GroupSpec, Key, by_group
from tiercache.cache import TieredCache
from tiercache.policies import POLICIES
from tiercache.probe.attach import attach as publish
from tiercache.probe.sequences import LIMIT, Sequences
from tiercache.tierconfig import DISK_POLICIES, NvmeConfig, Spill
from tiercache.tiers.base import Batch, SlotMemory
from tiercache.tiers.nvme.index import index_bytes
from tiercache.tiers.nvme.space import SlotTable, slack_bytes
from tiercache.tiers.nvme.tier import NvmeTier

BLOCK: Final = 16
_FULL = GroupSpec(0, GroupKind.FULL, BLOCK, 4096)
#: Groups and their slots in memory: fewer than the conversations have blocks.
LAYOUTS: Final[Mapping[str, Mapping[GroupSpec, int]]] = {
    "hybrid": {
        _FULL: 4096,
        GroupSpec(1, GroupKind.STATE, BLOCK, 8192): 384,
        GroupSpec(2, GroupKind.STATE, BLOCK, 8192): 384,
    },
    "windowed": {_FULL: 4096, GroupSpec(1, GroupKind.WINDOW, BLOCK, 4096, window_chunks=8): 1536},
}
#: The disk has so many times the slots of the memory, in files of so many bytes.
DISK_TIMES, SEGMENT_BYTES = 4, 8 << 20
#: Blocks between two looks at all invariants, seconds between two messages.
CHECK_BLOCKS, TELL_S = 20_000, 0.5
SETTLE_S: Final = 90.0
SPILLS: Final[tuple[Spill, ...]] = ("on_store", "on_evict")
#: Evictions that the cache remembers, and hashes of prompts that the segment's writer does: few, so
#: that these memories, which have a limit, are soon full.
REMEMBERED: Final = 4096
FOLLOWED: Final = 16_384
#: How many processes have what they store flushed.
POWER: Final = 0.125
#: What a namespace may hold besides segments: nothing unfinished.
NAMES: Final = {"meta.json", "lock", "index", "data.mdb", "lock.mdb", "cleared", "g0", "g1", "g2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a process is to do."""

    seed: int
    """Of the whole soak: it decides what conversations are."""
    number: int
    """Of this process: with the seed, it decides what happens."""
    layout: str
    kinds: list[str]
    """Of faults."""
    path: str
    """Where the tier lies."""
    journal: str
    shared: str
    """Where the stats segment lies."""
    blocks: int
    seconds: float
    spill: Spill | None = None
    """When blocks go to the disk; None: it is drawn."""
    ballast: str | None = None
    """A file that takes what is left on a small file system, mounted for it alone."""
    min_free: int = 0

    def text(self) -> str:
        return json.dumps(asdict(self))


def capacity(layout: str) -> int:
    """Bytes of the tier's quota."""
    slots = {group.group_id: n * DISK_TIMES for group, n in LAYOUTS[layout].items()}
    records = sum(group.slot_bytes * slots[group.group_id] for group in LAYOUTS[layout])
    return records + index_bytes(slots) + slack_bytes(slots)


class Life:
    """A process that carries out orders."""

    def __init__(self, orders: Orders, dice: random.Random) -> None:
        self._orders, self._dice = orders, dice
        self._errors = _Errors()
        logging.getLogger("tiercache").addHandler(self._errors)
        self._groups = list(LAYOUTS[orders.layout])
        self._slots = {group.group_id: n for group, n in LAYOUTS[orders.layout].items()}

    def live(self) -> None:
        orders = self._orders
        tell("opening")
        ballast = Path(orders.ballast) if orders.ballast else None
        faults = Faults(orders.kinds, self._dice, ballast)
        faults.calm()  # what a killed process left
        with ExitStack() as stack:
            journal = stack.enter_context(closing(Journal(Path(orders.journal))))
            tables = stack.enter_context(watched(journal))
            stack.enter_context(faults.installed())
            stack.enter_context(_forgetful())
            memory, found = stack.enter_context(arena(self._groups, self._slots))
            cache = stack.enter_context(self._opened(memory, found, journal))
            engine = Engine(cache, found, journal, orders.seed, self._dice)
            gc.collect()
            gc.freeze()  # as vLLM does: else a collection takes a fifth of a second
            try:
                self._play(engine, faults, tables)
                faults.calm()
                engine.settle(SETTLE_S)
            finally:
                self._tell(engine, faults)
        tell("end", problems=self._errors.found)

    @contextmanager
    def _opened(self, memory: SlotMemory, found: Bytes, journal: Journal) -> Iterator[TieredCache]:
        orders, config = self._orders, self._config()
        policy = self._dice.choice(sorted(POLICIES))
        say(f"process {orders.number}: {policy}, {config}")
        fingerprint = {"soak": orders.seed, "layout": orders.layout}
        tier = NvmeTier(
            *("nvme0", memory, self._groups, self._slots),
            config=config,
            fingerprint=fingerprint,
            segment_bytes=SEGMENT_BYTES,
        )
        cache = TieredCache(self._groups, self._slots, tokens_per_hash=BLOCK, policy=policy)
        try:
            left = left_behind(config.path)
            look = Look(tier, found, self._slots, journal.past)
            look.at_everything()
            tell("looked", left=left, **look.counts)
            cache.attach([tier], patience_s=PATIENCE_S, restore="always")
            publish(cache, name="soak", directory=Path(orders.shared))
            tell("ready", shared=sorted(file.name for file in Path(orders.shared).iterdir()))
            yield cache
        finally:
            cache.close()
            tier.close()

    def _config(self) -> NvmeConfig:
        """Settings of the tier, of which some are drawn."""
        orders, dice = self._orders, self._dice
        return NvmeConfig(
            path=Path(orders.path),
            capacity=capacity(orders.layout),
            min_free=orders.min_free,
            policy=dice.choice(DISK_POLICIES),
            spill=dice.choice(SPILLS) if orders.spill is None else orders.spill,
            durability="power" if dice.random() < POWER else "crash",
        )

    def _play(self, engine: Engine, faults: Faults, tables: Sequence[SlotTable]) -> None:
        begun = time.monotonic()
        told, checked = begun, 0
        counts = engine.report.counts
        while (now := time.monotonic()) < begun + self._orders.seconds:
            if counts["stored"] >= self._orders.blocks or counts["problems"]:
                break
            engine.step()
            faults.tick()
            if counts["stored"] >= checked + CHECK_BLOCKS:
                checked = counts["stored"]
                engine.check()
                for table in tables:
                    table.validate()
                counts["checks"] += 1
            if now >= told + TELL_S:
                told = now
                self._tell(engine, faults, sampled=True)

    def _tell(self, engine: Engine, faults: Faults, *, sampled: bool = False) -> None:
        counts, shared = engine.report.counts, Path(self._orders.shared)
        look = {"stored": counts["stored"], **sample(shared)} if sampled else {}
        tell(
            "played",
            counts=counts,
            problems=[*engine.report.problems, *self._errors.found],
            injected=faults.injected,
            calls=engine.watch.document(),
            sample=look,
        )


@contextmanager
def _forgetful() -> Iterator[None]:
    """With memories that are soon full, so that what grows after that grows for good."""
    short = {"limit": LIMIT, "max_hashes": FOLLOWED}
    with (
        patched(events, {"REMEMBERED_EVICTIONS": REMEMBERED}),
        patched(Sequences.__init__, {"__kwdefaults__": short}),
    ):
        yield


class _Errors(logging.Handler):
    """Errors in the log: whatever they are, they are none of the disk's."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.found) < 20:
            self.found.append(f"logged: {record.getMessage()}")


class Look:
    """Reads all that was acknowledged and not evicted, before anybody else has a slot."""

    def __init__(self, tier: NvmeTier, found: Bytes, slots: Mapping[int, int], past: Past) -> None:
        self._tier, self._bytes, self._slots, self._past = tier, found, slots, past
        self._jobs = 0
        self.counts = {"checked": len(past.kept), "missing": 0, "unreadable": 0, "wrong": 0}

    def at_everything(self) -> None:
        for group_id, keys in by_group(self._past.kept).items():
            here = [key for key in keys if self._tier.has(key)]
            self.counts["missing"] += len(keys) - len(here)
            for start in range(0, len(here), self._slots[group_id]):
                self._at(group_id, here[start : start + self._slots[group_id]])
        self._past.kept.clear()

    def _at(self, group_id: int, keys: list[Key]) -> None:
        slots = list(range(len(keys)))
        self._bytes.scribble(group_id, slots)
        self._jobs -= 1
        self._tier.load(Batch(self._jobs, group_id, keys, slots))
        while not (done := self._tier.poll()):
            time.sleep(0.0005)
        failed = set(done[0].failed)
        good = [slot for slot in slots if keys[slot] not in failed]
        right = [keys[slot] for slot in good]
        self.counts["unreadable"] += len(failed)
        self.counts["wrong"] += len(self._bytes.wrong(group_id, right, good, self._past.epochs))


def left_behind(path: Path) -> list[str]:
    """What lies in a tier's folder that has just been opened, and should not."""
    return sorted({file.name for file in path.glob("*/**/*") if file.suffix != ".seg"} - NAMES)


def tell(what: str, **more: Any) -> None:
    sys.stdout.write(json.dumps({"event": what, **more}) + "\n")
    sys.stdout.flush()


def run(text: str, said: str, log: str) -> None:
    """Carry out orders in this process; it says so in the file ``said``."""
    for path, stream in ((said, sys.stdout), (log, sys.stderr)):
        with Path(path).open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    orders = Orders(**json.loads(text))
    Life(orders, random.Random(f"{orders.seed}/{orders.number}")).live()
