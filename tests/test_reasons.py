# SPDX-License-Identifier: Apache-2.0
"""Why a restore ended where it did: the entry that is named, and the sentence about it."""

import time
from collections.abc import Iterator

import pytest

from tests.core_helpers import BLOCK, FULL, STATES, chain, checkpoint, full, keys, state, turn
from tiercache.blocks import Lineage
from tiercache.cache import TieredCache
from tiercache.events import Fate
from tiercache.reasons import missing
from tiercache.restore import RestorePlan

MAIN = chain("a", 8)
OTHER = chain("x", 4)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are the same everywhere."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def make_cache(*, full_slots: int = 32, state_slots: int = 8) -> TieredCache:
    slots = {FULL: full_slots} | dict.fromkeys(STATES, state_slots)
    groups = [full(FULL), *map(state, STATES)]
    return TieredCache(groups, slots, tokens_per_hash=BLOCK, clock=lambda: 48_061.0)


def explain(cache: TieredCache, hashes: list[bytes]) -> str:
    request = cache.open("asking", hashes)
    return cache.explain(request, cache.plan(request, limit=len(hashes) * BLOCK))


def test_nothing_was_missing() -> None:
    cache = make_cache()
    turn(cache.primary, MAIN, 8)
    assert explain(cache, MAIN) == "restores 128 tokens up to 128; nothing was missing"


def test_a_block_that_was_never_stored() -> None:
    cache = make_cache()
    turn(cache.primary, MAIN[:4], 4)
    assert explain(cache, MAIN) == (
        "restores 64 tokens up to 64: block of group 0 at 80 tokens was never stored"
    )


def test_a_block_that_was_evicted() -> None:
    cache = make_cache(full_slots=4)
    turn(cache.primary, MAIN[:4], 3, 4)
    turn(cache.primary, OTHER[:1], name="other")
    assert explain(cache, MAIN[:4]) == (
        "restores 48 tokens up to 48: block of group 0 at 64 tokens was evicted 13:21:01"
        " by a store of other"
    )


def test_a_state_that_was_never_stored() -> None:
    cache = make_cache()
    turn(cache.primary, MAIN, 4)
    assert explain(cache, MAIN) == (
        "restores 64 tokens up to 64: state of group 1 at 128 tokens was never stored"
        "; 64 tokens of attention cannot be served"
    )


@pytest.mark.parametrize("group_id", STATES)
def test_the_state_that_was_evicted_is_named_whichever_group_lost_it(group_id: int) -> None:
    cache = make_cache(state_slots=1)
    turn(cache.primary, MAIN, 4)
    evicting = cache.open("other", OTHER)
    assert cache.reserve(evicting, keys(OTHER[:1], group_id)) is not None
    assert explain(cache, MAIN) == (
        f"restores 0 tokens up to 0: state of group {group_id} at 64 tokens was evicted 13:21:01"
        " by a store of other; 128 tokens of attention cannot be served"
    )


def test_the_deepest_state_that_was_lost_is_named() -> None:
    fates = dict.fromkeys([*keys([MAIN[3]], 1), *keys([MAIN[5]], 2)], Fate(0.0, "other"))
    plan = RestorePlan(start=0, boundary=0, attention=128, pending=False, ended_by=1)
    groups = {group_id: state(group_id) for group_id in STATES}
    entry = missing(plan, Lineage(MAIN, BLOCK), groups, fates.get)
    assert entry == (groups[2], 96, Fate(0.0, "other"))


def test_what_is_still_being_written_is_said() -> None:
    cache = make_cache()
    turn(cache.primary, MAIN[:4])
    assert cache.reserve(cache.open("", MAIN), checkpoint(MAIN, 4)) is not None
    assert explain(cache, MAIN[:4]) == (
        "restores 64 tokens up to 64 once they are written; nothing was missing"
    )


def test_what_another_tier_could_not_read_is_said() -> None:
    cache = make_cache()
    turn(cache.primary, MAIN[:4], 4)
    lost = keys([MAIN[4]], FULL)
    cache.journal.note_unreadable(lost, "nvme0")
    assert explain(cache, MAIN[:6]) == (
        "restores 64 tokens up to 64: block of group 0 at 80 tokens could not be read from nvme0"
        " 13:21:01"
    )


def test_what_was_decided_about_other_tiers_is_said() -> None:
    cache = make_cache()
    request = cache.open("", MAIN[:1])
    request.remark = "to read more would take longer than to compute it"
    plan = cache.plan(request, limit=BLOCK)
    assert cache.explain(request, plan).endswith(f"; {request.remark}")
