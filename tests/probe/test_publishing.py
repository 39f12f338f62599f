# SPDX-License-Identifier: Apache-2.0
"""When a segment is written, and whether at all."""

from pathlib import Path

import pytest

from tests.core_helpers import BLOCK, FULL, chain, checkpoint, keys
from tests.probe.conftest import Watching
from tests.probe.played import MAIN, make_cache, turn
from tests.tier_helpers import Clock
from tiercache.cache import TieredCache
from tiercache.probe.attach import attach
from tiercache.probe.publisher import INTERVAL_S
from tiercache.stats.model import Kind, Phase

# --- when


def test_tables_are_published_once_per_interval(
    watch: Watching, cache: TieredCache, clock: Clock
) -> None:
    seen = watch(cache, clock)
    request = cache.open("a", MAIN)
    reservation = cache.reserve(request, keys(MAIN, FULL))
    assert reservation is not None
    cache.commit(reservation.keys)
    cache.poll()
    # Events are there at once, tables are not.
    assert [event.kind for event in seen.look().events] == [Kind.STORED]
    assert seen.group("g0").slots.live == 0
    clock.now += INTERVAL_S
    cache.poll()
    assert seen.group("g0").slots.live == 8
    assert seen.look().heartbeat == clock.now
    cache.finish(request)


def test_the_heart_beats_while_a_request_runs(
    watch: Watching, cache: TieredCache, clock: Clock
) -> None:
    seen = watch(cache, clock)
    request = cache.open("a", MAIN)
    for _ in range(3):
        clock.now += INTERVAL_S
        cache.poll()
        assert seen.look().heartbeat == clock.now
    cache.finish(request)
    last = clock.now
    clock.now += 10.0
    cache.poll()
    assert (seen.look().heartbeat, seen.look().running) == (last, 0)


def test_what_ends_after_the_last_request_is_published_at_once(
    watch: Watching, cache: TieredCache, clock: Clock
) -> None:
    """An engine without requests makes no step that would."""
    seen = watch(cache, clock)
    request = cache.open("a", MAIN)
    reservation = cache.reserve(request, [*keys(MAIN, FULL), *checkpoint(MAIN, 8)])
    assert reservation is not None
    cache.finish(request)
    assert seen.group("g0").slots.storing == 8
    assert seen.look().running == 0
    cache.commit(reservation.keys)
    assert seen.group("g0").slots.live == 8
    assert seen.sequence(1).restorable == 8 * BLOCK


def test_a_publication_takes_no_more_time_than_it_may(
    watch: Watching, cache: TieredCache, clock: Clock
) -> None:
    """Without any, one sequence and one group each time, all of them in turn."""
    seen = watch(cache, clock, budget_s=0.0)
    for name in "abc":
        turn(cache, chain(name, 4), 4, name=name)
    request = cache.open("d", chain("d", 4))
    cache.reset()
    for gone in (1, 2, 3, 4):
        clock.now += INTERVAL_S
        cache.commit([])
        assert sum(not each.cached for each in seen.look().sequences) == gone
    cache.finish(request)


def test_the_end_is_told(watch: Watching, cache: TieredCache, clock: Clock) -> None:
    seen = watch(cache, clock)
    turn(cache, MAIN, 8)
    cache.open("b", MAIN)
    cache.close()
    snapshot = seen.look()
    assert (snapshot.phase, snapshot.running) == (Phase.CLOSED, 0)
    assert snapshot.groups[0].slots.live == 8
    assert cache.observer is None
    assert cache.journal.listeners == []
    turn(cache, MAIN, 8, name="c")
    assert seen.look().events_total == snapshot.events_total


def test_prompts_stay_here(watch: Watching, cache: TieredCache, clock: Clock) -> None:
    seen = watch(cache, clock)
    turn(cache, chain("secret", 8), 8, name="whose-request")
    content = seen.publisher.path.read_bytes()
    assert b"secret" not in content
    assert b"whose-request" not in content


# --- whether at all


def test_nothing_is_written_if_it_is_turned_off(
    cache: TieredCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERCACHE_STATS", "0")
    assert attach(cache, name="model", directory=tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    assert cache.observer is None


def test_where_nothing_can_be_written_the_cache_serves(
    cache: TieredCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert attach(cache, name="model", directory=tmp_path / "file") is None
    assert "no stats segment is written" in caplog.text
    turn(cache, MAIN, 8)


def test_segments_of_processes_that_ended_are_cleared_away(
    watch: Watching, clock: Clock, tmp_path: Path
) -> None:
    for number in range(6):
        tmp_path.joinpath(f"old.{4_000_000 + number}.0.tcs").write_bytes(b"")
    watch(make_cache(clock), clock)
    assert len(list(tmp_path.iterdir())) == 5
