# SPDX-License-Identifier: Apache-2.0
"""An engine that is none: it plays random conversations on a cache, and looks at every byte.

Covers the requests that run, their copies in flight, and what goes wrong with them: aborts in
every phase, preemptions, copies that fail, resets. What a conversation is stands in
``soak_talks``; who starts and ends all this, in ``soak_life``.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from lab.soak_bytes import Bytes
from lab.soak_figures import Stopwatch
from lab.soak_journal import Journal
from lab.soak_talks import LONGEST, Talks
from tiercache.blocks import BlockHash, GroupKind, Key, by_group, make_key
from tiercache.cache import TieredCache
from tiercache.requests import Request

#: Tokens of a block.
BLOCK: Final = 16
#: Requests at a time, at most.
CONCURRENT: Final = 10
#: Conversations that go on; half of the turns are about the youngest.
ALIVE, RECENT = 120, 12
#: Steps of the engine that a copy takes at most.
COPY_STEPS: Final = 4
#: How often in a step a request is aborted or preempted, the cache reset, a copy fails.
ABORT, PREEMPT, RESET, FAIL = 0.003, 0.003, 0.0002, 0.02
#: Steps in which a request asks for slots before it goes on without.
TRIES: Final = 20
#: Seconds that a request waits for tiers, and how long none may ever wait.
PATIENCE_S, STUCK_S = 2.0, 60.0

Answer = TypeVar("Answer")


@dataclass(eq=False, slots=True)
class Copy:
    """Blocks on their way between the engine and slots; ``keys`` and ``slots`` by group."""

    request: Request
    keys: Mapping[int, Sequence[Key]]
    slots: Mapping[int, Sequence[int]]
    due: int
    """The step in which it ends."""
    late: bool = False
    """Whether a store writes its bytes at the end only."""


@dataclass(eq=False, slots=True)
class Turn:
    """A request that runs. Lengths in blocks."""

    request: Request
    chain: Sequence[BlockHash]
    hashes: list[BlockHash]
    prompt: int
    target: int
    device: int
    """What the device still has of the prompt."""
    asked: float
    runs: bool = False
    load: Copy | None = None
    computed: int = 0
    offered: int = 0
    window: int = 0
    """Where the device's sliding window begins."""
    tries: int = 0


