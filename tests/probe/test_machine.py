# SPDX-License-Identifier: Apache-2.0
"""Random conversations over random tiers: what is published is what is true at that moment."""

import math
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import settings
from hypothesis.stateful import invariant

from tests.tier_helpers import Clock
from tests.tiering import test_machine
from tiercache.blocks import GroupKind
from tiercache.probe.attach import attach
from tiercache.probe.publisher import Publisher
from tiercache.requests import Request
from tiercache.stats.model import Phase, SlotClass, Slots, Snapshot, Where
from tiercache.stats.reader import SegmentReader


class Published(test_machine.Conversations):
    """The same conversations, with a publisher that is asked for all tables after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.publisher: Publisher | None = None
        self.watch = Clock()
        self.folder = tempfile.TemporaryDirectory()

    @invariant()
    def what_is_published_is_true(self) -> None:
        if self.publisher is None:
            self.publisher = attach(
                self.cache,
                name="random",
                directory=Path(self.folder.name),
                clock=self.watch,
                budget_s=math.inf,
            )
            assert self.publisher is not None
            self.reader = SegmentReader(self.publisher.path)
            self.events = 0
        self.watch.now += 1.0
        self.publisher.changed()
        snapshot = self.reader.snapshot(now=self.watch.now)
        assert snapshot.phase is Phase.RUN
        self.events += len(snapshot.events)
        assert self.events == snapshot.events_total
        self.slots_are_right(snapshot)
        self.victims_are_right(snapshot)
        self.sequences_are_right(snapshot)

    def slots_are_right(self, snapshot: Snapshot) -> None:
        counts = self.cache.counts()
        assert [g.slots for g in snapshot.groups] == [Slots(*c) for c in counts.values()]
        for group, group_id in zip(snapshot.groups, counts, strict=True):
            journal = self.cache.journal.counters.get(group_id, Counter())
            assert {k.value: n for k, n in journal.items()}.items() <= group.counts.items()

    def victims_are_right(self, snapshot: Snapshot) -> None:
        assert self.cache.tiering is not None
        for group_id, pool in self.cache.primary.pools.items():
            found = [victim for victim in snapshot.victims if victim.group == f"g{group_id}"]
            pinned = [v.slot for v in found if v.slot_class is SlotClass.PINNED]
            assert sorted(pinned) == sorted(pool.ready[key] for key in pool.pinned())
            order = pool.next_victims(pool.capacity)
            keys = {pool.ready[key]: key for key in pool.ready}
            unpinned = found[: len(found) - len(pinned)]
            assert [v.slot for v in unpinned] == [pool.ready[key] for key in order.keys]
            demoted = [v for v in unpinned if v.slot_class is SlotClass.DEMOTED]
            assert len(demoted) == order.demoted
            for victim in found:
                has = [tier.name for tier in self.tiers if tier.has(keys[victim.slot])]
                assert victim.below == next(iter(has), None)
                if pool.spec.kind is GroupKind.STATE:
                    node = self.cache.primary.tree.get(keys[victim.slot][:-4])
                    assert (victim.tokens is None) == (node is None)

    def sequences_are_right(self, snapshot: Snapshot) -> None:
        assert self.publisher is not None
        assert self.cache.tiering is not None
        known = {each.number: each for each in self.publisher._board.sequences}
        numbers = [each.number for each in snapshot.sequences]
        assert numbers == sorted(known, key=lambda number: known[number].row)
        for row in snapshot.sequences:
            lineage = known[row.number].lineage
            request = Request("", lineage)
            limit = len(lineage.hashes) * self.cache.primary.tokens_per_hash
            here = self.cache.plan(request, limit=limit)
            elsewhere = self.cache.tiering.jobs.elsewhere()
            there = self.cache.primary.plan(request, start=0, limit=limit, elsewhere=elsewhere)
            assert (row.restorable_ram, row.cached) == (here.boundary, there.attention)
            assert here.boundary <= row.restorable <= max(there.boundary, here.boundary)
            if limit <= self.cache.tiering.promoter.farthest(0):
                assert row.restorable == there.boundary
            assert row.live + row.demoted == len(list(self.cache.primary.tree.on(lineage)))
            assert bool(row.where & Where.RUNNING) == bool(known[row.number].running)

    def teardown(self) -> None:
        super().teardown()
        if self.publisher is not None:
            assert self.reader.snapshot(now=self.watch.now).phase is Phase.CLOSED
            self.reader.close()
        self.folder.cleanup()


TestPublished = Published.TestCase
TestPublished.settings = settings(max_examples=40, stateful_step_count=50)
