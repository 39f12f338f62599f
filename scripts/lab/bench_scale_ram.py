# SPDX-License-Identifier: Apache-2.0
"""What the scheduler pays per key in a primary tier of so many keys, for scripts/bench_scale.

Covers one full-attention group under LRU, through the public API. Called in a process of its own.
State groups and other policies cost more per key and have far fewer keys.
"""

import gc
import time
from collections.abc import Callable, Sequence
from statistics import median

from lab.bench_scale_disk import rss_bytes, summed
from lab.bench_scale_report import Figures
from lab.program import block_hash
from tiercache.blocks import GroupKind, GroupSpec, Key, make_key
from tiercache.cache import TieredCache

#: Tokens of a block, and keys that a step of 8,192 tokens offers.
BLOCK, STEP = 16, 512


def primary(resident: int, prefix: int, rounds: int) -> Figures:
    """Fill a tier, replace every key once, then play requests of ``prefix`` keys.

    Microseconds are CPU time per key.
    """
    gc.collect()
    before, _ = rss_bytes()
    group = GroupSpec(0, GroupKind.FULL, BLOCK, 4096)
    cache = TieredCache([group], {0: resident}, tokens_per_hash=BLOCK)
    for first in range(0, resident, prefix):
        _store(cache, first, min(prefix, resident - first))
    figures: Figures = {"rss_bytes": float(rss_bytes()[0] - before)}
    steps = [_store(cache, first, STEP) for first in range(resident, 2 * resident, STEP)]
    figures |= summed("turn", steps, len(steps) * STEP)
    costs: dict[str, list[float]] = {}
    for number in range(rounds):
        _play(cache, 4 * resident + number * prefix, prefix, costs)
    return figures | {f"{name}_us": median(found) for name, found in costs.items()}


def _store(cache: TieredCache, first: int, count: int) -> float:
    """CPU seconds of one request that stores ``count`` new keys."""
    hashes, keys = _names(first, count)
    start = time.thread_time()
    request = cache.open(str(first), hashes)
    reservation = cache.reserve(request, keys)
    assert reservation is not None
    cache.commit(reservation.keys)
    cache.finish(request)
    return time.thread_time() - start


def _play(cache: TieredCache, first: int, count: int, costs: dict[str, list[float]]) -> None:
    """One request that stores, and one that plans and loads the same with names of its own."""
    costs.setdefault("store", []).append(_store(cache, first, count) / count * 1e6)
    hashes, keys = _names(first, count)
    request, done = cache.open("again", hashes), set(keys)
    calls: Sequence[tuple[str, Callable[[], object]]] = (
        ("plan", lambda: cache.plan(request, limit=count * BLOCK)),
        ("load", lambda: cache.load(request, keys)),
        ("release", lambda: cache.release(done, request)),
        ("finish", lambda: cache.finish(request)),
    )
    for name, call in calls:
        start = time.thread_time()
        call()
        costs.setdefault(name, []).append((time.thread_time() - start) / count * 1e6)


def _names(first: int, count: int) -> tuple[list[bytes], list[Key]]:
    hashes = list(map(block_hash, range(first, first + count)))
    return hashes, [make_key(each, 0) for each in hashes]
