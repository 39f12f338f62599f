# SPDX-License-Identifier: Apache-2.0
"""Machines that share a tier, and who gets which request, for scripts/fleet.

Covers one player of the replay per machine, each with memory and a disk of its own and a store
below that all of them write and read; and the router before them. What is kept, evicted and
restored is decided by the classes that serve. Not how long anything takes.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from tiercache.blocks import BlockHash, GroupKind, Key, key_group
from tiercache.observer import Observer
from tiercache.replay.disk import DiskModel
from tiercache.replay.simulate import Player, Setup
from tiercache.replay.turns import Stream, Turn
from tiercache.requests import Request
from tiercache.tiers.base import Batch, Done, SecondaryTier

RAM, DISK, SHARED = "ram", "disk", "shared"
TIERS = (RAM, DISK, SHARED)
#: Blocks that two requests have in common without being one conversation, where the trace does
#: not say whose they are: all requests begin with the same instructions.
HEAD_BLOCKS = 1


@dataclass(frozen=True, slots=True)
class Fleet:
    """Machines that are alike, and what lies between them.

    Args:
        machine: the memory of each, and the disk (``disk_slots``).
        machines: how many.
        routing: name of one of `ROUTERS`.
        shared_slots: slots of the shared tier, of the group that has most; 0 for none.
        leaves: second of the trace at which the first machine leaves with what it has; the shared
            tier keeps everything.
    """

    machine: Setup
    machines: int
    routing: str
    shared_slots: int = 0
    leaves: float | None = None


@dataclass(slots=True)
class Counts:
    """What was counted over all machines."""

    requests: int = 0
    prompt_tokens: int = 0
    restored: Counter[str] = field(default_factory=Counter)
    """Tokens by the tier that their attention block came from."""
    moved_requests: int = 0
    """Requests that came to another machine than the one before in their conversation."""
    moved_tokens: int = 0
    moved_restored: int = 0
    read: Counter[GroupKind] = field(default_factory=Counter)
    """Records that came from the shared tier."""
    written: Counter[GroupKind] = field(default_factory=Counter)
    """Records that went to it."""
    computed: list[int] = field(default_factory=list)
    """Tokens by machine."""

    @property
    def restored_tokens(self) -> int:
        return self.restored.total()

    @property
    def busiest(self) -> float:
        """What the machine that computes most computes, over the mean."""
        return max(self.computed) * len(self.computed) / max(sum(self.computed), 1)


class Ear(Observer):
    """Hears on one machine from where blocks come, and what crosses the network."""

    def __init__(self, setup: Setup, counts: Counts) -> None:
        self._kinds = {group.group_id: group.kind for group in setup.groups}
        fulls = [group for group in setup.groups if group.kind is GroupKind.FULL]
        self._group, self._tokens = fulls[0].group_id, fulls[0].tokens_per_chunk
        self._counts = counts

    def loading(self, request: Request, keys: Collection[Key]) -> None:
        for key in keys:
            if key_group(key) == self._group:
                self._counts.restored[request.promoted.get(key, RAM)] += self._tokens

    def job(self, tier: SecondaryTier, batch: Batch, done: Done, *, loads: bool) -> None:
        if tier.name == SHARED:
            crossed = self._counts.read if loads else self._counts.written
            crossed[self._kinds[batch.group_id]] += len(batch.keys) - len(done.failed)


class Names:
    """Which conversation a request belongs to, where the trace does not say.

    The one that was seen with its deepest block, if they share more than ``HEAD_BLOCKS``.
    """

    def __init__(self) -> None:
        self._seen: dict[BlockHash, str] = {}
        self._count = 0

    def of(self, turn: Turn) -> str:
        if turn.conversation:
            return turn.conversation
        hashes = turn.hashes[HEAD_BLOCKS:]
        name = next((self._seen[h] for h in reversed(hashes) if h in self._seen), None)
        if name is None:
            self._count += 1
            name = f"found {self._count}"
        self._seen.update(dict.fromkeys(hashes, name))
        return name


class Router(ABC):
    """Chooses who gets a request."""

    @abstractmethod
    def choose(self, last: int | None, loads: Mapping[int, int]) -> int:
        """A machine of ``loads``, which has the tokens that each got so far.

        ``last`` is where the conversation was before, None if it is new or that machine is gone.
        """


def least(loads: Mapping[int, int]) -> int:
    return min(loads, key=loads.__getitem__)


class Sticky(Router):
    """Where the conversation was; new ones, and those of a machine that left, to the least busy."""

    def choose(self, last: int | None, loads: Mapping[int, int]) -> int:
        return least(loads) if last is None else last


class Balanced(Router):
    """The machine that got fewest tokens, whoever asks."""

    def choose(self, last: int | None, loads: Mapping[int, int]) -> int:
        return least(loads)


class Anywhere(Router):
    """Any machine."""

    def __init__(self) -> None:
        self._random = Random(0)

    def choose(self, last: int | None, loads: Mapping[int, int]) -> int:
        return self._random.choice(list(loads))


ROUTERS: dict[str, type[Router]] = {"sticky": Sticky, "balanced": Balanced, "random": Anywhere}


class Machines:
    """The machines of a fleet while they play."""

    def __init__(self, fleet: Fleet) -> None:
        self.counts = Counts()
        self._fleet = fleet
        self._shared = self._store(fleet.shared_slots, SHARED)
        self._players = [self._player() for _ in range(fleet.machines)]
        self._loads = dict.fromkeys(range(fleet.machines), 0)
        self._router = ROUTERS[fleet.routing]()
        self._names = Names()
        self._last: dict[str, int] = {}
        """Where each conversation was last."""

    def _store(self, slots: int, name: str) -> DiskModel | None:
        if not slots:
            return None
        setup = self._fleet.machine
        store = DiskModel(setup.groups, setup.slots, slots)
        store.name = name
        return store

    def _player(self) -> Player:
        setup = self._fleet.machine
        player = Player(replace(setup, disk_slots=0))
        # All use the same object: one request is played at a time, and its jobs end with it.
        tiers = [store for store in (self._store(setup.disk_slots, DISK), self._shared) if store]
        player.cache.attach(tiers, clock=player.clock, restore="always")
        player.cache.observe(Ear(setup, self.counts))
        return player

    def play(self, turn: Turn) -> None:
        """Give one request to a machine, which plays it to its end."""
        leaves = self._fleet.leaves
        if leaves is not None and turn.time >= leaves and len(self._loads) > 1:
            self._loads.pop(0, None)
        name = self._names.of(turn)
        last = self._last.get(name)
        machine = self._router.choose(last if last in self._loads else None, self._loads)
        self._last[name] = machine
        self._loads[machine] += turn.input_tokens
        restored = self._players[machine].play(turn)
        if last is not None and last != machine:
            self.counts.moved_requests += 1
            self.counts.moved_tokens += turn.input_tokens
            self.counts.moved_restored += restored

    def end(self) -> Counts:
        """Close all caches; returns the counts."""
        tallies = [player.tally for player in self._players]
        self.counts.requests = sum(tally.requests for tally in tallies)
        self.counts.prompt_tokens = sum(tally.prompt_tokens for tally in tallies)
        self.counts.computed = [tally.prompt_tokens - tally.restored_tokens for tally in tallies]
        for player in self._players:
            player.cache.close()
        return self.counts


def play(stream: Stream, fleet: Fleet) -> Counts:
    """Play all turns of ``stream``, one after the other, over machines that are empty at first."""
    machines = Machines(fleet)
    for turn in stream:
        machines.play(turn)
    return machines.end()
