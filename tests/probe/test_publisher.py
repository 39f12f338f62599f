# SPDX-License-Identifier: Apache-2.0
"""A cache that serves, and what the readers of its segment are told."""

import os
import socket
from pathlib import Path

import pytest

from tests.core_helpers import BLOCK, FULL, chain, checkpoint, keys
from tests.probe.conftest import Watching
from tests.probe.played import MAIN, make_cache, turn
from tests.tier_helpers import Clock
from tiercache import __version__
from tiercache.cache import TieredCache
from tiercache.probe.publisher import INTERVAL_S
from tiercache.replay.simulate import Player, Setup
from tiercache.replay.workloads import IDLE_CONVERSATION, scenario
from tiercache.stats.model import Kind, Loss, Phase, Slots, Where

# --- the published scenario


def test_demotion_keeps_the_idle_conversation(watch: Watching) -> None:
    setup = Setup.uniform(block_tokens=1_632, token_slots=2_255, state_slots=30, state_groups=7)
    player = Player(setup)
    seen = watch(player.cache, player.clock)
    *before, last = scenario(IDLE_CONVERSATION, block_tokens=1_632)
    for each in before:
        player.play(each)
    idle = seen.sequence(1)
    assert (idle.turns, idle.last_used, idle.tokens) == (2, 60.0, 504_288)
    assert idle.cached == idle.restorable == idle.restorable_ram == 504_288
    assert (idle.loss, idle.live) == (None, 3)
    assert [each.turns for each in seen.look().sequences] == [2, 40, 40, 40]
    group = seen.group("g1")
    assert (group.counts[Kind.EVICTED_DEMOTED], group.counts[Kind.EVICTED_LIVE]) == (214, 0)
    assert group.slots.demoted == 21
    [first, *_] = [victim for victim in seen.victims("g1") if victim.slot_class]
    assert (first.sequence, first.last_used) == (1, 60.0)
    assert group.oldest_live == 60.0
    demotions = seen.told(Kind.DEMOTED)
    assert sum(event.count for event in demotions if event.group == "g1") == 235
    assert {event.sequence for event in demotions} == {1, 2, 3, 4}
    player.play(last)
    assert seen.sequence(1).restored == 504_288
    assert seen.told(Kind.RESTORED)[-1].tokens == 504_288


def test_without_demotion_it_is_stranded(watch: Watching) -> None:
    setup = Setup.uniform(
        block_tokens=1_632, token_slots=2_255, state_slots=30, state_groups=7, demote=False
    )
    player = Player(setup)
    seen = watch(player.cache, player.clock)
    *before, last = scenario(IDLE_CONVERSATION, block_tokens=1_632)
    for each in before:
        player.play(each)
    idle = seen.sequence(1)
    assert (idle.cached, idle.restorable, idle.stranded) == (504_288, 0, 504_288)
    assert idle.loss == Loss("g1", 504_288, 960.0, 4)
    assert (idle.where, idle.live) == (Where.RAM_BLOCKS, 0)
    player.play(last)
    [miss] = [event for event in seen.told(Kind.MISSED) if event.sequence == 1 and event.when > 60]
    assert (miss.group, miss.tokens) == ("g1", 507_552)
    assert seen.look().totals["lost_tokens"] == 504_288
    assert seen.sequence(1).source == "miss"


# --- requests


def test_what_does_not_change(
    watch: Watching, cache: TieredCache, clock: Clock, tmp_path: Path
) -> None:
    seen = watch(cache, clock, name="org/model", workers=4, rank=3)
    pool = seen.look().pool
    assert pool is not None
    assert (pool.name, pool.pid, pool.host) == ("org/model", os.getpid(), socket.gethostname())
    assert (pool.started, pool.workers, pool.writer) == (1000.0, 4, "serve")
    assert (pool.block_tokens, pool.policy, pool.tiercache) == (BLOCK, "lru", __version__)
    assert Path(pool.path).parent == tmp_path
    assert seen.publisher.path.name == f"org_model.{os.getpid()}.3.tcs"
    assert [(g.name, g.kind, g.slot_bytes) for g in seen.look().groups] == [
        ("g0", "full", 4 * 4096),
        ("g1", "state", 4 * 4096),
        ("g2", "state", 4 * 4096),
    ]


