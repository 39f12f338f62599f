# SPDX-License-Identifier: Apache-2.0
"""Caches that are published into a folder of the test's, and what a reader sees there."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.core_helpers import BLOCK, FULL, STATES, full, state
from tests.probe.played import make_cache
from tests.tier_helpers import Clock
from tiercache.cache import TieredCache
from tiercache.primary import PrimaryTier
from tiercache.probe.attach import attach
from tiercache.probe.publisher import Publisher
from tiercache.stats.model import Event, Group, Kind, Sequence, Snapshot, Victim
from tiercache.stats.reader import SegmentReader


@dataclass
class Watch:
    """A publisher and a reader of its segment."""

    publisher: Publisher
    reader: SegmentReader
    clock: Clock
    events: list[Event] = field(default_factory=list)

    def look(self) -> Snapshot:
        snapshot = self.reader.snapshot(now=self.clock())
        self.events += snapshot.events
        return snapshot

    def group(self, name: str) -> Group:
        return next(group for group in self.look().groups if group.name == name)

    def sequence(self, number: int) -> Sequence:
        return next(each for each in self.look().sequences if each.number == number)

    def victims(self, name: str) -> list[Victim]:
        return [victim for victim in self.look().victims if victim.group == name]

    def told(self, *kinds: Kind) -> list[Event]:
        """Events of these kinds so far."""
        self.look()
        return [event for event in self.events if event.kind in kinds]


Watching = Callable[..., Watch]


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watching]:
    """Publish a cache; it has all the time it needs for a publication."""
    made: list[Watch] = []

    def begin(cache: TieredCache, clock: Clock | None = None, **options: Any) -> Watch:
        clock = clock or Clock()
        defaults: dict[str, Any] = {"name": "model", "directory": tmp_path, "budget_s": math.inf}
        publisher = attach(cache, clock=clock, **defaults | options)
        assert publisher is not None
        made.append(Watch(publisher, SegmentReader(publisher.path), clock))
        return made[-1]

    yield begin
    for each in made:
        each.publisher.close()
        each.reader.close()


@pytest.fixture
def tier() -> Iterator[PrimaryTier]:
    """A hybrid model: 32 attention slots, 8 of each of two state groups."""
    groups = [full(FULL), *map(state, STATES)]
    slots = {FULL: 32} | dict.fromkeys(STATES, 8)
    made = PrimaryTier(groups, slots, tokens_per_hash=BLOCK)
    yield made
    made.validate()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> TieredCache:
    """The same, with room for nothing below."""
    return make_cache(clock)
