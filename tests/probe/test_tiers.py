# SPDX-License-Identifier: Apache-2.0
"""What a segment tells of secondary tiers, and of restores from them."""

from tests.core_helpers import BLOCK, FULL, checkpoint, keys
from tests.probe.conftest import Watching
from tests.probe.played import MAIN
from tests.tiering.rig import Rig
from tiercache.errors import TierCacheError
from tiercache.probe.publisher import INTERVAL_S
from tiercache.stats.model import Health, Kind


def test_a_restore_from_below(watch: Watching) -> None:
    rig = Rig()
    seen = watch(rig.cache, rig.clock)
    rig.stock([*keys(MAIN, FULL), *checkpoint(MAIN, 8)])
    request = rig.open(MAIN)
    assert rig.ask(request) is None
    rig.after(0.25)
    rig.end()
    assert rig.ask(request) == 8
    needed = [*keys(MAIN, FULL), *checkpoint(MAIN, 8)]
    rig.cache.load(request, needed)
    rig.cache.served(request, 8 * BLOCK)
    rig.clock.now += 0.5
    rig.cache.release(needed, request)
    rig.cache.finish(request)
    [event] = seen.told(Kind.RESTORED)
    assert (event.tier, event.tokens, event.seconds) == ("manual0", 8 * BLOCK, 0.75)
    [tier] = seen.look().tiers
    assert (tier.kind, tier.health, tier.restores.requests) == ("manual", Health.OK, 1)
    assert (tier.restores.tokens, tier.restores.nbytes) == (8 * BLOCK, 10 * 4096)
    assert tier.counts["loaded"] == 10
    ram = seen.look().ram
    assert ram is not None
    assert ram.requests == 0
    assert {(e.group, e.count, e.sequence) for e in seen.told(Kind.PROMOTED)} == {
        ("g0", 8, 1),
        ("g1", 1, 1),
        ("g2", 1, 1),
    }
    assert seen.sequence(1).source == "manual0"


def test_spills_and_their_failures(watch: Watching) -> None:
    rig = Rig()
    seen = watch(rig.cache, rig.clock)
    rig.turn(MAIN, 8)
    rig.cache.poll()
    [first, second] = keys(MAIN[:2], FULL)
    rig.end(failed=lambda key: key in (first, second))
    assert [(e.group, e.tier, e.count) for e in seen.told(Kind.SPILLED)] == [
        ("g0", "manual0", 6),
        ("g1", "manual0", 1),
        ("g2", "manual0", 1),
    ]
    [failed] = seen.told(Kind.TIER_FAILED)
    assert (failed.group, failed.tier, failed.count, failed.sequence) == ("g0", "manual0", 2, 1)
    rig.settle()
    rig.after(INTERVAL_S)
    counts = seen.group("g0").counts
    assert (counts[Kind.SPILLED], counts[Kind.TIER_FAILED]) == (6, 2)
    assert {v.slot: v.below for v in seen.victims("g0")}.keys() == set(range(8))
    assert sum(victim.below is None for victim in seen.victims("g0")) == 2


def test_what_waits_to_be_spilled(watch: Watching) -> None:
    rig = Rig()
    seen = watch(rig.cache, rig.clock)
    rig.turn(MAIN, 8)
    [tier] = seen.look().tiers
    assert tier.queued == 10
    rig.cache.poll()
    rig.after(INTERVAL_S)
    [tier] = seen.look().tiers
    assert (tier.queued, tier.jobs) == (0, 3)
    assert seen.group("g0").slots.pinned == 8
    rig.tier.sicken()
    rig.after(INTERVAL_S)
    rig.end()
    assert seen.look().tiers[0].health is Health.RESTING


def test_late_restores_are_counted(watch: Watching) -> None:
    rig = Rig()
    seen = watch(rig.cache, rig.clock)
    rig.stock([*keys(MAIN, FULL), *checkpoint(MAIN, 8)])
    request = rig.open(MAIN)
    assert rig.ask(request) is None
    rig.after(6.0)
    assert rig.ask(request) == 0
    rig.cache.served(request, 0)
    rig.cache.finish(request)
    assert (seen.look().totals["late"], seen.look().totals["unworthy"]) == (1, 0)
    missed = seen.look().missed
    assert missed is not None
    assert sum(missed.histogram) == 1


def test_the_gauges_of_an_index(watch: Watching) -> None:
    def closed() -> dict[str, int]:
        raise TierCacheError("the index is closed")

    rig = Rig()
    rig.tier.index_info = lambda: {"map_bytes": 8192, "readers": 1}
    seen = watch(rig.cache, rig.clock)
    assert seen.look().tiers[0].index == {"map_bytes": 8192, "readers": 1}
    rig.tier.index_info = closed
    rig.turn(MAIN)
    assert seen.look().tiers[0].index == {}
