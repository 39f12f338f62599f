# SPDX-License-Identifier: Apache-2.0
"""Plays turns through the cache that serves in vLLM, with the calls that the connector makes.

Covers the engine's part, one request after the other: which blocks a prompt has, of which
boundaries a state is kept, and when they are offered. What is kept, evicted and restored is
decided by the cache alone.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from tiercache.blocks import SLOT_ALIGNMENT, BlockHash, GroupKind, GroupSpec, Key, group_suffix
from tiercache.cache import TieredCache
from tiercache.errors import ConfigError
from tiercache.events import EventKind
from tiercache.replay.disk import DiskModel
from tiercache.replay.registry import VARIANTS
from tiercache.replay.turns import Stream, Turn
from tiercache.requests import Request
from tiercache.restore import RestorePlan

#: Tokens of a prompt that the engine computes at once: vLLM's default for a server.
STEP_TOKENS = 8192
#: Seconds of a step without a prefill, in which a request waits for a disk.
STEP_S = 0.01
#: States kept at the end of a prompt: one to send it again from, one to continue it from.
REPLAY_BOUNDARIES = 2


@dataclass(frozen=True, slots=True)
class Setup:
    """A cache to play turns through, and how the engine before it works.

    Args:
        groups: the groups that are cached.
        slots: slots per group id.
        policy: name of an eviction policy, or of one of `registry.VARIANTS`.
        options: what else `TieredCache` takes by name.
        step_tokens: tokens of a prompt that are computed, and then offered, at once.
        replay_boundaries: states kept at the end of a prompt, a block apart.
        disk_slots: slots on a disk below, of the group that has most; 0 for no disk.

    Raises:
        ConfigError: the engine's part for such groups is not known here.
    """

    groups: Sequence[GroupSpec]
    slots: Mapping[int, int]
    policy: str = "lru"
    options: Mapping[str, Any] = field(default_factory=dict)
    step_tokens: int = STEP_TOKENS
    replay_boundaries: int = REPLAY_BOUNDARIES
    disk_slots: int = 0

    def __post_init__(self) -> None:
        steps = {group.tokens_per_chunk for group in self.groups if _is_state(group)}
        if len(steps) > 1:
            raise ConfigError("groups", sorted(steps), "state groups with blocks of one size")
        if any(step % group.tokens_per_chunk for step in steps for group in self.groups):
            sizes = [group.tokens_per_chunk for group in self.groups]
            raise ConfigError("groups", sizes, "states at boundaries of every other group")
        if any(group.draft for group in self.groups):
            raise ConfigError("groups", "a draft group", "groups of the model itself")

    @classmethod
    def uniform(
        cls,
        *,
        block_tokens: int,
        token_slots: int,
        state_slots: int = 0,
        state_groups: int = 1,
        policy: str = "lru",
        **options: Any,
    ) -> Self:
        """One full group and ``state_groups`` state groups, with blocks of one size."""
        kinds = [GroupKind.FULL, *[GroupKind.STATE] * state_groups]
        groups = [GroupSpec(i, kind, block_tokens, SLOT_ALIGNMENT) for i, kind in enumerate(kinds)]
        slots = {0: token_slots} | dict.fromkeys(range(1, state_groups + 1), state_slots)
        return cls(groups, slots, policy, options)

    @property
    def block_tokens(self) -> int:
        """Tokens that a block hash has to stand for."""
        return math.gcd(*(group.tokens_per_chunk for group in self.groups))

    @property
    def token_slots(self) -> int:
        """Slots of the full or window group that has fewest; 0 without such groups."""
        return self._fewest(state=False)

    @property
    def state_slots(self) -> int:
        """Slots of the state group that has fewest; 0 without state groups."""
        return self._fewest(state=True)

    def _fewest(self, *, state: bool) -> int:
        groups = (group for group in self.groups if _is_state(group) is state)
        return min((self.slots[group.group_id] for group in groups), default=0)

    def make_cache(self, clock: Callable[[], float]) -> TieredCache:
        policy, options = VARIANTS.get(self.policy, (self.policy, {}))
        cache = TieredCache(
            self.groups,
            self.slots,
            tokens_per_hash=self.block_tokens,
            policy=policy,
            clock=clock,
            **{**options, **self.options},
        )
        if self.disk_slots:
            # Nothing here tells how long a read takes beside computing.
            disk = DiskModel(self.groups, self.slots, self.disk_slots)
            cache.attach([disk], clock=clock, restore="always")
        return cache


class Busy(NamedTuple):
    """What an engine does for a request: it waits for a disk, or copies blocks, or computes."""

    waits: bool = False
    copied: int = 0
    computed: int = 0


@dataclass(slots=True)
class Tally:
    """What was counted so far."""

    requests: int = 0
    prompt_tokens: int = 0
    restored_tokens: int = 0
    stranded_tokens: int = 0
    """Tokens whose attention blocks were there when asked for, but that no state could serve."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of playing a stream through a setup."""

    stream: Stream
    setup: Setup
    tally: Tally
    evicted_live: int
    evicted_demoted: int
    demotions: int
    idle_restored_tokens: int | None
    """What the last turn of the stream's idle conversation got, if it has one."""
    seconds: float
    """How long it took, reading the stream included."""

    @property
    def restored_share(self) -> float:
        return self.tally.restored_tokens / max(self.tally.prompt_tokens, 1)


