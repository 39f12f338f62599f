# SPDX-License-Identifier: Apache-2.0
"""A pool to look at: made conversations on a real cache, for ever, as fast as one can watch.

Covers who talks, and how long an imagined engine and an imagined disk take; what is kept, evicted
and restored is decided by the cache that serves. Run with ``python -m tiercache.replay.demo``: the
segment is gone when that ends, by a signal or with the process that started it.
"""

import heapq
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count
from random import Random

from tiercache.blocks import GroupKind, GroupSpec, Key
from tiercache.probe.attach import attach
from tiercache.replay.disk import DiskModel
from tiercache.replay.simulate import STEP_S, Busy, Player, Setup
from tiercache.replay.turns import Turn
from tiercache.replay.workloads import History
from tiercache.tiers.base import Batch, Done, TierStats

#: The published geometry with less room, so that it fills up while one looks on.
BLOCK_TOKENS, STATE_GROUPS = 1_632, 7
BLOCK_BYTES, STATE_BYTES = 7_204_864, 4_415_488
TOKEN_SLOTS, STATE_SLOTS, DISK_TOKEN_SLOTS = 1_200, 18, 3_600
#: What the imagined machine does per second.
COMPUTED_TOKENS, COPIED_BLOCKS = 150_000, 3_000
READ_BYTES, WRITTEN_BYTES = 1.5e9, 3e9
#: Seconds of an answer, and the longest nap between two looks at the time.
ANSWER_S, NAP_S = 0.2, 0.05
#: Tokens that a turn adds, as published.
TURN = 3_800
SEED = 7


class SlowDisk(DiskModel):
    """A disk whose copies take as long as they have bytes; ``clock`` counts seconds."""

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        slots: Mapping[int, int],
        most: int,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(groups, slots, most)
        self.name = "nvme0"
        self._now = clock
        self._busy = {"loaded": 0.0, "stored": 0.0}
        """Until when it reads, and writes."""
        self._running: list[tuple[float, int, Done]] = []
        self._counters: Counter[str] = Counter()

    def store(self, batch: Batch) -> bool:
        before = self._entries()
        stored = super().store(batch)
        if stored:
            self._counters["evicted"] += before + len(batch.keys) - self._entries()
        return stored

    def _entries(self) -> int:
        return sum(len(table.slot_of) for table in self._tables.values())

    def _end(self, batch: Batch, failed: Collection[Key], *, loads: bool) -> None:
        now, what = self._now(), "loaded" if loads else "stored"
        count = len(batch.keys) - len(failed)
        nbytes = count * self.memory.record_bytes[batch.group_id]
        rate = READ_BYTES if loads else WRITTEN_BYTES
        end = max(now, self._busy[what]) + nbytes / rate
        self._busy[what] = end
        self._counters.update({what: count, f"{what}_bytes": nbytes})
        done = Done(batch.job_id, failed, nbytes, end - now)
        heapq.heappush(self._running, (end, batch.job_id, done))

    def poll(self) -> list[Done]:
        now, ended = self._now(), []
        while self._running and self._running[0][0] <= now:
            ended.append(heapq.heappop(self._running)[2])
        return ended

    @property
    def load_rate(self) -> float | None:
        return READ_BYTES if self._counters["loaded"] else None

    def stats(self) -> TierStats:
        stats = super().stats()
        stats.jobs, stats.counters = len(self._running), self._counters
        return stats