def test_a_pool_is_there_before_its_first_request(
    watch: Watching, cache: TieredCache, clock: Clock
) -> None:
    snapshot = watch(cache, clock).look()
    assert (snapshot.phase, snapshot.running, snapshot.alive) == (Phase.RUN, 0, True)
    assert [group.slots for group in snapshot.groups] == [
        Slots(32, 0, 0, 0, 0),
        *[Slots(8, 0, 0, 0, 0)] * 2,
    ]
    assert [*snapshot.sequences, *snapshot.victims, *snapshot.events] == []


def test_a_restore_and_its_time(watch: Watching, cache: TieredCache, clock: Clock) -> None:
    seen = watch(cache, clock, workers=2)
    turn(cache, MAIN, 8)
    request = cache.open("again", chain("a", 10))
    assert cache.restore(request, limit=10 * BLOCK) is not None
    needed = [*keys(MAIN, FULL), *checkpoint(MAIN, 8)]
    clock.now += 1.0
    cache.load(request, needed)
    cache.served(request, 8 * BLOCK)
    cache.poll()
    assert seen.look().running == 1
    assert [group.slots.pinned for group in seen.look().groups] == [8, 1, 1]
    clock.now += 0.5
    cache.release(needed, request)
    cache.finish(request)
    [event] = seen.told(Kind.RESTORED)
    assert (event.group, event.tier, event.count, event.sequence) == (None, None, 1, 1)
    assert (event.tokens, event.nbytes, event.seconds) == (8 * BLOCK, 10 * 2 * 4096, 0.5)
    snapshot = seen.look()
    assert snapshot.ram is not None
    assert (snapshot.ram.requests, snapshot.ram.tokens) == (1, 8 * BLOCK)
    assert sum(snapshot.ram.histogram) == 1
    assert snapshot.totals["restored_tokens"] == 8 * BLOCK
    sequence = seen.sequence(1)
    assert (sequence.source, sequence.restored, sequence.seconds) == ("ram", 8 * BLOCK, 0.5)


def test_a_first_request_is_a_miss(watch: Watching, cache: TieredCache, clock: Clock) -> None:
    seen = watch(cache, clock)
    turn(cache, MAIN, 8)
    [event] = seen.told(Kind.MISSED)
    assert (event.sequence, event.tokens, event.group) == (1, 8 * BLOCK, "g0")
    missed = seen.look().missed
    assert missed is not None
    assert (missed.requests, missed.tokens) == (1, 8 * BLOCK)


def test_a_restore_that_falls_short_says_so(
    watch: Watching, cache: TieredCache, clock: Clock
) -> None:
    seen = watch(cache, clock)
    turn(cache, MAIN, 5)
    turn(cache, MAIN, name="b")
    missed = seen.told(Kind.MISSED)[-1]
    assert (missed.tokens, missed.group) == (3 * BLOCK, "g1")
    assert seen.look().totals["lost_tokens"] == 3 * BLOCK
    assert [event.tokens for event in seen.told(Kind.RESTORED)] == [5 * BLOCK]


def test_a_load_that_nobody_owns_up_to_is_not_counted(
    watch: Watching, cache: TieredCache, clock: Clock
) -> None:
    seen = watch(cache, clock)
    turn(cache, MAIN, 8)
    request = cache.open("b", MAIN)
    cache.load(request, keys(MAIN, FULL))
    cache.finish(request)
    cache.release(keys(MAIN, FULL))
    assert seen.told(Kind.RESTORED) == []
    assert seen.group("g0").slots.pinned == 0


def test_prompts_without_a_whole_block_have_no_sequence(
    watch: Watching, cache: TieredCache, clock: Clock
) -> None:
    seen = watch(cache, clock)
    cache.finish(cache.open("short", []))
    assert seen.look().sequences == ()


# --- entries


