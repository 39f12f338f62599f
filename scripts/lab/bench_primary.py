# SPDX-License-Identifier: Apache-2.0
"""Bookkeeping per key of our manager against vLLM's own, in one process and run.

Each round plays one request per contender, in turn, against pools that are full: store (which
evicts), finish, lookup, load. Figures are medians over the rounds, in microseconds per key.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from vllm.v1.kv_offload.base import OffloadingManager, OffloadKey, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from tiercache.blocks import GroupKind, GroupSpec, Key
from tiercache.cache import TieredCache
from tiercache.vllm.manager import TierCacheManager

SCHEMA = "tiercache.bench/1"
OPERATIONS = ("store", "finish", "lookup", "load")
BLOCK = 16
FILL = 10_000


def new_keys(start: int, count: int) -> list[OffloadKey]:
    return [make_offload_key(i.to_bytes(32, "big"), 0) for i in range(start, start + count)]


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

    def play(self, name: str, keys: list[OffloadKey], *, keep: bool = True) -> None:
        """One request that stores ``keys``, and one that looks them up and loads them."""
        ctx = context(name, keys)
        self.manager.on_new_request(ctx)
        done = set(keys)
        self._time("store", keys, keep, lambda: self._store(keys, done, ctx))
        self._time("finish", keys, keep, lambda: self.manager.on_request_finished(ctx))
        if not keep:
            return
        again = context(name + "-again", keys)
        self.manager.on_new_request(again)
        self._time("lookup", keys, keep, lambda: self._lookup(keys, again))
        self._time("load", keys, keep, lambda: self._load(keys, done, again))
        self.manager.on_request_finished(again)

    def _store(self, keys: list[OffloadKey], done: set[OffloadKey], ctx: ReqContext) -> None:
        output = self.manager.prepare_store(keys, ctx)
        assert output is not None and len(output.keys_to_store) == len(keys)
        self.manager.complete_store(done, ctx)

    def _lookup(self, keys: list[OffloadKey], ctx: ReqContext) -> None:
        lookup = self.manager.lookup
        for key in keys:
            lookup(key, ctx)

    def _load(self, keys: list[OffloadKey], done: set[OffloadKey], ctx: ReqContext) -> None:
        self.manager.prepare_load(keys, ctx)
        self.manager.complete_load(done, ctx)

    def _time(self, op: str, keys: list[OffloadKey], keep: bool, run: Callable[[], None]) -> None:
        start = time.perf_counter()
        run()
        if keep:
            cost = (time.perf_counter() - start) / len(keys) * 1e6
            self.costs.setdefault(op, []).append(cost)

    def fill(self, count: int) -> None:
        for start in range(0, count, FILL):
            self.play(f"fill-{start}", new_keys(start, min(FILL, count - start)), keep=False)

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
        pool.policy.demote(keys)
        costs.append((time.perf_counter() - start) / len(keys) * 1e6)
        pool.policy.touch(keys)
    return statistics.median(costs)


def measure(resident: int, sizes: list[int], rounds: int) -> Iterator[dict[str, object]]:
    """Yield the rows of one pool size."""
    players = contenders(resident)
    for name, player in players.items():
        say(f"filling {name} with {resident:,} keys")
        player.fill(resident)
    start = resident
    for size in sizes:
        say(f"requests of {size:,} keys, {rounds} rounds")
        for player in players.values():
            player.costs.clear()
        for round_ in range(rounds):
            keys = new_keys(start, size)
            start += size
            for player in players.values():
                gc.collect()
                player.play(f"{size}-{round_}", keys)
        mine = players["ours"]
        for rival in ("lru", "arc"):
            for op in OPERATIONS:
                yield row(f"{op}-{rival}", resident, size, mine.median(op), players[rival].median(op))
    players.clear()
    for size in sizes:
        cost = demote_cost([Key(k) for k in new_keys(0, size)], resident, rounds)
        yield row("demote", resident, size, cost, None)


def row(
    name: str, resident: int, keys: int, mine: float, theirs: float | None
) -> dict[str, object]:
    return {
        "name": name,
        "resident": resident,
        "request_keys": keys,
        "ours_us": round(mine, 3),
        "vllm_us": None if theirs is None else round(theirs, 3),
        "ratio": None if theirs is None else round(theirs / mine, 2),
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(rows: list[dict[str, object]]) -> str:
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
