# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest

from tests.tui.scenes import SEQUENCES, latest_with, live, nvme, older, snapshot
from tiercache.stats.model import Health, Kind, Phase
from tiercache.tui import advice
from tiercache.tui.feed import State
from tiercache.tui.frame import Frame

LIVE = live()
QUIET = latest_with(LIVE, groups=LIVE.history[-1].groups[:7], sequences=SEQUENCES[1:])


def matters(frame: Frame) -> list[str]:
    return [item.matter for item in advice.advice(frame)]


def test_what_is_the_matter() -> None:
    assert matters(LIVE) == [
        "g7 spare 0 for 40s: the next store evicts a live checkpoint",
        "e00d3b cannot be restored: 508.8k tokens cached, g7 lost to 91be02",
    ]


def test_nothing_is_said_when_all_is_well() -> None:
    assert matters(QUIET) == []
    assert advice.line(QUIET, 80) is None
    assert advice.lines(QUIET, 80) == []


@pytest.mark.parametrize("state", [State.WAITING, State.STALE, State.GONE, State.CLOSED])
def test_nothing_is_advised_on_old_numbers(state: State) -> None:
    assert matters(older(LIVE, 60, state)) == []


def test_how_long_is_not_known_from_one_look_or_a_short_history() -> None:
    assert matters(replace(LIVE, history=LIVE.history[-1:]))[0].startswith("g7 spare 0: ")
    assert matters(replace(LIVE, history=LIVE.history[-11:]))[0].startswith(
        "g7 spare 0 for over 10s: "
    )


def test_several_conversations() -> None:
    more = replace(SEQUENCES[0], number=7, cached=1_200)
    frame = latest_with(QUIET, sequences=(more, *SEQUENCES))
    assert matters(frame) == [
        "2 conversations cannot be restored: 510.0k tokens; e00d3b: g7 lost to 91be02"
    ]


def test_a_tier_that_rests_and_readers_that_run_out() -> None:
    tier = replace(nvme(0), health=Health.RESTING, index={"readers": 124, "max_readers": 126})
    assert matters(latest_with(QUIET, tiers=(tier,))) == [
        "nvme0 rests after errors: nothing is read from it or written to it",
        "nvme0 index has 124 of 126 readers",
    ]


def test_stores_that_find_no_room() -> None:
    groups = QUIET.history[-1].groups
    refused = replace(groups[0], counts={**groups[0].counts, Kind.REFUSED: 3})
    frame = latest_with(QUIET, groups=(refused, *groups[1:]))
    before = replace(snapshot(1), groups=groups)
    assert matters(replace(frame, history=[before, frame.history[-1]])) == [
        "stores find no room: every slot that could go is in use"
    ]


def test_restores_that_are_slower_than_computing() -> None:
    earlier = replace(QUIET.history[-1], taken=QUIET.now - 3, totals={"unworthy": 1})
    frame = replace(latest_with(QUIET, totals={"unworthy": 2}))
    frame = replace(frame, history=[earlier, frame.history[-1]])
    (item,) = advice.advice(frame)
    assert item.matter == "nvme0 1.8s p99 restore: computing is faster, so some is not read"
    assert not item.is_bad


def test_a_start_and_conversations_without_a_row() -> None:
    assert matters(latest_with(QUIET, phase=Phase.INIT, sequences_dropped=3)) == [
        "3 conversations have no row and are not counted here",
        "the cache is starting: numbers are not complete yet",
    ]


def test_one_row_says_as_much_as_it_can() -> None:
    said = {width: advice.line(LIVE, width) for width in (60, 80, 200)}
    shown = {width: line.plain for width, line in said.items() if line is not None}
    assert shown[60] == " ! g7 spare 0 for 40s: the next store evicts a live ch…  +1"
    assert shown[80] == " ! g7 spare 0 for 40s: the next store evicts a live checkpoint  +1"
    assert "  ! e00d3b cannot be restored" in shown[200]


def test_rows_of_their_own_have_the_cure() -> None:
    wide, narrow = advice.lines(LIVE, 160), advice.lines(LIVE, 100)
    cure = "; raise mamba_state_slots_reference_tokens or enable demotion"
    assert wide[0].plain.endswith(f"the next store evicts a live checkpoint{cure}")
    assert narrow[0].plain == f" ! g7 spare 0 for 40s{cure}"