def test_stores_of_states_say_where_they_end(
    watch: Watching, cache: TieredCache, clock: Clock
) -> None:
    seen = watch(cache, clock, workers=2)
    turn(cache, MAIN, 5)
    found = [(e.group, e.count, e.sequence, e.tokens, e.nbytes) for e in seen.told(Kind.STORED)]
    size = 2 * 4096
    assert sorted(found, key=str) == [
        ("g0", 8, 1, 0, 8 * size),
        ("g1", 1, 1, 5 * BLOCK, size),
        ("g2", 1, 1, 5 * BLOCK, size),
    ]


def test_an_eviction_is_told_with_who_caused_it(watch: Watching, clock: Clock) -> None:
    cache = make_cache(clock, state_slots=1)
    seen = watch(cache, clock)
    turn(cache, MAIN, 8)
    turn(cache, chain("b", 4), 4, name="b")
    events = seen.told(Kind.EVICTED_LIVE)
    # The state of the other group is of no use any more, and goes as one that is demoted.
    assert [(e.group, e.count, e.sequence, e.tokens) for e in events] == [("g1", 1, 2, 8 * BLOCK)]
    assert seen.sequence(1).loss == Loss("g1", 8 * BLOCK, 1000.0, 2)


def test_what_a_failed_copy_leaves(watch: Watching, cache: TieredCache, clock: Clock) -> None:
    seen = watch(cache, clock)
    request = cache.open("a", MAIN)
    reservation = cache.reserve(request, keys(MAIN, FULL))
    assert reservation is not None
    cache.fail(reservation.keys[:3])
    cache.commit(reservation.keys[3:])
    cache.finish(request)
    assert [(e.kind, e.count) for e in seen.told(Kind.FAILED, Kind.STORED)] == [
        (Kind.FAILED, 3),
        (Kind.STORED, 5),
    ]
    assert seen.group("g0").counts[Kind.FAILED] == 3


def test_no_room_is_told(watch: Watching, clock: Clock) -> None:
    cache = make_cache(clock, full_slots=4)
    seen = watch(cache, clock)
    request = cache.open("a", MAIN)
    assert cache.reserve(request, keys(MAIN, FULL)) is None
    cache.finish(request)
    [event] = seen.told(Kind.REFUSED)
    assert (event.count, event.sequence) == (8, 1)


def test_demoted_states_that_are_used_again_are_counted(
    watch: Watching, cache: TieredCache, clock: Clock
) -> None:
    seen = watch(cache, clock)
    turn(cache, MAIN, 2, 8)
    turn(cache, MAIN[:2], name="b")
    assert seen.look().totals["demotions_reused"] == 1


def test_a_reset_leaves_nothing(watch: Watching, cache: TieredCache, clock: Clock) -> None:
    seen = watch(cache, clock)
    turn(cache, MAIN, 8)
    running = cache.open("b", chain("b", 4))
    cache.reset()
    clock.now += INTERVAL_S
    cache.poll()
    snapshot = seen.look()
    assert [(event.group, event.count) for event in seen.told(Kind.RESET)] == [
        ("g0", 8),
        ("g1", 1),
        ("g2", 1),
    ]
    assert snapshot.victims == ()
    assert all(group.slots.spare == group.slots.capacity for group in snapshot.groups)
    assert [(each.cached, each.restorable) for each in snapshot.sequences] == [(0, 0)] * 2
    cache.finish(running)
    turn(cache, MAIN, 8, name="c")
    assert seen.sequence(1).restorable == 8 * BLOCK


def test_slots_know_whose_they_are(watch: Watching, clock: Clock) -> None:
    cache = make_cache(clock, full_slots=10)
    seen = watch(cache, clock)
    turn(cache, MAIN, 8)
    turn(cache, chain("b", 5), 5, name="b")
    owners = {victim.slot: victim.sequence for victim in seen.victims("g0")}
    pool = cache.primary.pools[FULL]
    assert owners == {slot: 1 if key[:-4] in MAIN else 2 for key, slot in pool.ready.items()}


def test_the_oldest_sequences_lose_their_rows(
    watch: Watching, cache: TieredCache, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watch(cache, clock)
    monkeypatch.setattr(seen.publisher._board.sequences, "_max_hashes", 10)
    for name in "abc":
        turn(cache, chain(name, 6), 6, name=name)
    snapshot = seen.look()
    assert [each.number for each in snapshot.sequences] == [3]
    assert snapshot.sequences_dropped == 2
