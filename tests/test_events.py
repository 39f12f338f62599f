# SPDX-License-Identifier: Apache-2.0
"""The journal: what it counts, whom it tells, and how long it remembers."""

import pytest

from tests.core_helpers import key
from tiercache import events
from tiercache.events import Event, EventKind, Fate, Journal

A, B, C = map(key, "abc")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(clock: Clock) -> Journal:
    return Journal(clock)


def test_keys_are_counted_by_group_and_kind(journal: Journal) -> None:
    journal.record(EventKind.STORED, 0, [A, B], "r")
    journal.record(EventKind.STORED, 0, [C], "r")
    journal.record(EventKind.STORED, 1, [A], "r")
    journal.record(EventKind.FAILED, 0, [A], "r")
    assert journal.count(0, EventKind.STORED) == 3
    assert journal.total(EventKind.STORED) == 4
    assert journal.count(7, EventKind.STORED) == 0


def test_asking_for_a_count_does_not_add_one(journal: Journal) -> None:
    journal.count(7, EventKind.STORED)
    assert journal.counters == {}


def test_every_listener_is_told(journal: Journal) -> None:
    first: list[Event] = []
    second: list[Event] = []
    journal.listeners += [first.append, second.append]
    journal.record(EventKind.DEMOTED, 3, [A, B], "r")
    assert first == second == [Event(EventKind.DEMOTED, 3, [A, B], "r")]


def test_without_keys_there_is_no_event(journal: Journal) -> None:
    told: list[Event] = []
    journal.listeners.append(told.append)
    journal.record(EventKind.STORED, 0, [], "r")
    assert told == []
    assert journal.counters == {}


@pytest.mark.parametrize("kind", [EventKind.EVICTED_LIVE, EventKind.EVICTED_DEMOTED])
def test_evictions_are_remembered(journal: Journal, clock: Clock, kind: EventKind) -> None:
    journal.record(kind, 0, [A], "first")
    clock.now = 200.0
    journal.record(kind, 0, [B], "second")
    assert journal.fate(A) == Fate(100.0, "first")
    assert journal.fate(B) == Fate(200.0, "second")


def test_the_last_eviction_of_a_key_counts(journal: Journal) -> None:
    journal.record(EventKind.EVICTED_LIVE, 0, [A], "first")
    journal.record(EventKind.EVICTED_LIVE, 0, [A], "second")
    assert journal.fate(A) == Fate(100.0, "second")


def test_other_events_have_no_fate(journal: Journal) -> None:
    journal.record(EventKind.DEMOTED, 0, [A], "r")
    assert journal.fate(A) is None


def test_only_recent_evictions_are_remembered(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "REMEMBERED_EVICTIONS", 2)
    for name in "abcdef":
        journal.record(EventKind.EVICTED_LIVE, 0, [key(name)], name)
    remembered = [name for name in "abcdef" if journal.fate(key(name))]
    assert remembered == ["c", "d", "e", "f"]


def test_a_large_eviction_is_remembered_whole(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "REMEMBERED_EVICTIONS", 2)
    journal.record(EventKind.EVICTED_LIVE, 0, [A, B, C], "r")
    assert all(map(journal.fate, [A, B, C]))
