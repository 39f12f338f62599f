# SPDX-License-Identifier: Apache-2.0
"""Clearing a tier: whatever runs meanwhile, and although it fails."""

import pytest

from tests.tiers.nvme.tier_helpers import (
    SLOT_BYTES,
    Gate,
    Rig,
    full_tier,
    in_index,
    keys,
    published,
    until,
    validate,
    wait_cleared,
)
from tiercache.tiers.nvme.index import Index, NotIndexedError
from tiercache.tiers.nvme.records import Records

A, B, C, D = (keys([name]) for name in "abcd")


def test_clear_forgets_everything_for_good(rig: Rig) -> None:
    tier, stored = full_tier(rig)
    tier.clear()
    assert not any(map(tier.has, stored))
    assert tier.missing(stored) == stored
    assert rig.load(tier, stored[:3])[0].failed == stored[:3]
    assert tier.stats().used == 0
    wait_cleared(rig, tier)
    rig.stored(tier, A)
    assert published(tier) == A


def test_what_is_stored_after_a_clear_is_not_for_the_next_process(rig: Rig) -> None:
    """As its weights are those that the name says; the process after that is one like any other."""
    tier, _ = full_tier(rig)
    tier.clear()
    wait_cleared(rig, tier)
    rig.stored(tier, A)
    tier.close()
    again = rig.open()
    assert published(again) == []
    rig.stored(again, B)
    again.close()
    assert not list(rig.path.rglob("cleared"))
    assert published(rig.open()) == B


def test_an_index_that_is_reopened_after_a_clear_keeps_what_came_since(rig: Rig) -> None:
    tier, _ = full_tier(rig)
    tier.clear()
    wait_cleared(rig, tier)
    rig.stored(tier, A)
    tier._disk.index._reopen(anew=False)
    assert in_index(tier) == {0: 1, 1: 0}


def test_clear_just_before_close(rig: Rig) -> None:
    tier, _ = full_tier(rig)
    tier.clear()
    tier.close()
    assert published(rig.open()) == []


@pytest.mark.parametrize("method", ["write", "update"])
def test_clear_while_records_are_written(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    tier = rig.open()
    rig.stored(tier, A)
    with monkeypatch.context() as patch:
        gate = Gate(patch, {"write": Records, "update": Index}[method], method)
        first = rig.begin_store(tier, B, first=1)
        assert first
        assert gate.reached.wait(30)
        second = rig.begin_store(tier, C, first=2)
        tier.clear()
        assert second
        assert not tier.store(rig.batch(D))  # it would be cleared as well
        assert tier.stats().used == 2 * SLOT_BYTES[0]  # which are still written to
        gate.open.set()
        for batch in (first, second):
            rig.wait(tier, batch)
    wait_cleared(rig, tier)
    assert published(tier) == []
    assert tier.stats().used == 0
    assert tier.stats().healthy
    assert in_index(tier) == {0: 0, 1: 0}
    rig.stored(tier, [*B, *C])
    assert rig.loaded(tier, [*B, *C]) == [*B, *C]
    validate(tier)


def test_clear_while_records_are_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader ends with the old bytes, while the same key has been stored elsewhere."""
    tier = rig.open()
    rig.stored(tier, A)
    gate = Gate(monkeypatch, Records, "read")
    load = rig.batch(A)
    rig.fill(load, garbage=True)
    tier.load(load)
    tier.clear()
    wait_cleared(rig, tier)
    again = rig.begin_store(tier, A, first=1)
    assert again
    rig.wait(tier, again)
    assert tier.stats().used == 2 * SLOT_BYTES[0]
    gate.open.set()
    assert not rig.wait(tier, load).failed
    assert rig.right(load) == A
    assert tier.stats().used == SLOT_BYTES[0]
    assert rig.loaded(tier, A) == A
    validate(tier)


def failing(_: Index) -> None:
    raise NotIndexedError("the index was not cleared: injected")


def test_a_clear_that_fails_is_repeated(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    tier, _ = full_tier(rig)
    with monkeypatch.context() as broken:
        broken.setattr(Index, "clear", failing)
        tier.clear()
        until(lambda: not tier._clearing)
        for _ in range(5):
            assert tier.poll() == []
            assert not tier.store(rig.batch(A))
        until(lambda: not tier._clearing)
    wait_cleared(rig, tier)
    rig.stored(tier, A)
    assert rig.loaded(tier, A) == A


def test_a_clear_that_fails_is_repeated_when_the_tier_is_closed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, _ = full_tier(rig)
    with monkeypatch.context() as broken:
        broken.setattr(Index, "clear", failing)
        tier.clear()
        until(lambda: not tier._clearing)
    tier.close()
    assert published(rig.open()) == []


def test_clear_twice(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = rig.open()
    rig.stored(tier, A)
    gate = Gate(monkeypatch, Index, "clear")
    tier.clear()
    assert gate.reached.wait(30)
    tier.clear()
    gate.open.set()
    wait_cleared(rig, tier)
    rig.stored(tier, B)
    assert published(tier) == B


def test_a_load_that_fails_does_not_cost_what_was_stored_anew_meanwhile(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = rig.open()
    rig.stored(tier, A)
    gate = Gate(monkeypatch, Records, "read")
    load = rig.batch(A)
    tier._groups[0].checksums[tier._groups[0].table.slot_of[A[0]]] ^= 1
    tier.load(load)
    assert gate.reached.wait(30)
    tier.clear()
    wait_cleared(rig, tier)
    again = rig.begin_store(tier, A, first=1)
    assert again
    rig.wait(tier, again)
    gate.open.set()
    assert rig.wait(tier, load).failed == A
    assert rig.loaded(tier, A) == A
    validate(tier)