@dataclass(slots=True)
class Report:
    """What came of it."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Engine:
    """Plays on ``cache``. Locking: none, one thread plays. Raises whatever the cache raises."""

    def __init__(
        self, cache: TieredCache, found: Bytes, journal: Journal, seed: int, dice: random.Random
    ) -> None:
        self.report = Report()
        self.watch = Stopwatch()
        self._cache, self._bytes, self._journal, self._dice = cache, found, journal, dice
        self._talks = Talks(seed)
        self._epochs = journal.past.epochs
        self._lengths: dict[int, int] = {}
        for number in range(max(0, journal.past.born - ALIVE), journal.past.born):
            self._lengths[number] = dice.randint(1, LONGEST - 1)
        self._born = journal.past.born
        self._turns: list[Turn] = []
        self._stores: list[Copy] = []
        self._loads: list[Copy] = []
        self._now = 0

    def step(self) -> None:
        """One step of the engine."""
        self._now += 1
        self._timed("poll", self._cache.poll)
        moved = self._end_copies()
        for turn in list(self._turns):
            moved |= self._advance(turn)
        self._disturb()
        if len(self._turns) < self._dice.randint(1, CONCURRENT):
            self._begin()
        if not moved:
            time.sleep(0.0005)  # all wait for the disk, which needs the interpreter

    def check(self) -> None:
        """Look at all invariants and at all bytes in memory. Raises InvariantError."""
        self._cache.validate()
        for group_id, pool in self._cache.primary.pools.items():
            if pool.ready:
                keys, slots = list(pool.ready), list(pool.ready.values())
                self._compare("in memory", {group_id: keys}, {group_id: slots})

    def settle(self, seconds: float) -> None:
        """End all requests and copies, and wait until nothing is left to do."""
        for turn in list(self._turns):
            self._end(turn)
        end = time.monotonic() + seconds
        while (self._stores or self._loads or self._busy()) and time.monotonic() < end:
            self._now += 1
            self._timed("poll", self._cache.poll)
            self._end_copies()
            time.sleep(0.001)
        self.check()
        if self._busy():
            self._problem(f"not idle {seconds:.0f} s after the last request")
        for group_id, counts in self._cache.counts().items():
            if counts.storing or counts.pinned:
                self._problem(f"idle, group {group_id} has {counts}")

    def _busy(self) -> bool:
        tiering = self._cache.tiering
        jobs = tiering is not None and any(tier.stats().jobs for tier in tiering.tiers)
        return jobs or self._cache.pending

    def _timed(self, name: str, call: Callable[[], Answer]) -> Answer:
        start, cpu = time.perf_counter(), time.thread_time()
        answer = call()
        self.watch.add(name, time.perf_counter() - start, time.thread_time() - cpu)
        return answer

    def _problem(self, text: str) -> None:
        self.report.counts["problems"] += 1
        if len(self.report.problems) < 20:
            self.report.problems.append(text)

    # --- turns

    def _begin(self) -> None:
        number = self._choose()
        chain = self._talks.hashes(number)
        before = self._lengths[number]
        if self._dice.random() < 0.05 or before == LONGEST:
            before = self._dice.randint(before // 2, before)  # the user went back
        prompt = before + self._dice.randint(1, 80)
        target = min(prompt + self._dice.randint(0, 8), LONGEST)
        prompt = min(prompt, LONGEST)
        self._lengths[number] = target
        hashes = list(chain[:prompt])
        request = self._timed("open", lambda: self._cache.open(f"talk-{number}", hashes))
        device = self._dice.randint(0, prompt - 1) if self._dice.random() < 0.2 else 0
        now = time.monotonic()
        self._turns.append(Turn(request, chain, hashes, prompt, target, device, now))
        self.report.counts["requests"] += 1

    def _choose(self) -> int:
        """A young conversation, an idle one, or a new one."""
        known = list(self._lengths)
        if len(known) < RECENT or self._dice.random() < 0.2:
            number, self._born = self._born, self._born + 1
            self._journal.begin_talk(number)
            self._lengths[number] = 0
            self._lengths.pop(number - ALIVE, None)
            return number
        return self._dice.choice(known[-RECENT:] if self._dice.random() < 0.5 else known)

    def _advance(self, turn: Turn) -> bool:
        """Whether something came of it."""
        if turn.load is not None:
            return False
        if turn.runs:
            self._run(turn)
            return True
        return self._restore(turn)

    def _restore(self, turn: Turn) -> bool:
        start, limit = turn.device * BLOCK, turn.prompt * BLOCK - 1
        request = turn.request
        plan = self._timed(
            "restore", lambda: self._cache.restore(request, start=start, limit=limit)
        )
        if plan is None or plan.pending:
            if time.monotonic() > turn.asked + STUCK_S:
                self._problem(f"{request.request_id} waits for more than {STUCK_S:.0f} s: {plan}")
                self._end(turn)
            return False
        turn.runs, turn.offered, turn.computed = True, 0, plan.boundary // BLOCK
        turn.window = max(0, turn.computed - self._window)
        if plan.restored:
            self._load(turn, self._cache.primary.needed(request, plan))
        self.report.counts["restores"] += bool(plan.restored)
        return True

    @property
    def _window(self) -> int:
        return max(group.window_chunks or 0 for group in self._cache.groups.values())

    def _load(self, turn: Turn, keys: list[Key]) -> None:
        slots = self._timed("load", lambda: self._cache.load(turn.request, keys))
        grouped = by_group(keys)
        where = _by_group(slots, grouped)
        turn.load = Copy(turn.request, grouped, where, self._due())
        self._loads.append(turn.load)
        disk = sum(key in turn.request.promoted for key in keys)
        self.report.counts.update({"disk": disk, "ram": len(keys) - disk, "restored": len(keys)})
        self._compare("at a restore", grouped, where)

    def _due(self) -> int:
        return self._now + self._dice.randint(0, COPY_STEPS)

    def _run(self, turn: Turn) -> None:
        most = 64 if turn.computed < turn.prompt else 8
        end = turn.computed + self._dice.randint(1, most)
        end = min(end, turn.prompt if turn.computed < turn.prompt else turn.target)
        turn.hashes.extend(turn.chain[len(turn.hashes) : end])
        if self._store(turn, self._wanted(turn, end)) or turn.tries >= TRIES:
            turn.tries, turn.computed, turn.offered = 0, end, end
            if end >= turn.target:
                self._end(turn)
        else:
            turn.tries += 1

    def _wanted(self, turn: Turn, end: int) -> list[Key]:
        """What the device has since the last step: all blocks, the window's, and the states."""
        wanted: list[Key] = []
        for group_id, group in self._cache.groups.items():
            first = turn.offered
            if group.kind is GroupKind.WINDOW:
                first = max(first, turn.window)
            elif group.kind is GroupKind.STATE:
                first = end - 1
            wanted += (make_key(name, group_id) for name in turn.hashes[first:end])
        return wanted

    def _store(self, turn: Turn, keys: list[Key]) -> bool:
        request = turn.request
        reservation = self._timed("reserve", lambda: self._cache.reserve(request, keys))
        if reservation is None:
            self.report.counts["refused"] += 1
            return False
        if reservation.keys:
            grouped = by_group(reservation.keys)
            where = _by_group(reservation.slots, grouped)
            store = Copy(request, grouped, where, self._due(), late=self._dice.random() < 0.5)
            self._stores.append(store)
            if not store.late:
                self._write(store)
        return True

    def _end(self, turn: Turn) -> None:
        self._turns.remove(turn)
        self._timed("finish", lambda: self._cache.finish(turn.request))

    # --- copies

    def _write(self, store: Copy) -> None:
        for group_id, keys in store.keys.items():
            self._bytes.write(group_id, keys, store.slots[group_id], self._epochs[-1])

    def _compare(
        self, where: str, keys: Mapping[int, Sequence[Key]], slots: Mapping[int, Sequence[int]]
    ) -> None:
        for group_id, some in keys.items():
            wrong = self._bytes.wrong(group_id, some, slots[group_id], self._epochs)
            self.report.counts.update({"verified": len(some), "wrong": len(wrong)})
            if wrong:
                self._problem(f"{where}: {len(wrong)} wrong blocks of group {group_id}")

    def _end_copies(self) -> bool:
        before = len(self._stores) + len(self._loads)
        self._stores = [store for store in self._stores if not self._end_store(store)]
        self._loads = [load for load in self._loads if not self._end_load(load)]
        return len(self._stores) + len(self._loads) < before

    def _end_store(self, store: Copy) -> bool:
        if store.due > self._now:
            return False
        if store.late:
            self._write(store)
        else:
            self._compare("before a commit", store.keys, store.slots)
        keys = [key for some in store.keys.values() for key in some]
        failed: list[Key] = []
        if self._dice.random() < FAIL:
            failed = keys[: self._dice.randint(1, len(keys))]
            self._timed("fail", lambda: self._cache.fail(set(failed)))
        good = keys[len(failed) :]
        self._timed("commit", lambda: self._cache.commit(set(good)))
        self.report.counts.update({"stored": len(good), "failed": len(failed)})
        return True

    def _end_load(self, load: Copy) -> bool:
        if load.due > self._now:
            return False
        self._compare("at the end of a restore", load.keys, load.slots)
        keys = {key for some in load.keys.values() for key in some}
        self._timed("release", partial(self._cache.release, keys, load.request))
        for turn in self._turns:
            if turn.load is load:
                turn.load = None
        return True

    # --- what goes wrong

    def _disturb(self) -> None:
        for turn in list(self._turns):
            if self._dice.random() < ABORT:
                phase = "loading" if turn.load else "running" if turn.runs else "waiting"
                self.report.counts.update({"aborts": 1, f"aborts_{phase}": 1})
                self._end(turn)
            elif turn.runs and turn.load is None and self._dice.random() < PREEMPT:
                self.report.counts["preemptions"] += 1
                self._preempt(turn)
        if self._dice.random() < RESET:
            self._reset()

    def _preempt(self, turn: Turn) -> None:
        turn.runs, turn.load, turn.device, turn.asked = False, None, 0, time.monotonic()
        turn.prompt = max(turn.prompt, turn.computed)

    def _reset(self) -> None:
        """The engine has ended its copies, and does not report them any more."""
        epoch = self._epochs[-1] + 1
        self._journal.begin_reset(self._epochs[0], epoch)
        self._timed("reset", self._cache.reset)
        self._epochs = range(epoch, epoch + 1)
        self._stores, self._loads = [], []
        for turn in self._turns:
            self._preempt(turn)
        self.report.counts["resets"] += 1


def _by_group(slots: Sequence[int], keys: Mapping[int, Sequence[Key]]) -> dict[int, list[int]]:
    """Slots of keys that are sorted by group."""
    found, start = {}, 0
    for group_id, some in keys.items():
        found[group_id] = list(slots[start : start + len(some)])
        start += len(some)
    return found
