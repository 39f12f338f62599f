# SPDX-License-Identifier: Apache-2.0
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.stats.model import Health, Kind, Phase, Restores, Slots, Snapshot, Tier
from tiercache.tui.metrics import parse
from tiercache.tui.trouble import SourceError, Trouble


def trouble(page: str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        parse(page, 1.0)
    return caught.value


def test_a_page_becomes_a_snapshot(metrics_text: str) -> None:
    snapshot = parse(metrics_text, 7.0)
    assert (snapshot.taken, snapshot.heartbeat, snapshot.source) == (7.0, 7.0, "metrics")
    assert (snapshot.phase, snapshot.alive, snapshot.pool) == (Phase.RUN, True, None)
    assert snapshot.running == 3
    first = snapshot.groups[0]
    assert (first.name, first.kind) == ("g0", "full")
    assert first.slots == Slots(free=41, storing=0, live=2198, demoted=0, pinned=16)
    assert (first.slots.capacity, first.slots.spare) == (2255, 41)
    assert (first.slot_bytes, first.oldest_live) == (None, None)


def test_open_requests_are_those_that_wait_too(metrics_text: str) -> None:
    waiting = 'vllm:num_requests_waiting{engine="0"} 4.0\nvllm:num_requests_waiting_by_x 9\n'
    assert parse(metrics_text + waiting, 0.0).running == 7
    unknown = "\n".join(line for line in metrics_text.splitlines() if "num_requests" not in line)
    assert parse(unknown, 0.0).running is None


def test_groups_are_sorted_by_number(metrics_text: str) -> None:
    assert [group.name for group in parse(metrics_text, 0.0).groups] == ["g0", "g2", "g10"]


def test_totals_have_a_zero_where_a_counter_is_declared_without_samples(metrics_text: str) -> None:
    assert parse(metrics_text, 0.0).totals == {
        "restored_tokens": 1_344_000,
        "lost_tokens": 0,
        "stored_bytes": 15_836_291_072 + 57_401_344,
        "restored_bytes": 812_000_000_000,
    }


def test_counters_are_found_under_the_names_of_the_exporter(metrics_text: str) -> None:
    counts = {group.name: group.counts for group in parse(metrics_text, 0.0).groups}
    assert counts["g10"] == {
        Kind.DEMOTED: 651,
        Kind.EVICTED_DEMOTED: 224,
        Kind.EVICTED_LIVE: 0,
        Kind.REFUSED: 0,
    }
    assert counts["g2"][Kind.EVICTED_LIVE] == 3
    assert Kind.STRANDED not in counts["g2"]


def test_declared_but_silent_means_no_groups_yet() -> None:
    snapshot = parse("# HELP vllm:tiercache_slots Slots.\n# TYPE vllm:tiercache_slots gauge\n", 3.0)
    assert (snapshot.taken, snapshot.groups, snapshot.tiers) == (3.0, (), ())
    assert snapshot.totals == {}


def test_engines_keep_their_groups_apart(metrics_text: str) -> None:
    other = metrics_text.replace('engine="0"', 'engine="1"').replace("2198.0", "2199.0")
    snapshot = parse(metrics_text + other, 0.0)
    assert [group.name for group in snapshot.groups] == [
        *("e0.g0", "e0.g2", "e0.g10", "e1.g0", "e1.g2", "e1.g10")
    ]
    assert [group.slots.live for group in snapshot.groups if "g0" in group.name] == [2198, 2199]
    assert snapshot.totals["restored_tokens"] == 2 * 1_344_000
    assert snapshot.running == 6


TIERS = """\
# TYPE vllm:tiercache_tier_capacity_bytes gauge
vllm:tiercache_tier_capacity_bytes{engine="0",tier="nvme0"} 512.0
vllm:tiercache_tier_used_bytes{engine="0",tier="nvme0"} 204.0
vllm:tiercache_tier_entries{engine="0",tier="nvme0"} 81.0
vllm:tiercache_tier_jobs{engine="0",tier="nvme0"} 2.0
vllm:tiercache_tier_healthy{engine="0",tier="nvme0"} 0.0
# TYPE vllm:tiercache_tier_stored_bytes_total counter
vllm:tiercache_tier_stored_bytes_total{engine="0",tier="nvme0"} 9.0
# TYPE vllm:tiercache_tier_failures_total counter
vllm:tiercache_late_restores_total{engine="0"} 5.0
"""


def test_tiers(metrics_text: str) -> None:
    snapshot = parse(metrics_text + TIERS, 0.0)
    assert snapshot.tiers == (
        Tier(
            *("nvme0", "", Health.RESTING, 512, 204, 81, 2, 0, None, Restores()),
            counts={"stored_bytes": 9, "failed": 0},
        ),
    )
    assert snapshot.totals["late"] == 5
    assert parse(TIERS.replace("healthy", "other"), 0.0).tiers[0].health is Health.OK


def test_a_tier_without_all_of_its_gauges() -> None:
    failure = trouble(TIERS.replace("tier_used", "tier_else"))
    assert failure.trouble is Trouble.BAD_ANSWER
    assert str(failure) == "tier nvme0: no tiercache_tier_used_bytes"


def test_a_server_without_the_cache(metrics_text: str) -> None:
    page = "\n".join(line for line in metrics_text.splitlines() if "tiercache" not in line)
    failure = trouble(page)
    assert failure.trouble is Trouble.NO_TIERCACHE
    assert str(failure) == "the page has no vllm:tiercache_* metric"


@pytest.mark.parametrize("page", ["", "<html><body>It works!</body></html>", "up 1\n"])
def test_something_else_than_a_vllm_server(page: str) -> None:
    failure = trouble(page)
    assert failure.trouble is Trouble.NO_TIERCACHE
    assert "does not look like vLLM's" in str(failure)


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r'.*group="2".*state="live".*\n', "", "group g2: no live slots"),
        (r'(.*group="2".*state="live".*\n)', r"\1\1", "group g2: live slots are given twice"),
        (r"2198\.0", "NaN", "unreadable metrics"),
        (r"2198\.0", "+Inf", "unreadable metrics"),
        (r"2198\.0", "-1.0", "-1.0 is negative"),
        (r'state="free"} 41', 'state="free" 41', "unreadable metrics"),
    ],
)
def test_numbers_that_make_no_sense(
    metrics_text: str, pattern: str, replacement: str, message: str
) -> None:
    failure = trouble(re.sub(pattern, replacement, metrics_text, count=1))
    assert failure.trouble is Trouble.BAD_ANSWER
    assert message in str(failure)


@given(st.text(st.characters(codec="utf-8")), st.text('{}="\\ \t10eE+.#TYPHL_gaugecounter'))
def test_any_text_is_a_snapshot_or_a_source_error(text: str, line: str) -> None:
    for page in (text, f"vllm:tiercache_slots{line}\n", f"# TYPE vllm:tiercache_{line}\n"):
        with suppress(SourceError):
            assert isinstance(parse(page, 0.0), Snapshot)
