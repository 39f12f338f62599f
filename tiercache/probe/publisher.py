# SPDX-License-Identifier: Apache-2.0
"""The observer that writes a cache's stats segment.

Covers what is told when: each event at once, the tables at most every quarter of a second. What
the tables say is put together in ``board``; prompts and their hashes never leave this process.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextlib import suppress

from tiercache.blocks import GroupKind, Key, key_group, key_hash
from tiercache.cache import TieredCache
from tiercache.events import Event, EventKind
from tiercache.observer import Observer
from tiercache.probe.board import Board
from tiercache.probe.guard import guarded
from tiercache.probe.restores import MISS, RAM, Outcome, Visit
from tiercache.requests import Request
from tiercache.restore import RestorePlan
from tiercache.slots import SlotPool
from tiercache.stats.model import Kind, Phase
from tiercache.stats.writer import NONE, SegmentWriter
from tiercache.tiers.base import Batch, Done, SecondaryTier

logger = logging.getLogger(__name__)

#: Seconds between two publications of the tables.
INTERVAL_S = 0.25
#: Requests whose sequence is remembered, to say later on whose behalf something was evicted.
REMEMBERED_REQUESTS = 16_384

#: One event per entry of the journal, but for restores: of those there is one per request.
_KINDS: dict[EventKind, Kind] = {
    kind: Kind(kind.value) for kind in EventKind if kind is not EventKind.RESTORED
}
_ARRIVED = (EventKind.STORED, EventKind.PROMOTED)
_EVICTED = (EventKind.EVICTED_LIVE, EventKind.EVICTED_DEMOTED)


class Publisher(Observer):
    """Publishes one cache; made with ``attach``.

    A fault is logged once, the segment says so, and the cache is not observed any more.

    Locking: none; called under the lock of the cache. Raises: nothing.
    """

    def __init__(
        self,
        cache: TieredCache,
        writer: SegmentWriter,
        board: Board,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = writer.path
        self._cache = cache
        self._writer = writer
        self._board = board
        self._now = clock
        self._visits: dict[Request, Visit] = {}
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._restored = {group_id: self._restored_so_far(group_id) for group_id in cache.groups}
        self._published = self._now()
        self._changed = self._gone = False
        cache.journal.listeners = [*cache.journal.listeners, self._notice]
        cache.observe(self)

    # --- requests

    @guarded
    def opened(self, request: Request) -> None:
        now = self._now()
        followed = self._board.sequences.open(request.lineage.hashes, now)
        self._visits[request] = visit = Visit(followed)
        if followed is not None:
            visit.known = followed.before * self._cache.primary.tokens_per_hash
            self._remember(request.request_id, followed.number)
            self._board.touch(followed.number)
        self._tick(now, changed=True)

    def _remember(self, request_id: str, number: int) -> None:
        self._numbers[request_id] = number
        self._numbers.move_to_end(request_id)
        if len(self._numbers) > REMEMBERED_REQUESTS:
            self._numbers.popitem(last=False)

    @guarded
    def asked(self, request: Request, *, start: int, limit: int) -> None:
        if visit := self._visits.get(request):
            whole = limit - limit % self._cache.primary.tokens_per_hash
            self._board.restorations.ask(visit, start=start, limit=whole)

    @guarded
    def planned(self, request: Request, plan: RestorePlan | None) -> None:
        if visit := self._visits.get(request):
            self._board.restorations.answer(visit, plan, self._now())

    @guarded
    def loading(self, request: Request, keys: Collection[Key]) -> None:
        self._changed = True
        self._board.stir()
        if visit := self._visits.get(request):
            self._board.restorations.load(visit, self._sources(request, keys), self._now())

    def _sources(self, request: Request, keys: Collection[Key]) -> dict[str, int]:
        """Bytes of what was just pinned by where it came from, the fastest source first."""
        sizes = self._board.slot_bytes
        nbytes = 0
        for group_id, size in sizes.items():
            before, count = self._restored[group_id], self._restored_so_far(group_id)
            nbytes += (count - before) * size
            self._restored[group_id] = count
        found = dict.fromkeys((RAM, *self._board.tiers), 0)
        for key in filter(request.promoted.__contains__, keys) if request.promoted else ():
            size = sizes[key_group(key)]
            found[request.promoted[key]] += size
            nbytes -= size
        found[RAM] = nbytes
        return {source: part for source, part in found.items() if part > 0}

    def _restored_so_far(self, group_id: int) -> int:
        return self._cache.journal.count(group_id, EventKind.RESTORED)

    @guarded
    def served(self, request: Request, tokens: int) -> None:
        if visit := self._visits.get(request):
            plan = visit.plan
            self._tell(visit, plan, self._board.restorations.serve(visit, tokens))

    @guarded
    def loaded(self, request: Request | None) -> None:
        self._board.stir()
        visit = None if request is None else self._visits.get(request)
        if visit is not None:
            plan = visit.plan
            self._tell(visit, plan, self._board.restorations.loaded(visit, self._now()))
        self._tick(self._now(), changed=True)

    def _tell(self, visit: Visit, plan: RestorePlan | None, outcome: Outcome | None) -> None:
        """An event for a restore, and one for what it could not serve."""
        if outcome is None:
            return
        number, is_miss = self._credit(visit, outcome), outcome.source == MISS
        now_ns = int(self._now() * 1e9)
        if not is_miss:
            self._writer.event(
                Kind.RESTORED,
                now_ns,
                tier=self._board.tiers.get(outcome.source, NONE),
                count=1,
                sequence=number,
                tokens=outcome.tokens,
                nbytes=outcome.nbytes,
                duration_us=round((outcome.seconds or 0.0) * 1e6),
            )
        if is_miss or outcome.lost:
            ended_by = None if plan is None else plan.ended_by
            self._writer.event(
                Kind.MISSED,
                now_ns,
                group=NONE if ended_by is None else self._board.places[ended_by],
                count=1,
                sequence=number,
                tokens=outcome.tokens if is_miss else outcome.lost,
            )

    def _credit(self, visit: Visit, outcome: Outcome) -> int:
        """Note what its sequence got; returns the number of that."""
        self._changed = True
        followed = visit.followed
        if followed is None:
            return 0
        followed.source = outcome.source
        followed.restored = 0 if outcome.source == MISS else outcome.tokens
        followed.seconds = outcome.seconds
        self._board.touch(followed.number)
        return followed.number

    @guarded
    def finished(self, request: Request) -> None:
        now = self._now()
        visit = self._visits.pop(request, None)
        if visit is not None and visit.followed is not None:
            self._board.sequences.close(visit.followed, request.lineage.hashes, now)
            self._board.touch(visit.followed.number)
        self._board.stir()
        self._tick(now, changed=True)

    # --- entries

    @guarded
    def _notice(self, event: Event) -> None:
        """One event of the journal, in the middle of whatever causes it."""
        kind = _KINDS.get(event.kind)
        if kind is None:
            return
        self._changed = True
        board, group_id, count = self._board, event.group_id, len(event.keys)
        pool = self._cache.primary.pools[group_id]
        number = self._numbers.get(event.request_id, 0)
        tokens = 0
        if event.kind in _ARRIVED:
            number, tokens = self._arrived(pool, event)
        elif event.kind is EventKind.RESET:
            board.forget()
        elif pool.spec.kind is GroupKind.STATE:
            tokens = self._leave(event)
        board.disturb(group_id)
        self._writer.event(
            kind,
            int(self._now() * 1e9),
            group=self._board.places[group_id],
            count=count,
            sequence=number,
            tokens=tokens,
            nbytes=count * board.slot_bytes[group_id] if event.kind in _ARRIVED else 0,
        )

    def _arrived(self, pool: SlotPool, event: Event) -> tuple[int, int]:
        """Note whose entries are in which slots; returns the sequence, and where a state ends."""
        keys = list(event.keys)
        writer = self._cache.primary.writer(keys[0])
        number = self._numbers.get(writer.request_id, 0)
        self._board.take(pool, keys, number)
        if pool.spec.kind is not GroupKind.STATE:
            return number, 0
        index = writer.lineage.index(key_hash(keys[-1]))
        return number, 0 if index is None else (index + 1) * self._cache.primary.tokens_per_hash

    def _leave(self, event: Event) -> int:
        """States are superseded or evicted: their sequences change. Returns where one ends."""
        tree, tokens = self._cache.primary.tree, 0
        for key in event.keys:
            block_hash = key_hash(key)
            self._board.touch_state(block_hash, gone=event.kind in _EVICTED)
            node = tree.get(block_hash)
            if node is not None:
                tokens = (node.index + 1) * self._cache.primary.tokens_per_hash
        return tokens

    @guarded
    def job(self, tier: SecondaryTier, batch: Batch, done: Done, *, loads: bool) -> None:
        self._changed = True
        board, group_id = self._board, batch.group_id
        failed, place = len(done.failed), board.places[group_id]
        board.disturb(group_id)
        number = board.touch_slots(group_id, batch.slots)
        now_ns, us = int(self._now() * 1e9), round(done.seconds * 1e6)
        at = board.tiers[tier.name]
        stored = len(batch.keys) - failed
        if stored and not loads:
            board.counted.add(group_id, Kind.SPILLED, stored)
            self._writer.event(
                Kind.SPILLED,
                now_ns,
                group=place,
                tier=at,
                count=stored,
                sequence=number,
                nbytes=done.nbytes,
                duration_us=us,
            )
        if failed:
            board.counted.add(group_id, Kind.TIER_FAILED, failed)
            self._writer.event(
                Kind.TIER_FAILED, now_ns, group=place, tier=at, count=failed, sequence=number
            )

    # --- time

    @guarded
    def changed(self) -> None:
        self._board.stir()
        self._tick(self._now(), changed=True)

    @guarded
    def tick(self) -> None:
        self._tick(self._now(), changed=False)

    def _tick(self, now: float, *, changed: bool) -> None:
        """Publish if it is time, or if nobody will come to say that it is.

        An engine without requests makes no steps, so what changes then is published at once.
        """
        self._changed |= changed
        if changed and not self._visits:
            self._publish(now)
        elif abs(now - self._published) >= INTERVAL_S:
            if self._board.look() or self._changed:
                self._publish(now)
            elif self._visits:
                self._heartbeat(now)

    def _publish(self, now: float) -> None:
        self._changed = False
        self._board.publish(self._writer, self._number_of)
        self._heartbeat(now)

    def _heartbeat(self, now: float, phase: Phase = Phase.RUN) -> None:
        self._published = now
        self._writer.put_state(
            now, phase=phase, running=len(self._visits), totals=self._board.totals()
        )

    def _number_of(self, request_id: str) -> int | None:
        return self._numbers.get(request_id)

    # --- the end

    @guarded
    def close(self) -> None:
        if self._gone:
            return
        self._visits.clear()
        self._board.publish(self._writer, self._number_of, last=True)
        self._heartbeat(self._now())
        self._writer.close()
        self._detach()

    def give_up(self, where: str, fault: Exception) -> None:
        """Log a fault and go, the first time."""
        if self._gone:
            return
        self._detach()
        logger.error(
            "fault in %s: the stats segment is not written any more, the cache goes on",
            where,
            exc_info=fault,
        )
        with suppress(Exception):
            self._writer.close(Phase.FAILED)

    def _detach(self) -> None:
        self._gone = True
        # A new list: the journal may be in the middle of the old one.
        listeners = self._cache.journal.listeners
        self._cache.journal.listeners = [each for each in listeners if each != self._notice]
        if self._cache.observer is self:
            self._cache.observe(None)
