# SPDX-License-Identifier: Apache-2.0
"""Tiers that others store into: a request waits until they have said what they have."""

from collections.abc import Callable, Collection, Iterator
from typing import ClassVar

import pytest

from tests.core_helpers import FULL, checkpoint, keys
from tests.tier_helpers import ManualTier
from tests.tiering import rig as rig_module
from tests.tiering.rig import Rig, conversation
from tiercache.blocks import Key


class SharedTier(ManualTier):
    """A tier that finds what lies ``elsewhere`` when the test says so."""

    kind = "shared"
    seeks: ClassVar[bool] = True
    elsewhere: Collection[Key] = ()
    answers = False
    """Whether it says at once what it has."""
    sought: ClassVar[list[list[Key]]] = []

    def seek(self, keys: Collection[Key]) -> Callable[[], bool] | None:
        new = [key for key in keys if not self.has(key)]
        self.sought.append(new)
        return (lambda: self._waits(new)) if new else None

    def _waits(self, sought: list[Key]) -> bool:
        if self.answers:
            self.hold(key for key in sought if key in self.elsewhere and not self.has(key))
        return not self.answers


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(rig_module, "ManualTier", SharedTier)
    SharedTier.sought.clear()
    rig = Rig()
    yield rig
    rig.check()


def tier_of(rig: Rig) -> SharedTier:
    assert isinstance(rig.tier, SharedTier)
    return rig.tier


def test_a_request_gets_what_another_server_has_stored(shared: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    tier_of(shared).elsewhere = stocked
    request = shared.open(hashes)
    assert shared.ask(request) is None
    assert shared.waiting()
    shared.cache.poll()
    assert not shared.loading
    tier_of(shared).answers = True
    shared.wants(request)
    shared.settle()
    assert shared.load(request) == 6
    assert len(SharedTier.sought) == 1


def test_who_may_not_load_from_a_tier_does_not_ask_it(shared: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    tier_of(shared).elsewhere = stocked
    request = shared.open(hashes)
    request.barred = frozenset({shared.tier.name})
    assert shared.ask(request) == 0
    assert SharedTier.sought == []


def test_a_request_that_finds_nothing_does_not_wait_again(shared: Rig) -> None:
    hashes, _ = conversation(8, 6)
    request = shared.open(hashes)
    assert shared.ask(request) is None
    tier_of(shared).answers = True
    assert shared.ask(request) == 0
    assert not shared.waiting()
    assert shared.ask(request) == 0
    assert len(SharedTier.sought) == 1


def test_only_what_is_not_here_is_looked_for(shared: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    shared.turn(hashes[:4], 4)
    request = shared.open(hashes)
    assert shared.ask(request) is None
    (sought,) = SharedTier.sought
    here = {*keys(hashes[:4], FULL), *checkpoint(hashes, 4)}
    assert set(sought) >= set(stocked) - here
    assert not here & set(sought)


def test_a_request_that_ends_while_it_waits_leaves_nothing(shared: Rig) -> None:
    hashes, _ = conversation(8, 6)
    request = shared.open(hashes)
    assert shared.ask(request) is None
    shared.cache.finish(request)
    assert not shared.waiting()
    shared.settle()


def test_a_request_has_patience_for_what_is_looked_for_as_well(shared: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    tier_of(shared).elsewhere = stocked
    request = shared.open(hashes)
    assert shared.ask(request) is None
    shared.after(rig_module.PATIENCE_S)
    assert shared.ask(request) == 0
    assert shared.promoter.late == 1
    tier_of(shared).answers = True
    assert shared.ask(request) == 0
    assert not shared.waiting()


def test_what_is_found_late_is_loaded_within_the_same_patience(shared: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    tier_of(shared).elsewhere = stocked
    request = shared.open(hashes)
    assert shared.ask(request) is None
    shared.after(rig_module.PATIENCE_S / 2)
    tier_of(shared).answers = True
    assert shared.wants(request)
    shared.after(rig_module.PATIENCE_S / 2)
    assert shared.ask(request) == 0
    assert shared.promoter.late == 1
    shared.settle()
