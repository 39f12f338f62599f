# SPDX-License-Identifier: Apache-2.0
"""What is published of a cache, and how much of it at a time.

Covers which tables need to be made anew and the time that this may take. When to publish is
decided in ``publisher``; what is in the tables in ``tables``, ``victims`` and ``outlook``.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable

from tiercache.blocks import BlockHash, GroupKind, Key
from tiercache.cache import TieredCache
from tiercache.probe import tables
from tiercache.probe.outlook import NumberOf, below, survey
from tiercache.probe.owners import Owners
from tiercache.probe.restores import MISS, RAM, Restorations
from tiercache.probe.sequences import Followed, Sequences
from tiercache.probe.victims import Surroundings, victims
from tiercache.slots import SlotPool
from tiercache.stats.model import Group, Restores, Tier
from tiercache.stats.writer import SegmentWriter

#: Seconds that the victims and the sequences of one publication may take, each, up to one more of
#: them: with four publications per second that is less than a hundredth of the engine's time.
BUDGET_S = 0.0005
#: The same for the last publication of all.
LAST_BUDGET_S = 0.1


class Board:
    """The tables of one cache.

    ``timer`` measures what a publication takes, in seconds. Locking: none, as for the cache.
    """

    def __init__(
        self,
        cache: TieredCache,
        workers: int,
        *,
        budget_s: float = BUDGET_S,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        below_ram = cache.tiering.tiers if cache.tiering is not None else ()
        self.tiers = {tier.name: place for place, tier in enumerate(below_ram)}
        self.places = {group_id: place for place, group_id in enumerate(cache.groups)}
        self.sequences = Sequences(cache.primary.tokens_per_hash)
        longest = max(spec.tokens_per_chunk for spec in cache.groups.values())
        self.restorations = Restorations(list(self.tiers), longest)
        self.counted = tables.Counted(cache.groups)
        self._cache = cache
        self._budget_s = budget_s
        self._timer = timer
        self._fixed = {g: tables.describe(spec, workers) for g, spec in cache.groups.items()}
        self._oldest: dict[int, float | None] = dict.fromkeys(cache.groups)
        self.slot_bytes = {g: spec.slot_bytes * workers for g, spec in cache.groups.items()}
        """Bytes of a slot of each group, over all workers."""
        self._owners = Owners(cache.primary.pools)
        self._states: dict[BlockHash, int] = {}
        """The sequence that stored each state that is here."""
        self._due: dict[int, None] = {}
        """Numbers of sequences that have changed, those that changed first in front."""
        self._round: deque[int] = deque()
        """Others that are looked at in turn: tiers evict without a word."""
        self._shown: dict[str, object] = {}
        """What was written last of each table."""
        self._disturbed: dict[int, None] = dict.fromkeys(cache.groups)
        """Groups whose eviction order may have changed, the one that waits longest in front."""
        self._counts = cache.counts()
        self._around = Surroundings(
            cache.primary.tree,
            cache.primary.tokens_per_hash,
            self._owner,
            lambda key: below(cache, key),
            cache.has_states,
        )

    @property
    def policy(self) -> str:
        """Name of the eviction policy, that of the states where there are some."""
        pools = self._cache.primary.pools.values()
        states = [pool for pool in pools if pool.spec.kind is GroupKind.STATE]
        return (states or list(pools))[0].policy.name

    # --- what has changed

    def touch(self, number: int) -> None:
        """Something changed about a sequence."""
        if number:
            self._due[number] = None

    def touch_state(self, block_hash: BlockHash, *, gone: bool) -> None:
        """A state was superseded, or is ``gone``."""
        get = self._states.pop if gone else self._states.get
        self.touch(get(block_hash, 0))

    def touch_slots(self, group_id: int, slots: list[int]) -> int:
        """Something changed about the entries in ``slots``; returns the sequence of one of them."""
        numbers = self._owners.those(group_id, slots)
        self._due.update(dict.fromkeys(filter(None, numbers)))
        return self._owners.of(group_id, slots[0])

    def take(self, pool: SlotPool, keys: list[Key], number: int) -> None:
        """A sequence stored ``keys``, which are ready; those who had their slots lost them."""
        group_id = pool.spec.group_id
        # They come in any order, which is what ``locate`` is slow at.
        slots = pool.ready.locate(keys)
        self.touch_slots(group_id, slots)
        self._owners.take(group_id, slots, number)
        if pool.spec.kind is GroupKind.STATE:
            self._states.update((key[:-4], number) for key in keys)
        self.touch(number)

    def disturb(self, group_id: int) -> None:
        """Something changed about the entries of a group."""
        self._disturbed.setdefault(group_id)

    def stir(self) -> None:
        """Pins or the recency of any group changed."""
        for group_id in self._fixed:
            self.disturb(group_id)

    def look(self) -> bool:
        """Whether slots changed their state, as when a tier pins them, which nobody tells."""
        counts, before = self._cache.counts(), self._counts
        self._counts = counts
        for group_id in counts:
            if counts[group_id] != before[group_id]:
                self.disturb(group_id)
        return counts != before

    def forget(self) -> None:
        """Everything is gone."""
        self._states.clear()
        self._due.update(dict.fromkeys(each.number for each in self.sequences))

    def _owner(self, group_id: int, slot: int) -> Followed | None:
        return self.sequences.get(self._owners.of(group_id, slot))

    # --- what is published

    def groups(self) -> list[Group]:
        """Rows of all groups."""
        return [
            tables.group(self._cache, fixed, group_id, self.counted, self._oldest[group_id])
            for group_id, fixed in self._fixed.items()
        ]

    def tier_rows(self) -> list[Tier]:
        """Rows of all tiers."""
        return tables.tiers(self._cache, self.restorations)

    def totals(self) -> dict[str, int]:
        return tables.totals(self._cache, self.restorations)

    def publish(self, writer: SegmentWriter, number_of: NumberOf, *, last: bool = False) -> None:
        """Write what has changed, as much of it as there is time for."""
        budget = LAST_BUDGET_S if last else self._budget_s
        # What sequences can restore says what is lost with a victim.
        self._publish_sequences(writer, number_of, self._timer() + budget)
        self._publish_victims(writer, self._timer() + budget)
        if self._is_new("groups", groups := self.groups()):
            writer.put_groups(groups)
        if self._is_new("tiers", tiers := self.tier_rows()):
            writer.put_tiers(tiers)
        if self._is_new("restores", restores := self._restores()):
            writer.put_restores(*restores)

    def _is_new(self, table: str, rows: object) -> bool:
        before, self._shown[table] = self._shown.get(table), rows
        return rows != before

    def _restores(self) -> tuple[Restores, Restores]:
        tallies = self.restorations.tallies
        return tallies[RAM].total(), tallies[MISS].total()

    def _publish_victims(self, writer: SegmentWriter, deadline: float) -> None:
        """Of groups that were disturbed, in turn."""
        while self._disturbed:
            group_id = next(iter(self._disturbed))
            del self._disturbed[group_id]
            found = victims(self._cache.primary.pools[group_id], self._around)
            self._oldest[group_id] = tables.oldest_live(found)
            writer.put_victims(self.places[group_id], found)
            if self._timer() >= deadline:
                return

    def _publish_sequences(
        self, writer: SegmentWriter, number_of: NumberOf, deadline: float
    ) -> None:
        for followed in self._in_turn():
            before = followed.shown
            if survey(self._cache, followed, number_of) != before:
                assert followed.shown is not None
                writer.put_sequence(followed.row, followed.shown)
            if self._timer() >= deadline:
                break
        for row in self.sequences.vacated:
            writer.drop_sequence(row)
        self.sequences.vacated.clear()
        writer.put_dropped(self.sequences.dropped)

    def _in_turn(self) -> Iterable[Followed]:
        """Sequences that have changed, then the others, each once at most."""
        seen = set()
        while self._due:
            number = next(iter(self._due))
            del self._due[number]
            followed = self.sequences.get(number)
            if followed is not None:
                seen.add(number)
                yield followed
        if not self._round:
            self._round.extend(each.number for each in self.sequences)
        for _ in range(len(self._round)):
            number = self._round.popleft()
            followed = self.sequences.get(number)
            if followed is not None and number not in seen:
                yield followed
