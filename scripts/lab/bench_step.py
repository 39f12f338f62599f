# SPDX-License-Identifier: Apache-2.0
"""How long one call holds up the engine's scheduler, at its worst, beside vLLM's own manager.

Each round plays a request of many blocks, with attention only, against full pools: it is looked up
(a miss), stored in steps of a prompt's chunk, finished, looked up again and loaded. Each call is
timed by itself. Ours are then played again over a disk with a million entries, which is read
slowly: a request is brought back from there, and another one written to it. Milliseconds.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from vllm.v1.kv_offload.base import LookupResult, OffloadingManager, OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from lab.bench_primary import BLOCK, context, new_keys
from lab.bench_step_disk import slow_disk
from tiercache.blocks import GROUP_SUFFIX_BYTES, GroupKind, GroupSpec
from tiercache.cache import TieredCache
from tiercache.vllm.manager import TierCacheManager

SCHEMA: Final = "tiercache.bench/1"
#: Blocks whose copies one step of the engine begins: 8,192 tokens of a prompt.
STEP_BLOCKS: Final = 512
#: How long a request may take to come back from the disk.
PATIENCE_S: Final = 120.0

Answer = TypeVar("Answer")
Row = dict[str, Any]


class Stopwatch:
    """Milliseconds of calls, by name."""

    def __init__(self) -> None:
        self.times: defaultdict[str, list[float]] = defaultdict(list)

    def __call__(self, name: str, call: Callable[[], Answer]) -> Answer:
        start = time.perf_counter()
        answer = call()
        self.times[name].append((time.perf_counter() - start) * 1e3)
        return answer


class Player:
    """Requests to one manager, as vLLM's scheduler makes them."""

    def __init__(self, manager: OffloadingManager) -> None:
        self.manager = manager
        self.watch = Stopwatch()

    def open(self, name: str, keys: list[OffloadKey]) -> ReqContext:
        ctx = context(name, keys)
        self.expect(name, keys)
        self.watch("open", lambda: self.manager.on_new_request(ctx))
        return ctx

    def expect(self, name: str, keys: list[OffloadKey]) -> None:
        """Say what only our connector says."""

    def look_up(self, name: str, keys: list[OffloadKey], ctx: ReqContext) -> bool | None:
        """Whether all of ``keys`` are there; None while the request should ask again."""
        lookup, hit = self.manager.lookup, LookupResult.HIT
        return all(lookup(key, ctx) is hit for key in keys)

    def step(self) -> None:
        """End a step of the engine."""

    def store(self, keys: list[OffloadKey], ctx: ReqContext) -> None:
        for start in range(0, len(keys), STEP_BLOCKS):
            part = keys[start : start + STEP_BLOCKS]
            output = self.watch("store", partial(self.manager.prepare_store, part, ctx))
            if output is None or len(output.keys_to_store) < len(part):
                raise RuntimeError("a full pool did not make room")
            self.watch("stored", partial(self.manager.complete_store, set(part), ctx))
            self.step()

    def play(self, name: str, keys: list[OffloadKey]) -> None:
        """One request that stores ``keys``, and one that loads them."""
        first = self.open(name, keys)
        self.watch("lookup, miss", lambda: self.look_up(name, keys, first))
        self.store(keys, first)
        self.watch("finish", lambda: self.manager.on_request_finished(first))
        self.load(f"{name}-again", keys)

    def load(self, name: str, keys: list[OffloadKey]) -> None:
        ctx = self.open(name, keys)
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.watch("lookup", lambda: self.look_up(name, keys, ctx))) is None:
            self.step()
            if time.monotonic() > deadline:
                raise RuntimeError("the request did not come back from the disk")
        if not found:
            raise RuntimeError("what was stored is not there")
        done = set(keys)
        self.watch("load", lambda: self.manager.prepare_load(keys, ctx))
        self.watch("loaded", lambda: self.manager.complete_load(done, ctx))
        self.watch("finish", lambda: self.manager.on_request_finished(ctx))


