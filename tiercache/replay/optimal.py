# SPDX-License-Identifier: Apache-2.0
"""What states are worth keeping if one knows what comes: Belady's rule, to compare policies with.

Covers states only: there is room for all attention blocks, and all state groups hold the same. The
rule evicts the state that is needed last, where needed is what a cache without limits would
restore from. That makes the most of those restores; the tokens that they save are not weighed, so
it is a yardstick for restored tokens, and no strict bound.
"""

import math
import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Container
from dataclasses import replace
from heapq import heappop, heappush

from tiercache.blocks import BlockHash
from tiercache.errors import ConfigError
from tiercache.replay.simulate import Player, Result, Setup, Tally
from tiercache.replay.turns import Stream, Turn
from tiercache.restore import RestorePlan

#: When a state is needed that never is.
NEVER = math.inf


def simulate(
    stream: Stream, setup: Setup, *, progress: Callable[[Turn], object] | None = None
) -> Result:
    """Play all turns of ``stream`` twice: to learn what is needed, then with ``setup``'s slots.

    ``progress`` is called after each turn of the second time.

    Raises:
        ConfigError: the stream has blocks of another size, or the setup has no states, or a disk.
        TraceError: the stream reads a strict trace, and a line of that is malformed.
    """
    if stream.block_tokens != setup.block_tokens:
        raise ConfigError("block_tokens", stream.block_tokens, f"{setup.block_tokens}, as cached")
    if not setup.state_slots or setup.disk_slots:
        raise ConfigError("policy", setup.policy, "another one: it needs state slots and no disk")
    begin = time.perf_counter()
    engine = _Engine(setup)
    states = _States(setup.state_slots, _needs(stream, _Engine(setup)))
    tally, idle = Tally(), None
    for now, turn in enumerate(stream):
        plan = engine.restore(turn, states.held)
        states.use(engine.stored(turn, plan), now)
        _count(tally, turn, plan)
        if stream.idle is not None and turn.conversation == stream.idle:
            idle = plan.restored
        if progress is not None:
            progress(turn)
    live, dead = states.evicted
    return Result(stream, setup, tally, live, dead, 0, idle, time.perf_counter() - begin)


def _needs(stream: Stream, engine: "_Engine") -> list[BlockHash | None]:
    """Which state a cache without limits restores each turn from."""
    held: set[BlockHash] = set()
    needs = []
    for turn in stream:
        plan = engine.restore(turn, held)
        needs.append(engine.state(turn, plan.boundary) if plan.restored else None)
        held.update(engine.stored(turn, plan))
    return needs


def _count(tally: Tally, turn: Turn, plan: RestorePlan) -> None:
    tally.requests += 1
    tally.prompt_tokens += turn.input_tokens
    tally.restored_tokens += plan.restored
    tally.stranded_tokens += plan.lost


class _Engine:
    """Which states a turn can use and leaves, if every attention block ever seen is there."""

    def __init__(self, setup: Setup) -> None:
        self._player = Player(replace(setup, policy="lru"))
        self._per_hash = setup.block_tokens
        self._known: set[BlockHash] = set()

    def state(self, turn: Turn, boundary: int) -> BlockHash:
        return turn.hashes[boundary // self._per_hash - 1]

    def restore(self, turn: Turn, held: Container[BlockHash]) -> RestorePlan:
        """Restore to the deepest of the states that are ``held``; then the blocks are known."""
        hashes = turn.hashes[: (turn.input_tokens - 1) // self._per_hash]
        # Hashes are chained: behind one that is not known there is none that is.
        reach = bisect_left(hashes, 1, key=lambda block_hash: block_hash not in self._known)
        index = next((i for i in range(reach, 0, -1) if hashes[i - 1] in held), 0)
        self._known.update(turn.hashes)
        return RestorePlan(0, index * self._per_hash, reach * self._per_hash, False, None)

    def stored(self, turn: Turn, plan: RestorePlan) -> list[BlockHash]:
        """The state that the turn restored from, and those that it stores."""
        boundaries = self._player.kept(turn, plan)
        if plan.restored and plan.boundary not in boundaries:
            boundaries = [plan.boundary, *boundaries]
        return [self.state(turn, boundary) for boundary in boundaries]


class _States:
    """The states that are held; the one that is needed last goes when there are too many."""

    def __init__(self, slots: int, needs: list[BlockHash | None]) -> None:
        self.held: dict[BlockHash, float] = {}
        """When each is needed next."""
        self.evicted = [0, 0]
        """How many that would have been needed, and how many others."""
        self._slots = slots
        self._needs = needs
        self._when: defaultdict[BlockHash | None, deque[int]] = defaultdict(deque)
        for now, state in enumerate(needs):
            self._when[state].append(now)
        self._last: list[tuple[float, BlockHash]] = []
        """Held ones by when they are needed, the last first, and some that no longer hold."""

    def use(self, states: list[BlockHash], now: int) -> None:
        """Turn ``now`` is over: its states are there, as far as there is room."""
        needed = self._needs[now]
        self._when[needed].popleft()
        # A turn may have got more than without limits, and not have used what it needed.
        for state in {*states, *self.held.keys() & {needed}}:
            self.held[state] = next(iter(self._when.get(state, ())), NEVER)
            heappush(self._last, (-self.held[state], state))
        while len(self.held) > self._slots:
            need, state = heappop(self._last)
            if self.held.get(state) == -need:
                del self.held[state]
                self.evicted[need == -NEVER] += 1
