# SPDX-License-Identifier: Apache-2.0
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.slots import SlotCounts
from tiercache.tui.metrics import parse
from tiercache.tui.snapshot import Counters, Snapshot
from tiercache.tui.trouble import SourceError, Trouble


def trouble(page: str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        parse(page, 1.0)
    return caught.value


def test_a_page_becomes_a_snapshot(metrics_text: str) -> None:
    snapshot = parse(metrics_text, 7.0)
    assert snapshot.taken == 7.0
    assert snapshot.models == ("qwen3-next",)
    first = snapshot.groups[0]
    assert (first.engine, first.name, first.kind) == ("0", "0", "full")
    assert first.slots == SlotCounts(free=41, storing=0, live=2198, demoted=0, pinned=16)
    assert (first.capacity, first.spare) == (2255, 41)
    assert first.counters.restored_bytes == 812_000_000_000
    assert snapshot.restored_tokens == 1_344_000


def test_groups_are_sorted_by_number(metrics_text: str) -> None:
    assert [group.name for group in parse(metrics_text, 0.0).groups] == ["0", "2", "10"]


def test_a_declared_counter_without_samples_is_zero(metrics_text: str) -> None:
    snapshot = parse(metrics_text, 0.0)
    assert snapshot.lost_tokens == 0
    assert [group.counters.reserve_failures for group in snapshot.groups] == [0, 0, 0]
    assert [group.counters.evicted_live for group in snapshot.groups] == [0, 3, 0]


def test_an_undeclared_counter_is_unknown(metrics_text: str) -> None:
    snapshot = parse(metrics_text, 0.0)
    assert {group.counters.stranded for group in snapshot.groups} == {None}
    assert snapshot.totals()["stranded"] is None
    assert snapshot.totals()["demotions"] == 651


def test_declared_but_silent_means_no_groups_yet() -> None:
    snapshot = parse("# HELP vllm:tiercache_slots Slots.\n# TYPE vllm:tiercache_slots gauge\n", 3.0)
    assert snapshot == Snapshot(taken=3.0)
    assert snapshot.totals()["demotions"] is None


def test_engines_keep_their_groups_apart(metrics_text: str) -> None:
    other = metrics_text.replace('engine="0"', 'engine="1"').replace('name="qwen', 'name="b/qwen')
    snapshot = parse(metrics_text + other, 0.0)
    assert [(group.engine, group.name) for group in snapshot.groups[2:4]] == [
        ("0", "10"),
        ("1", "0"),
    ]
    assert snapshot.models == ("b/qwen3-next", "qwen3-next")
    assert snapshot.restored_tokens == 2 * 1_344_000


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
        (r'.*group="2".*state="live".*\n', "", "group '2' of engine '0': no live slots"),
        (r'(.*group="2".*state="live".*\n)', r"\1\1", "group '2' of engine '0': live slots are"),
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


def test_counters_are_found_under_the_names_of_the_exporter(metrics_text: str) -> None:
    group = parse(metrics_text, 0.0).groups[2]
    assert group.counters == Counters(
        demotions=651,
        stranded=None,
        evicted_demoted=224,
        evicted_live=0,
        stored_bytes=57_401_344,
        restored_bytes=0,
        reserve_failures=0,
    )
