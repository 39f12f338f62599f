# SPDX-License-Identifier: Apache-2.0
"""What the tests of segments share: a small pool, and every value a segment can hold, at random."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from tiercache.stats import model, rows
from tiercache.stats.model import (
    LATENCY_US,
    Group,
    Health,
    Kind,
    Loss,
    Phase,
    Pool,
    Restores,
    SlotClass,
    Slots,
    Tier,
    Victim,
    Where,
)
from tiercache.stats.writer import SegmentWriter

NOW = 1_700_000_000.0
POOL = Pool("demo", os.getpid(), "host", NOW, 1, "demo", 16, "demote", "0.1", "")
GROUP = Group("g0", "full", Slots(5, 4, 3, 2, 1), 4096, 16)
TIER = Tier("nvme0", "nvme", Health.OK, 1 << 40, 3, 2, 1, 0, None, Restores())


def create(directory: Path, *, pool: Pool = POOL, sequences: int = 8) -> SegmentWriter:
    """A writer of one group and one tier."""
    return SegmentWriter.create(directory, pool, [GROUP], [TIER], sequences=sequences)


class Content(NamedTuple):
    """All that a writer can be told."""

    pool: Pool
    groups: Sequence[Group]
    tiers: Sequence[Tier]
    state: rows.State
    ram: Restores
    missed: Restores
    victims: Sequence[Sequence[Victim]]
    sequences: Mapping[int, model.Sequence]
    dropped: int

    def write(self, directory: Path) -> SegmentWriter:
        writer = SegmentWriter.create(directory, self.pool, self.groups, self.tiers, sequences=8)
        now, phase, running, totals = self.state
        writer.put_state(now, phase=phase, running=running, totals=totals)
        writer.put_restores(self.ram, self.missed)
        for group, victims in enumerate(self.victims):
            writer.put_victims(group, victims)
        for row, sequence in self.sequences.items():
            writer.put_sequence(row, sequence)
        writer.put_dropped(self.dropped)
        return writer


_words = st.integers(0, 2**63 - 1)
_words32 = st.integers(0, 2**32 - 1)
_numbers = st.integers(1, 2**32 - 1)
#: Multiples of half a second: their nanoseconds are exact as a float, too.
times = st.integers(0, 2**31).map(lambda n: n / 2)
_names = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=9)
#: 128 draws would take a second.
_histograms = st.integers(0, 2**32).map(lambda n: tuple(n * i for i in range(len(LATENCY_US))))
_restores = st.builds(Restores, _words, _words, _words, _histograms)


def _some(names: Sequence[str]) -> st.SearchStrategy[dict[str, int]]:
    return st.dictionaries(st.sampled_from(names), _words)


_pools = st.builds(
    Pool,
    *(_names, st.just(os.getpid()), _names, times, _words, _names),
    *(_words, _names, _names, _names),
)
_slots = st.builds(Slots, *[_words] * 5)
_groups = st.lists(
    st.builds(
        Group,
        _names,
        _names,
        _slots,
        st.none() | _words,
        st.none() | _words,
        st.none() | times,
        _some(rows.KINDS),
    ),
    max_size=4,
    unique_by=lambda group: group.name,
)
_tiers = st.lists(
    st.builds(
        Tier,
        _names.filter(lambda name: name not in ("ram", "miss")),
        _names,
        st.sampled_from(Health),
        *(_words, _words, _words, _words, _words),
        st.none() | st.integers(0, 2**40).map(float),
        _restores,
        _some(rows.TIER_COUNTS),
        _some(rows.TIER_INDEX),
    ),
    max_size=3,
    unique_by=lambda tier: tier.name,
)


def _losses(groups: Sequence[Group]) -> st.SearchStrategy[Loss | None]:
    if not groups:
        return st.none()
    names = st.sampled_from([group.name for group in groups])
    return st.none() | st.builds(
        Loss, names, _words, st.none() | times, st.none() | _numbers, st.booleans()
    )


def _sequences(groups: Sequence[Group], tiers: Sequence[Tier]) -> st.SearchStrategy[model.Sequence]:
    return st.builds(
        model.Sequence,
        *(_numbers, _words32, times),
        *(_words, _words, _words, _words, _words32, _words32),
        st.integers(0, 15).map(Where),
        st.sampled_from([None, "ram", "miss", *(tier.name for tier in tiers)]),
        _words,
        st.none() | times,
        _losses(groups),
    )


def _victims(group: Group, tiers: Sequence[Tier]) -> st.SearchStrategy[list[Victim]]:
    return st.lists(
        st.builds(
            Victim,
            st.just(group.name),
            _words,
            st.sampled_from(SlotClass),
            st.none() | _numbers,
            st.none() | _words,
            st.none() | times,
            st.sampled_from([None, *(tier.name for tier in tiers)]),
            _words,
        ),
        max_size=3,
    )


@st.composite
def contents(draw: st.DrawFn) -> Content:
    groups, tiers = draw(_groups), draw(_tiers)
    state = rows.State(
        draw(times), draw(st.sampled_from(Phase)), draw(_words), draw(_some(rows.TOTALS))
    )
    return Content(
        draw(_pools),
        groups,
        tiers,
        state,
        draw(_restores),
        draw(_restores),
        [draw(_victims(group, tiers)) for group in groups],
        draw(st.dictionaries(st.integers(0, 7), _sequences(groups, tiers), max_size=3)),
        draw(_words),
    )


def at(path: Path, content: Content) -> Pool:
    """The pool as a reader of ``path`` finds it."""
    return replace(content.pool, path=str(path))


def event(writer: SegmentWriter, count: int = 1) -> None:
    writer.event(Kind.STORED, round(NOW * 1e9), group=0, count=count)
