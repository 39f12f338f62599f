# SPDX-License-Identifier: Apache-2.0
"""Bookkeeping per key of our manager against vLLM's own, in one process and run.

Each round plays one request per contender, in turn, against pools that are full: store (which
evicts), finish, lookup, load. Figures are medians over the rounds, in microseconds per key.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from vllm.v1.kv_offload.base import OffloadingManager, OffloadKey, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from lab.program import block_hash, say
from tiercache.blocks import GroupKind, GroupSpec, Key
from tiercache.cache import TieredCache
from tiercache.vllm.manager import TierCacheManager

SCHEMA = "tiercache.bench/1"
OPERATIONS = ("store", "finish", "lookup", "load")
BLOCK = 16
FILL = 10_000

Row = dict[str, Any]


def new_keys(start: int, count: int) -> list[OffloadKey]:
    return [make_offload_key(block_hash(i), 0) for i in range(start, start + count)]


def context(name: str, keys: list[OffloadKey]) -> ReqContext:
    ctx = ReqContext(name)
    for i, key in enumerate(keys):
        ctx.set_offload_key_position(key, (i + 1) * BLOCK)
    return ctx


@dataclass
class Contender:
    """One manager, full, and what its operations cost: microseconds per key by operation."""

    manager: OffloadingManager
    costs: dict[str, list[float]] = field(default_factory=dict)

    def play(self, name: str, keys: list[OffloadKey]) -> None:
        """One request that stores ``keys``, and one that looks them up and loads them."""
        done = set(keys)
        first, again = context(name, keys), context(name + "-again", keys)
        self.manager.on_new_request(first)
        self._time("store", keys, lambda: self._store(keys, done, first))
        self._time("finish", keys, lambda: self.manager.on_request_finished(first))
        self.manager.on_new_request(again)
        self._time("lookup", keys, lambda: self._lookup(keys, again))
        self._time("load", keys, lambda: self._load(keys, done, again))
        self.manager.on_request_finished(again)

    def _store(self, keys: list[OffloadKey], done: set[OffloadKey], ctx: ReqContext) -> None:
        output = self.manager.prepare_store(keys, ctx)
        assert output is not None
        assert len(output.keys_to_store) == len(keys)
        self.manager.complete_store(done, ctx)

    def _lookup(self, keys: list[OffloadKey], ctx: ReqContext) -> None:
        lookup = self.manager.lookup
        for key in keys:
            lookup(key, ctx)

    def _load(self, keys: list[OffloadKey], done: set[OffloadKey], ctx: ReqContext) -> None:
        self.manager.prepare_load(keys, ctx)
        self.manager.complete_load(done, ctx)

    def _time(self, op: str, keys: list[OffloadKey], run: Callable[[], None]) -> None:
        start = time.perf_counter()
        run()
        self.costs.setdefault(op, []).append((time.perf_counter() - start) / len(keys) * 1e6)

    def fill(self, count: int) -> None:
        """Store ``count`` keys, in requests of a size that a server sees."""
        for start in range(0, count, FILL):
            keys = new_keys(start, min(FILL, count - start))
            ctx = context(f"fill-{start}", keys)
            self.manager.on_new_request(ctx)
            self._store(keys, set(keys), ctx)
            self.manager.on_request_finished(ctx)

    def median(self, op: str) -> float:
        return statistics.median(self.costs[op])


def ours(slots: int) -> TierCacheManager:
    group = GroupSpec(0, GroupKind.FULL, BLOCK, 4096)
    return TierCacheManager(TieredCache([group], {0: slots}, tokens_per_hash=BLOCK))


def contenders(slots: int) -> dict[str, Contender]:
    return {
        "ours": Contender(ours(slots)),
        "lru": Contender(CPUOffloadingManager(slots, cache_policy="lru")),
        "arc": Contender(CPUOffloadingManager(slots, cache_policy="arc")),
    }


def demote_cost(keys: list[Key], slots: int, rounds: int) -> float:
    """Microseconds per key that the policy of a full pool takes to demote ``keys``."""
    mine = Contender(ours(slots))
    mine.fill(slots)
    assert isinstance(mine.manager, TierCacheManager)
    pool = mine.manager.cache.primary.pools[0]
    costs = []
    for _ in range(rounds):
        start = time.perf_counter()
        pool.demote(keys)
        costs.append((time.perf_counter() - start) / len(keys) * 1e6)
        pool.touch(keys)
    return statistics.median(costs)


def measure(resident: int, sizes: list[int], rounds: int) -> Iterator[Row]:
    """Yield the rows of one pool size."""
    players = contenders(resident)
    for name, player in players.items():
        say(f"filling {name} with {resident:,} keys")
        player.fill(resident)
    start = resident
    for size in sizes:
        say(f"requests of {size:,} keys, {rounds} rounds")
        compete(players, start, size, rounds)
        start += size * rounds
        mine = players["ours"]
        for rival, op in product(("lru", "arc"), OPERATIONS):
            theirs = players[rival].median(op)
            yield row(f"{op}-{rival}", resident, size, mine.median(op), theirs)
    players.clear()
    for size in sizes:
        cost = demote_cost([Key(k) for k in new_keys(0, size)], resident, rounds)
        yield row("demote", resident, size, cost, None)


def compete(players: dict[str, Contender], start: int, size: int, rounds: int) -> None:
    """Play the same requests of ``size`` new keys with every contender, in turn."""
    for player in players.values():
        player.costs.clear()
    for number in range(rounds):
        keys = new_keys(start + number * size, size)
        for player in players.values():
            gc.collect()
            player.play(f"{size}-{number}", keys)


def row(name: str, resident: int, keys: int, mine: float, theirs: float | None) -> Row:
    return {
        "name": name,
        "resident": resident,
        "request_keys": keys,
        "ours_us": round(mine, 3),
        "vllm_us": None if theirs is None else round(theirs, 3),
        "ratio": None if theirs is None else round(theirs / mine, 2),
    }


def table(rows: list[Row]) -> str:
    head = f"{'operation':<14}{'resident':>10}{'keys':>8}{'ours µs':>9}{'vllm µs':>9}{'ratio':>7}"
    lines = [
        f"{r['name']!s:<14}{r['resident']:>10,}{r['request_keys']:>8,}{r['ours_us']:>9}"
        f"{r['vllm_us'] or '-':>9}{r['ratio'] or '-':>7}"
        for r in rows
    ]
    return "\n".join([head, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_primary",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  scripts/bench_primary\n"
        "  scripts/bench_primary --json --resident 100000 --keys 1000,10000",
    )
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--resident", type=numbers, default=[100_000, 1_000_000], metavar="N,…")
    parser.add_argument("--keys", type=numbers, default=[1_000, 10_000, 30_000], metavar="N,…")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    rows = [row for n in args.resident for row in measure(n, args.keys, args.rounds)]
    print(json.dumps({"schema": SCHEMA, "rows": rows}) if args.json else table(rows))


if __name__ == "__main__":
    main()
