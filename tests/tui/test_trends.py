# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest

from tests.tui.scenes import NOW, live, metrics, nvme, snapshot
from tiercache.stats.model import Kind, Restores, Snapshot
from tiercache.tui import trends
from tiercache.tui.trends import MISSED, RAM


def at(seconds: float, **totals: int) -> Snapshot:
    return replace(snapshot(), taken=NOW + seconds, totals=totals)


LATE = trends.named("late")


def test_rates_are_means_over_the_last_ten_seconds() -> None:
    history = [at(0, late=100), *(at(10.0 + i, late=100 + 4 * i) for i in range(11))]
    assert trends.rate(history, LATE) == 4.0
    assert trends.rate(history[:2], LATE) == 0.0


def test_steps_are_rates_from_one_look_to_the_next() -> None:
    history = [at(0, late=1), at(1, late=3), at(3, late=3), at(5, late=13)]
    assert trends.steps(history, LATE, 10) == [2.0, 0.0, 5.0]
    assert trends.steps(history, LATE, 1) == [5.0]
    assert trends.steps(history, LATE, 0) == []


@pytest.mark.parametrize(
    "history",
    [
        [],
        [at(0, late=5)],
        [at(0), at(1)],
        [at(0), at(1, late=5)],
        [at(0, late=5), at(1)],
        [at(0, late=5), at(1, late=4)],
        [at(0, late=5), at(0, late=9)],
        [at(0, late=5), at(-9, late=9)],
    ],
)
def test_what_cannot_be_known_has_no_rate(history: list[Snapshot]) -> None:
    assert trends.rate(history, LATE) is None
    assert all(step is None for step in trends.steps(history, LATE, 10))


def test_entries_are_summed_over_all_groups_or_unknown() -> None:
    assert trends.counted(Kind.EVICTED_LIVE)(snapshot()) == 1
    groups = snapshot().groups
    silent = replace(snapshot(), groups=(*groups[:3], replace(groups[3], counts={})))
    assert trends.counted(Kind.EVICTED_LIVE)(silent) is None
    assert trends.counted(Kind.EVICTED_LIVE)(replace(snapshot(), groups=())) is None


def test_totals_count_from_the_baseline() -> None:
    frame = replace(live(), baseline=snapshot(30))
    stored = trends.of_tier("nvme0", "stored_bytes")
    assert trends.total(frame, stored) == nvme(0).counts["stored_bytes"] - stored(snapshot(30))  # type: ignore[operator]
    assert trends.total(replace(frame, baseline=None), stored) == nvme(0).counts["stored_bytes"]
    assert trends.total(replace(frame, history=[]), stored) is None


def test_a_baseline_that_is_larger_belongs_to_another_run() -> None:
    frame = replace(live(), baseline=at(0, restored_tokens=10**12))
    assert trends.total(frame, trends.named("restored_tokens")) is None


def test_restores_of_every_source() -> None:
    requests = {
        source: trends.restored(source, "requests")(snapshot())
        for source in (RAM, "nvme0", MISSED, "no such tier")
    }
    assert requests == {RAM: 1204, "nvme0": 37, MISSED: 5, "no such tier": None}


def test_metrics_do_not_tell_what_tiers_restored() -> None:
    reduced = metrics(live()).history[-1]
    assert reduced.tiers
    assert trends.restores(reduced, "nvme0") is None
    assert trends.restores(reduced, RAM) is None


def test_latencies_since_the_baseline() -> None:
    frame = live()
    before = replace(snapshot(30), ram=Restores(histogram=(0, 2)))
    latest = replace(frame.history[-1], ram=Restores(histogram=(1, 5, 3)))
    frame = replace(frame, history=[latest])
    assert trends.histogram(frame, RAM) == (1, 5, 3)
    assert list(trends.histogram(replace(frame, baseline=before), RAM)) == [1, 3, 3]
    more = replace(before, ram=Restores(histogram=(2, 2)))
    assert trends.histogram(replace(frame, baseline=more), RAM) == ()
    assert trends.histogram(frame, "no such tier") == ()


def test_how_long_something_has_held() -> None:
    history = [at(0, late=0), at(1, late=1), at(2, late=0), at(3, late=0), at(7, late=0)]
    assert trends.lasting(history, lambda s: s.totals["late"] == 0) == 5.0
    assert trends.lasting(history, lambda s: s.totals["late"] == 1) is None
    assert trends.lasting([], lambda _: True) is None


def test_ages_of_a_replay_are_by_its_own_clock() -> None:
    served = snapshot()
    assert trends.moment(served) == served.taken
    assert served.pool is not None
    replayed = replace(served, heartbeat=77.0, pool=replace(served.pool, writer="replay"))
    assert trends.moment(replayed) == 77.0
    assert trends.moment(replace(served, pool=None)) == served.taken