class Demo:
    """Conversations that talk for ever. ``clock``: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._random = Random(SEED)  # noqa: S311 - made conversations
        self._names = count(1)
        kinds = [GroupKind.FULL, *[GroupKind.STATE] * STATE_GROUPS]
        groups = [
            GroupSpec(i, kind, BLOCK_TOKENS, STATE_BYTES if i else BLOCK_BYTES)
            for i, kind in enumerate(kinds)
        ]
        slots = {0: TOKEN_SLOTS} | dict.fromkeys(range(1, STATE_GROUPS + 1), STATE_SLOTS)
        self._player = Player(Setup(groups, slots), epoch=clock())
        self.cache = self._player.cache
        self._look_at_the_time()
        disk = SlowDisk(groups, slots, DISK_TOKEN_SLOTS, self._player.clock)
        self.cache.attach([disk], clock=self._player.clock, restore="always")
        self._due: list[tuple[float, int, Iterator[float]]] = []
        self._order = count()
        for talker in (self._idle(), self._returning(), self._chats()):
            self._start(talker)
        for tokens in (100_000, 136_000, 172_000):
            self._start(self._working(tokens))

    def _look_at_the_time(self) -> float:
        now = self._clock()
        self._player.now += now - self._player.clock()
        return now

    def _start(self, talker: Iterator[float]) -> None:
        self._go_on(talker, self._clock())

    def _go_on(self, talker: Iterator[float], due: float) -> None:
        heapq.heappush(self._due, (due, next(self._order), talker))

    def step(self) -> float:
        """Do what is due; returns how many seconds there are until something is."""
        now = self._look_at_the_time()
        self.cache.poll()
        while self._due[0][0] <= now:
            due, _, talker = heapq.heappop(self._due)
            pause = next(talker, None)
            if pause is not None:
                self._go_on(talker, due + pause)
        return self._due[0][0] - now

    # --- who talks: each yields how many seconds pass

    def _idle(self) -> Iterator[float]:
        """Speaks twice, rests until others have taken its place, and comes back."""
        while True:
            history = self._history(301_201)
            yield from self._say(history)
            for rest in (1.0, 28.0, 14.0):
                yield rest
                history.add(TURN)
                yield from self._say(history)

    def _returning(self) -> Iterator[float]:
        """Rests for long enough to lose its place in RAM, and not the one on disk."""
        while True:
            history = self._history(40_000)
            for _ in range(20):
                yield from self._say(history)
                yield 6.5
                history.add(TURN)

    def _working(self, tokens: int) -> Iterator[float]:
        """One turn after the other, as an agent does."""
        while True:
            history = self._history(tokens)
            for _ in range(20):
                yield from self._say(history)
                yield self._random.uniform(0.8, 1.8)
                history.add(TURN)

    def _chats(self) -> Iterator[float]:
        """Somebody new every now and then."""
        while True:
            self._start(self._chat())
            yield self._random.expovariate(1.2)

    def _chat(self) -> Iterator[float]:
        history = self._history(round(self._random.uniform(3_000, 12_000)))
        for _ in range(self._random.choice((1, 1, 2, 3))):
            yield from self._say(history)
            yield self._random.uniform(1.0, 3.0)
            history.add(TURN / 2)

    def _history(self, tokens: int) -> History:
        history = History(f"{SEED} {next(self._names)}", BLOCK_TOKENS)
        history.add(tokens)
        return history

    def _say(self, history: History) -> Iterator[float]:
        """One request."""
        turn = Turn(0.0, history.name, history.prompt(), history.tokens, 0)
        yield from map(_seconds, self._player.playing(turn))
        yield ANSWER_S


def _seconds(busy: Busy) -> float:
    """How long the imagined engine takes."""
    if busy.waits:
        return STEP_S
    return busy.copied / COPIED_BLOCKS + busy.computed / COMPUTED_TOKENS


def main() -> int:
    """Play until a signal comes or the parent is gone; returns the exit status."""
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda signum, _: stopped.append(signum))
    parent = os.getppid()
    demo = Demo(time.time)
    publisher = attach(demo.cache, name="demo", writer="demo")
    if publisher is None:
        print("tiercache demo: no stats segment can be written", file=sys.stderr)  # noqa: T201
        return 1
    try:
        while not stopped and os.getppid() == parent:
            time.sleep(min(max(demo.step(), 0.0), NAP_S))
    finally:
        demo.cache.close()
        publisher.path.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
