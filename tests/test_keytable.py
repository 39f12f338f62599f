# SPDX-License-Identifier: Apache-2.0
"""The table of keys and slots: random calls against a dict, and prefixes in any slots."""

from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core_helpers import key
from tiercache.blocks import Key
from tiercache.keytable import KeyTable

CAPACITY = 16
#: Some of the same first byte, others of different ones; more than there are slots.
KEYS = [key(name) for name in ("a", *(f"a{i}" for i in range(9)), *"\0bcdefghijkl")]


class AgainstDict(RuleBasedStateMachine):
    """A dict holds the same; what nobody holds is listed beside it."""

    any_keys = st.lists(st.sampled_from(KEYS), max_size=CAPACITY)
    runs = st.tuples(st.integers(0, len(KEYS)), st.integers(0, len(KEYS)))
    some = any_keys | runs.map(lambda ends: KEYS[min(ends) : max(ends)])

    @initialize()
    def begin(self) -> None:
        self.table = KeyTable(CAPACITY)
        self.holders = self.table.holders
        self.model: dict[Key, int] = {}

    def in_model(self, some: list[Key]) -> list[Key]:
        return [each for each in some if each in self.model]

    @rule(some=some, random=st.none() | st.randoms())
    def put(self, some: list[Key], random: Random | None) -> None:
        new = [each for each in dict.fromkeys(some) if each not in self.model]
        free = sorted(set(range(CAPACITY)) - set(self.model.values()))
        if random is not None:
            random.shuffle(free)
        given = dict(zip(new, free, strict=False))
        self.table.put(given, given.values())
        self.model |= given

    @rule(some=some)
    def take(self, some: list[Key]) -> None:
        known = list(dict.fromkeys(self.in_model(some)))
        assert self.table.take(known) == [self.model.pop(each) for each in known]

    @precondition(lambda self: len(self.model) > CAPACITY // 2)
    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.model.clear()

    @rule(some=some)
    def look_up(self, some: list[Key]) -> None:
        known = self.in_model(some)
        assert self.table.known(some) == known
        assert self.table.missing(some) == [each for each in some if each not in self.model]
        assert self.table.find(some) == [self.model[each] for each in known]
        assert self.table.find(iter(some)) == self.table.find(some)

    @rule(some=some)
    def locate(self, some: list[Key]) -> None:
        known = self.in_model(some)
        assert self.table.locate(known) == [self.model[each] for each in known]
        absent = next((each for each in some if each not in self.model), None)
        if absent is not None:
            with pytest.raises(KeyError) as raised:
                self.table.locate(some)
            assert raised.value.args == (absent,)

    @rule(some=some, at=st.integers(0, CAPACITY))
    def leading(self, some: list[Key], at: int) -> None:
        there = [each in self.model for each in some[at:]]
        assert self.table.leading(some, at) == [*there, False].index(False)

    @rule(slots=st.lists(st.integers(0, CAPACITY - 1)))
    def keys_in(self, slots: list[int]) -> None:
        holders = {slot: each for each, slot in self.model.items()}
        held = [holders[slot] for slot in slots if slot in holders]
        assert self.table.keys_in(slots) == held

    @invariant()
    def it_is_the_same(self) -> None:
        assert dict(self.table) == self.model
        assert len(self.table) == len(self.model)
        assert self.table.keys() == self.model.keys()
        assert [each in self.table for each in KEYS] == [each in self.model for each in KEYS]

    @invariant()
    def slots_know_their_keys(self) -> None:
        assert self.table.holders is self.holders
        holders = dict.fromkeys(range(CAPACITY + 1))
        assert dict(enumerate(self.holders)) == holders | {
            slot: each for each, slot in self.model.items()
        }


TestAgainstDict = AgainstDict.TestCase
TestAgainstDict.settings = settings(max_examples=60)

PREFIX = [key(f"{i:04}") for i in range(1_000)]


class Counted(list[Key | None]):
    """Counts the entries that are compared in slices."""

    compared = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.compared += len(found) if isinstance(found, list) else 0
        return found


def slots_in_runs(*lengths: int) -> list[int]:
    """Slots for a prefix: as many next to each other as told, in turn, the later runs first."""
    starts: list[int] = []
    while sum(lengths[i % len(lengths)] for i in range(len(starts))) < len(PREFIX):
        starts.append(lengths[len(starts) % len(lengths)])
    slots: list[int] = []
    for length in starts:
        rest = len(PREFIX) - len(slots)
        slots += range(max(rest - length, 0), rest)
    return slots


@pytest.mark.parametrize(
    "lengths",
    [(1_000,), (1,), (2,), (3, 1), (1, 64), (100, 1, 1, 1), (1, 2, 4, 8, 16), (499, 1), (999, 1)],
    ids=str,
)
def test_a_prefix_in_runs_is_found_without_comparing_much(lengths: tuple[int, ...]) -> None:
    table, slots = KeyTable(len(PREFIX)), slots_in_runs(*lengths)
    table.put(PREFIX, slots)
    table.holders = holders = Counted(table.holders)
    assert table.locate(PREFIX) == slots
    assert holders.compared <= 7 * len(PREFIX)


@pytest.mark.parametrize("lengths", [(1_000,), (1,), (7, 3), (100, 1)], ids=str)
def test_a_prefix_leads_up_to_its_first_gap(lengths: tuple[int, ...]) -> None:
    table = KeyTable(len(PREFIX))
    table.put(PREFIX, slots_in_runs(*lengths))
    for gap in range(0, len(PREFIX), 37):
        slots = table.take([PREFIX[gap]])
        assert table.leading(PREFIX) == gap
        assert table.leading(PREFIX, gap) == 0
        assert table.leading(PREFIX, gap + 1) == len(PREFIX) - gap - 1
        with pytest.raises(KeyError) as raised:
            table.locate(PREFIX)
        assert raised.value.args == (PREFIX[gap],)
        table.put([PREFIX[gap]], slots)
    assert table.leading(PREFIX) == len(PREFIX)


def test_a_prefix_may_end_in_the_last_slot() -> None:
    table = KeyTable(2)
    table.put(KEYS[:2], [0, 1])
    assert table.leading(KEYS[:3]) == 2
    assert table.keys_in([1, 0]) == [KEYS[1], KEYS[0]]


def test_a_table_without_slots_knows_nothing() -> None:
    table = KeyTable(0)
    assert table.leading(KEYS) == 0
    assert table.locate([]) == []
    assert table.take([]) == []
    with pytest.raises(KeyError):
        table.locate(KEYS)


def test_a_prefix_with_gaps_is_found_without_comparing_much() -> None:
    table = KeyTable(len(PREFIX))
    table.put(PREFIX[::2], range(len(PREFIX) // 2))
    table.holders = holders = Counted(table.holders)
    assert table.find(PREFIX) == list(range(len(PREFIX) // 2))
    assert holders.compared <= 7 * len(PREFIX)


def test_to_take_what_is_missing_takes_what_comes_before_it() -> None:
    table = KeyTable(4)
    table.put(KEYS[:3], [2, 1, 0])
    with pytest.raises(KeyError) as raised:
        table.take([KEYS[0], KEYS[3], KEYS[1]])
    assert raised.value.args == (KEYS[3],)
    assert dict(table) == {KEYS[1]: 1, KEYS[2]: 0}
    assert table.locate([KEYS[1], KEYS[2]]) == [1, 0]
    assert table.leading([KEYS[0]]) == 0
    assert table.leading([KEYS[1], KEYS[0]]) == 1
    assert table.holders == [KEYS[2], KEYS[1], None, None, None]
