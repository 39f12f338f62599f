# SPDX-License-Identifier: Apache-2.0
"""Caches of a hybrid model, and requests that are played on them as an engine would."""

from tests.core_helpers import BLOCK, FULL, STATES, chain, checkpoint, full, keys, state
from tests.tier_helpers import Clock
from tiercache.cache import TieredCache

MAIN = chain("a", 8)


def make_cache(clock: Clock, full_slots: int = 32, state_slots: int = 8) -> TieredCache:
    slots = {FULL: full_slots} | dict.fromkeys(STATES, state_slots)
    groups = [full(FULL), *map(state, STATES)]
    return TieredCache(groups, slots, tokens_per_hash=BLOCK, clock=clock)


def turn(cache: TieredCache, hashes: list[bytes], *states: int, name: str = "a") -> None:
    """A request that restores what it can get, and stores its blocks and these states."""
    request = cache.open(name, hashes)
    plan = cache.restore(request, limit=len(hashes) * BLOCK)
    assert plan is not None
    needed = cache.primary.needed(request, plan)
    if needed:
        cache.load(request, needed)
    cache.served(request, plan.restored)
    if needed:
        cache.release(needed, request)
    wanted = [*keys(hashes, FULL), *(key for n in states for key in checkpoint(hashes, n))]
    reservation = cache.reserve(request, wanted)
    assert reservation is not None
    cache.commit(set(reservation.keys))
    cache.finish(request)
