# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest

from tests.cli import segments
from tiercache.cli import rates
from tiercache.stats.model import Group, Kind, Phase, Restores, Slots, Snapshot

BEFORE = Snapshot(
    taken=segments.NOW,
    heartbeat=segments.NOW,
    phase=Phase.RUN,
    alive=True,
    running=1,
    pool=segments.POOL,
    groups=segments.GROUPS,
    tiers=(segments.NVME,),
    ram=segments.RAM,
    missed=segments.MISSED,
    sequences=segments.SEQUENCES,
)


def after(seconds: float = 2.0, **changes: object) -> Snapshot:
    return replace(BEFORE, taken=segments.NOW + seconds, **changes)  # type: ignore[arg-type]


def test_nothing_happened() -> None:
    row = rates.interval(BEFORE, after())
    assert row == {
        "time": segments.NOW + 2,
        "seconds": 2.0,
        "requests": 0,
        "hit_percent": None,
        "ram_percent": None,
        "tiers_percent": None,
        "stranded_sequences": 1,
        "spare": 0,
        "stored_rate": 0.0,
        "demoted_rate": 0.0,
        "evicted_demoted_rate": 0.0,
        "evicted_live_rate": 0.0,
        "restored_bytes_rate": 0.0,
        "stored_bytes_rate": 0.0,
        "p99_seconds": None,
    }


def test_what_happened_since() -> None:
    counts = {**segments.GROUPS[0].counts, Kind.STORED: 11_214, Kind.EVICTED_LIVE: 4}
    slow = segments.latencies(0.5, 0.5)
    row = rates.interval(
        BEFORE,
        after(
            groups=(replace(segments.GROUPS[0], counts=counts), *segments.GROUPS[1:]),
            ram=Restores(
                segments.RAM.requests + 2,
                segments.RAM.tokens + 10,
                segments.RAM.nbytes + 10**9,
                tuple(map(sum, zip(segments.RAM.histogram, slow, strict=True))),
            ),
            tiers=(segments.served_more(segments.NVME, 1),),
            missed=replace(segments.MISSED, requests=6),
        ),
    )
    assert (row["requests"], row["hit_percent"]) == (4, 75.0)
    assert (row["ram_percent"], row["tiers_percent"]) == (50.0, 25.0)
    assert (row["stored_rate"], row["evicted_live_rate"]) == (5.0, 2.0)
    assert row["restored_bytes_rate"] == 5e8
    assert row["stored_bytes_rate"] == 5 * 4 * 7_204_864
    assert row["p99_seconds"] == pytest.approx(0.5, rel=0.2)


def test_two_looks_at_one_moment_are_no_division_by_zero() -> None:
    assert rates.interval(BEFORE, BEFORE)["stored_rate"] == 0.0


def group(name: str, *, free: int, live: int) -> Group:
    return Group(name, "state", Slots(free, 0, live, 0, 0))


def test_the_tightest_group_has_something_to_lose() -> None:
    groups = [group("g0", free=3, live=5), group("g1", free=0, live=0), group("g2", free=1, live=9)]
    found = rates.tightest(groups)
    assert found is not None
    assert found.name == "g2"
    assert rates.tightest(groups[1:2]) is None


def test_bytes_of_unknown_slots_count_nothing() -> None:
    assert rates.capacity_bytes([group("g0", free=3, live=5)]) == 0
