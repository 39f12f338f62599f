# SPDX-License-Identifier: Apache-2.0
"""How long one call holds up the engine's scheduler, at its worst, beside vLLM's own manager.

Each round plays a request of many blocks against full pools: it is looked up (a miss), stored in
steps of a prompt's chunk, finished, looked up again and loaded. Each call is timed by itself. That
is done with attention only, then with a recurrent group beside it ("hybrid"), and with ours over a
disk with a million entries that is read slowly ("disk"): a request is brought back from there, and
another one written to it.

Milliseconds. "cpu" is what the calling thread computed: what is worse by the clock waited for
other threads, or for a busy machine. "nothing" is a loop that only counts, once in each step.
"collection" is a garbage collection of the oldest generation with full pools; as vLLM does it,
what was there at the start is left out of it.
"""

import argparse
import gc
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from vllm.utils.gc_utils import freeze_gc_heap
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from lab.bench_primary import BLOCK
from lab.bench_step_disk import slow_disk
from lab.bench_step_player import ATTENTION, RECURRENT, STEP_BLOCKS, Ours, Player, Prompt, Time
from lab.program import block_hash, say
from tiercache.blocks import GroupKind, GroupSpec
from tiercache.cache import TieredCache
from tiercache.vllm.manager import TierCacheManager

SCHEMA: Final = "tiercache.bench/1"
#: Slots of attention for each of the recurrent group.
BLOCKS_PER_STATE: Final = 256
#: Slots that the pool of a cache over a disk has for each block of a request.
SLOTS_PER_BLOCK: Final = 2

Row = dict[str, Any]


def hashes(start: int, count: int) -> list[bytes]:
    return [block_hash(number) for number in range(start, start + count)]


def fill(player: Player, count: int, *, hybrid: bool) -> None:
    """Have the pool full of other requests' blocks, as they come in a server."""
    for start in range(0, count, STEP_BLOCKS):
        part = hashes(start, min(STEP_BLOCKS, count - start))
        prompt = Prompt(f"fill-{start}", part, hybrid)
        ctx = player.open(prompt)
        player.store(prompt, ctx)
        player.manager.on_request_finished(ctx)
    player.watch.times.clear()


def in_memory(slots: int, *, hybrid: bool) -> TieredCache:
    groups = [GroupSpec(ATTENTION, GroupKind.FULL, BLOCK, 4096)]
    sizes = {ATTENTION: slots}
    if hybrid:
        groups.append(GroupSpec(RECURRENT, GroupKind.STATE, BLOCK, 4096))
        sizes[RECURRENT] = slots // BLOCKS_PER_STATE
    return TieredCache(groups, sizes, tokens_per_hash=BLOCK)


def beside_vllm(slots: int, blocks: int, rounds: int, *, hybrid: bool) -> Iterator[Row]:
    states = slots // BLOCKS_PER_STATE if hybrid else 0
    ours = ready(Ours(TierCacheManager(in_memory(slots, hybrid=hybrid))), slots, hybrid=hybrid)
    ours.watch.times["collection"] = collections(rounds)
    theirs = ready(Player(CPUOffloadingManager(slots + states)), slots, hybrid=hybrid)
    theirs.watch.times["collection"] = collections(rounds)
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        prompt = Prompt(f"request-{number}", hashes(slots + number * blocks, blocks), hybrid)
        for player in (ours, theirs):
            with no_collection():
                player.play(prompt)
    yield from rows("hybrid: " if hybrid else "", ours.watch.times, theirs.watch.times)


def ready(player: Player, slots: int, *, hybrid: bool) -> Player:
    """An engine starts, and others use it until the pool is full."""
    say(f"filling {slots:,} slots")
    freeze_gc_heap()
    fill(player, slots, hybrid=hybrid)
    return player


def collections(rounds: int) -> list[Time]:
    watch = Player(CPUOffloadingManager(1)).watch
    for _ in range(rounds):
        watch("collection", gc.collect)
    return watch.times["collection"]


def over_a_disk(slots: int, blocks: int, rounds: int, entries: int) -> Iterator[Row]:
    """The pool holds twice the request, the disk everything."""
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as path:
        say(f"a disk with {entries:,} entries")
        cache = in_memory(SLOTS_PER_BLOCK * blocks, hybrid=False)
        with slow_disk(Path(path), cache, entries) as disk:
            freeze_gc_heap()
            player = Ours(TierCacheManager(cache))
            for number in range(rounds):
                say(f"round {number + 1} of {rounds}, from a slow disk")
                fresh = hashes(slots + number * blocks, blocks)
                with no_collection():
                    player.load(Prompt(f"from-{number}", disk.request(number, blocks), False))
                    player.play(Prompt(f"to-{number}", fresh, False))
    yield from rows("disk: ", player.watch.times, {})


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage before, not meanwhile: whose it would be is a matter of chance."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def rows(
    prefix: str, ours: Mapping[str, Sequence[Time]], theirs: Mapping[str, Sequence[Time]]
) -> Iterator[Row]:
    for name, times in ours.items():
        beside = theirs.get(name)
        wall = sorted(time.wall for time in times)
        yield {
            "name": prefix + name,
            "calls": len(times),
            "median_ms": round(statistics.median(wall), 4),
            "p99_ms": round(wall[(len(wall) * 99 - 1) // 100], 4),
            "worst_ms": round(wall[-1], 4),
            "worst_cpu_ms": round(max(time.cpu for time in times), 4),
            "vllm_worst_ms": beside and round(max(time.wall for time in beside), 4),
            "vllm_worst_cpu_ms": beside and round(max(time.cpu for time in beside), 4),
        }


def table(found: list[Row]) -> str:
    heads = [key for key in found[0] if key != "name"]
    names = [head.removesuffix("_ms").replace("_", " ") for head in heads]
    lines = [f"{'call':<22}" + "".join(f"{name:>16}" for name in names)]
    for row in found:
        cells = ("-" if row[head] is None else row[head] for head in heads)
        lines.append(f"{row['name']:<22}" + "".join(f"{cell:>16}" for cell in cells))
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
    found = [
        *beside_vllm(args.slots, args.blocks, args.rounds, hybrid=False),
        *beside_vllm(args.slots, args.blocks, args.rounds, hybrid=True),
        *over_a_disk(args.slots, args.blocks, args.rounds, args.entries),
    ]
    print(json.dumps({"schema": SCHEMA, "rows": found}) if args.json else table(found))


if __name__ == "__main__":
    main()