class Player:
    """An engine that computes one request after the other, each restored from one cache.

    ``epoch``: when the trace begins, in the seconds of whoever looks at the cache.

    Locking: none, as for the cache.
    """

    def __init__(self, setup: Setup, *, epoch: float = 0.0) -> None:
        self.now = 0.0
        self._epoch = epoch
        self.cache = setup.make_cache(self.clock)
        self.tally = Tally()
        self._setup = setup
        self._per_hash = setup.block_tokens
        self._blocks = [
            _Blocks(group, self._per_hash) for group in setup.groups if not _is_state(group)
        ]
        states = [group for group in setup.groups if _is_state(group)]
        self._states = [group_suffix(group.group_id) for group in states]
        self._state_tokens = states[0].tokens_per_chunk if states else 0

    def clock(self) -> float:
        """The time of the trace, counted from ``epoch``."""
        return self._epoch + self.now

    def play(self, turn: Turn) -> int:
        """Restore, compute and store one request; returns the tokens that were restored."""
        self.now = max(self.now, turn.time)
        before = self.tally.restored_tokens
        for busy in self.playing(turn):
            if busy.waits:
                self._step()
        while self.cache.pending:
            self._step()
        return self.tally.restored_tokens - before

    def playing(self, turn: Turn) -> Iterator[Busy]:
        """Play one request, with a stop wherever time passes; others can be played meanwhile."""
        cache = self.cache
        self.tally.requests += 1
        request = cache.open(f"{turn.conversation}/{self.tally.requests}", turn.hashes)
        # The last token has to be computed, so a restore ends before it.
        limit = turn.input_tokens - 1
        while (plan := cache.restore(request, limit=limit)) is None:
            yield Busy(waits=True)
        keys = cache.primary.needed(request, plan)
        if keys:
            cache.load(request, keys)
        cache.served(request, plan.restored)
        if keys:
            yield Busy(copied=len(keys))
            cache.release(keys, request)
        yield from self._store(request, turn, plan)
        cache.finish(request)
        self.tally.prompt_tokens += turn.input_tokens
        self.tally.restored_tokens += plan.restored
        self.tally.stranded_tokens += plan.lost

    def _step(self) -> None:
        """Let the disk get on while the engine computes nothing."""
        self.now += STEP_S
        self.cache.poll()

    def _store(self, request: Request, turn: Turn, plan: RestorePlan) -> Iterator[Busy]:
        """Offer what each step of the prefill computed; what is known already is offered too."""
        per_hash, hashes = self._per_hash, turn.hashes
        whole = min(turn.input_tokens // per_hash, len(hashes)) * per_hash
        kept = self.kept(turn, plan)
        steps = range(plan.boundary + self._setup.step_tokens, whole, self._setup.step_tokens)
        offered, computed = 0, plan.boundary
        # A state is what is left when a step ends, so steps end where one is kept.
        for end in sorted({*steps, *kept, whole}):
            yield Busy(computed=max(end - computed, 0))
            computed = max(end, computed)
            self.cache.poll()
            keys = [key for blocks in self._blocks for key in blocks.keys(hashes, offered, end)]
            keys += self._state_keys(hashes, (at for at in kept if offered < at <= end))
            reservation = self.cache.reserve(request, keys)
            if reservation is not None:
                yield Busy(copied=len(reservation.keys))
                self.cache.commit(reservation.keys)
            elif self.cache.could_fit(request):
                # The engine offers it again, with what the next step computes.
                continue
            offered = end

    def kept(self, turn: Turn, plan: RestorePlan) -> list[int]:
        """Boundaries at which the engine keeps a state, among those that it comes by."""
        step = self._state_tokens
        if not step:
            return []
        limit = min(turn.input_tokens - 1, len(turn.hashes) * self._per_hash)
        last = limit // step * step
        kept = {last - i * step for i in range(self._setup.replay_boundaries)}
        # Where the attention prefix of another conversation branches off.
        junction = plan.attention // step * step
        if plan.boundary < junction < last:
            kept.add(junction)
        return sorted(at for at in kept if at > 0 and at >= plan.boundary)

    def _state_keys(self, hashes: Sequence[BlockHash], boundaries: Iterable[int]) -> list[Key]:
        ends = [hashes[at // self._per_hash - 1] for at in boundaries]
        return [Key(end + suffix) for suffix in self._states for end in ends]


class _Blocks:
    """The keys of a full or window group."""

    def __init__(self, group: GroupSpec, tokens_per_hash: int) -> None:
        self._stride = group.tokens_per_chunk // tokens_per_hash
        self._tokens = group.tokens_per_chunk
        self._suffix = group_suffix(group.group_id)

    def keys(self, hashes: Sequence[BlockHash], start: int, end: int) -> list[Key]:
        """Keys of the whole blocks that end after ``start`` and not after ``end`` tokens."""
        first = (start // self._tokens + 1) * self._stride - 1
        last = end // self._tokens * self._stride
        suffix = self._suffix
        return [Key(block_hash + suffix) for block_hash in hashes[first : last : self._stride]]


def simulate(
    stream: Stream,
    setup: Setup,
    *,
    progress: Callable[[Turn], object] | None = None,
    watch: Callable[[Player], object] | None = None,
    epoch: float = 0.0,
) -> Result:
    """Play all turns of ``stream`` through a cache that is empty at first.

    ``progress`` is called after each turn, ``watch`` before the first one; ``epoch`` is when the
    trace begins, for who watches.

    Raises:
        ConfigError: the stream has blocks of another size, or the setup is no cache.
        TraceError: the stream reads a strict trace, and a line of that is malformed.
    """
    if stream.block_tokens != setup.block_tokens:
        raise ConfigError("block_tokens", stream.block_tokens, f"{setup.block_tokens}, as cached")
    begin = time.perf_counter()
    player = Player(setup, epoch=epoch)
    if watch is not None:
        watch(player)
    idle = None
    for turn in stream:
        restored = player.play(turn)
        if stream.idle is not None and turn.conversation == stream.idle:
            idle = restored
        if progress is not None:
            progress(turn)
    player.cache.close()
    journal = player.cache.journal
    return Result(
        stream,
        setup,
        player.tally,
        journal.total(EventKind.EVICTED_LIVE),
        journal.total(EventKind.EVICTED_DEMOTED),
        journal.total(EventKind.DEMOTED),
        idle,
        time.perf_counter() - begin,
    )


def _is_state(group: GroupSpec) -> bool:
    return group.kind is GroupKind.STATE