class Ours(Player):
    """Our manager, told what our connector tells it."""

    manager: TierCacheManager

    def expect(self, name: str, keys: list[OffloadKey]) -> None:
        self.manager.expect(name, [key[:-GROUP_SUFFIX_BYTES] for key in keys])

    def look_up(self, name: str, keys: list[OffloadKey], ctx: ReqContext) -> bool | None:
        self.manager.begin_lookup(name, start=0, limit=len(keys) * BLOCK)
        try:
            return None if self.manager.is_waiting else super().look_up(name, keys, ctx)
        finally:
            self.manager.end_lookup()

    def step(self) -> None:
        self.watch("step", lambda: self.manager.step(1))


def fill(player: Player, count: int) -> None:
    """Have the pool full of other requests' blocks, as they come in a server."""
    for start in range(0, count, STEP_BLOCKS):
        keys = new_keys(start, min(STEP_BLOCKS, count - start))
        ctx = player.open(f"fill-{start}", keys)
        player.store(keys, ctx)
        player.manager.on_request_finished(ctx)
    player.watch.times.clear()


def in_memory(slots: int) -> TieredCache:
    group = GroupSpec(0, GroupKind.FULL, BLOCK, 4096)
    return TieredCache([group], {0: slots}, tokens_per_hash=BLOCK)


def beside_vllm(slots: int, blocks: int, rounds: int) -> Iterator[Row]:
    ours, theirs = Ours(TierCacheManager(in_memory(slots))), Player(CPUOffloadingManager(slots))
    for player in (ours, theirs):
        say(f"filling {slots:,} slots")
        fill(player, slots)
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        keys = new_keys(slots + number * blocks, blocks)
        for player in (ours, theirs):
            with no_collection():
                player.play(f"request-{number}", keys)
    ours.watch.times.pop("step")
    for name, times in ours.watch.times.items():
        yield row(name, times, theirs.watch.times[name])


def over_a_disk(slots: int, blocks: int, rounds: int, entries: int) -> Iterator[Row]:
    """The pool holds twice the request, the disk everything."""
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as path:
        say(f"a disk with {entries:,} entries")
        cache = in_memory(2 * blocks)
        with slow_disk(Path(path), cache, entries) as disk:
            player = Ours(TierCacheManager(cache))
            for number in range(rounds):
                say(f"round {number + 1} of {rounds}, from a slow disk")
                keys = [OffloadKey(key) for key in disk.request(number, blocks)]
                with no_collection():
                    player.load(f"from-disk-{number}", keys)
                    player.play(f"to-disk-{number}", new_keys(slots + number * blocks, blocks))
    for name, times in player.watch.times.items():
        yield row(f"disk: {name}", times, None)


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage before, not meanwhile: whose it would be is a matter of chance."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def row(name: str, times: Sequence[float], theirs: Sequence[float] | None) -> Row:
    return {
        "name": name,
        "calls": len(times),
        "median_ms": round(statistics.median(times), 4),
        "p99_ms": round(sorted(times)[(len(times) * 99 - 1) // 100], 4),
        "worst_ms": round(max(times), 4),
        "vllm_worst_ms": None if theirs is None else round(max(theirs), 4),
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(rows: list[Row]) -> str:
    heads = ("calls", "median_ms", "p99_ms", "worst_ms", "vllm_worst_ms")
    lines = [f"{'call':<20}" + "".join(f"{head.removesuffix('_ms'):>12}" for head in heads)]
    for found in rows:
        cells = ("-" if found[head] is None else found[head] for head in heads)
        lines.append(f"{found['name']:<20}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  scripts/bench_step\n  scripts/bench_step --json --slots 100000",
    )
    parser.add_argument("--slots", type=int, default=1_000_000, metavar="N", help="of the pool")
    parser.add_argument("--blocks", type=int, default=30_000, metavar="N", help="of a request")
    parser.add_argument("--entries", type=int, default=1_000_000, metavar="N", help="of the disk")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    rows = [
        *beside_vllm(args.slots, args.blocks, args.rounds),
        *over_a_disk(args.slots, args.blocks, args.rounds, args.entries),
    ]
    print(json.dumps({"schema": SCHEMA, "rows": rows}) if args.json else table(rows))


if __name__ == "__main__":
    main()
