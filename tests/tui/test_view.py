# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from rich.text import Text

from tests.tui.scenes import latest_with, live, looking, metrics, older
from tiercache.stats.model import Phase, Restores, Slots, Snapshot
from tiercache.tui import view
from tiercache.tui.feed import State, Status
from tiercache.tui.frame import Frame
from tiercache.tui.state import View
from tiercache.tui.text import ASCII

SIZES = ((60, 16), (80, 24), (120, 30), (160, 45), (200, 60))
Golden = Callable[[str, str], None]
LIVE = live()


def plain(lines: list[Text]) -> str:
    return "".join(f"{line.plain.rstrip()}\n" for line in lines)


def one_group() -> Frame:
    group = replace(LIVE.history[-1].groups[0], slots=Slots(0, 0, 2255, 0, 0))
    return latest_with(LIVE, groups=(group,), victims=(), sequences=(), tiers=())


def unknown() -> Frame:
    """A source that tells slots and nothing else."""
    groups = [replace(group, counts={}) for group in metrics(LIVE).history[-1].groups]
    return replace(
        metrics(LIVE), history=[replace(metrics(LIVE).history[-1], groups=tuple(groups), totals={})]
    )


def waiting(state: State = State.WAITING, reason: str = "no pool runs here") -> Frame:
    return replace(LIVE, history=(), log=(), status=Status(state, LIVE.now - 12, reason))


FRAMES: Mapping[str, Frame] = {
    "live": LIVE,
    "idle": replace(
        latest_with(LIVE, running=0), status=Status(State.IDLE, LIVE.now - 65), log=LIVE.log[:4]
    ),
    "stale": older(LIVE, 7, State.STALE, "2 requests are open, but no step"),
    "gone": older(LIVE, 700, State.GONE, "pid 41712 has ended"),
    "closed": older(latest_with(LIVE, phase=Phase.CLOSED), 60, State.CLOSED),
    "failed": older(latest_with(LIVE, phase=Phase.FAILED), 30, State.STALE),
    "torn": latest_with(LIVE, torn=True),
    "empty": latest_with(LIVE, groups=(), victims=(), sequences=()),
    "one-group": one_group(),
    "metrics": metrics(LIVE),
    "unknown": unknown(),
    "waiting": waiting(),
    "no-tiercache": waiting(State.NO_TIERCACHE, "the page has no vllm:tiercache_* metric"),
    "paused": looking(LIVE, paused_since=LIVE.now - 65),
    "since": replace(LIVE, baseline=LIVE.history[-31]),
    "zoomed": looking(LIVE, zoomed=True),
    "detail": looking(LIVE, detail=True, cursor=7),
    "tokens": looking(LIVE, tokens=True),
    "filtered": looking(LIVE, filter="kind:state !group:g7", sort="SPARE"),
    "message": looking(LIVE, message="saved ./tiercache-top.txt and .json"),
    "help": looking(LIVE, helping=True),
    "sequences": looking(LIVE, View.SEQUENCES),
    "sequences-detail": looking(LIVE, View.SEQUENCES, detail=True),
    "sequences-filtered": looking(LIVE, View.SEQUENCES, filter="stranded"),
    "sequences-gone": looking(older(LIVE, 700, State.GONE), View.SEQUENCES),
    "sequences-metrics": looking(metrics(LIVE), View.SEQUENCES),
    "sequences-help": looking(LIVE, View.SEQUENCES, helping=True),
    "eviction": looking(LIVE, View.EVICTION),
    "eviction-g1": looking(LIVE, View.EVICTION, group="g1", cursor=12),
    "eviction-detail": looking(LIVE, View.EVICTION, detail=True),
    "eviction-filtered": looking(LIVE, View.EVICTION, filter="seq:77 tier:x kin:y"),
    "eviction-metrics": looking(metrics(LIVE), View.EVICTION),
    "tiers": looking(LIVE, View.TIERS),
    "tiers-detail": looking(LIVE, View.TIERS, detail=True, cursor=1),
    "tiers-stale": looking(older(LIVE, 7, State.STALE), View.TIERS),
    "events": looking(replace(LIVE, events_lost=3), View.EVENTS),
    "events-detail": looking(LIVE, View.EVENTS, detail=True, follow=False),
    "events-typing": looking(LIVE, View.EVENTS, filter="kind:evict", filtering=True),
    "events-help": looking(LIVE, View.EVENTS, helping=True),
}
IN_ASCII = ("live", "gone", "sequences", "eviction", "tiers", "events")
IN_FULL = (
    "live",
    "gone",
    "waiting",
    "metrics",
    "sequences",
    "eviction",
    "tiers",
    "events",
    "empty",
)


#: The others are drawn in one size: that they fit any is tested with random ones.
IN_EVERY_SIZE = (
    *("live", "idle", "stale", "gone", "closed", "empty", "one-group", "metrics", "paused"),
    *("filtered", "detail", "help", "sequences", "eviction", "tiers", "events"),
)


@pytest.mark.parametrize(
    ("name", "width", "height"),
    [
        (name, *size)
        for name in FRAMES
        for size in (SIZES if name in IN_EVERY_SIZE else ((80, 24),))
    ],
)
def test_screens(golden: Golden, name: str, width: int, height: int) -> None:
    golden(f"{name}-{width}x{height}.txt", plain(view.screen(FRAMES[name], width, height)))


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("name", IN_ASCII)
def test_ascii_screens(golden: Golden, name: str, width: int, height: int) -> None:
    frame = replace(FRAMES[name], glyphs=ASCII)
    golden(f"{name}-{width}x{height}-ascii.txt", plain(view.screen(frame, width, height)))


@pytest.mark.parametrize("name", IN_FULL)
def test_reports(golden: Golden, name: str) -> None:
    lines = view.report(FRAMES[name], 100)
    golden(f"{name}-report.txt", plain(lines))
    assert all(line.plain == line.plain.rstrip() for line in lines)
    assert not lines[-1:] or lines[-1].plain


def test_a_small_screen_says_what_is_spare(golden: Golden) -> None:
    golden("live-40x8.txt", plain(view.screen(LIVE, 40, 8)))


def test_a_newcomer_finds_who_is_in_trouble_on_every_screen() -> None:
    for width, height in SIZES:
        shown = plain(view.screen(LIVE, width, height))
        assert "g7 loses a live checkpoint at the next store" in shown
        assert "e00d3b cannot be restored" in shown
        assert "g7 lost to 91be02" in shown


def test_what_is_over_is_not_said_to_come() -> None:
    for state in (State.STALE, State.GONE, State.CLOSED):
        shown = plain(view.screen(older(LIVE, 7, state), 160, 45))
        assert "at the next store" not in shown
        assert "g7 had the least spare: 0" in shown


def test_alarms_are_marked_without_colour() -> None:
    shown = plain(view.screen(LIVE, 80, 24)).splitlines()
    assert " 0! " in next(line for line in shown if line.startswith("  g7"))
    assert "0%!" in plain(view.screen(FRAMES["sequences"], 80, 24))


def test_old_numbers_are_dimmed_and_said() -> None:
    def dims(frame: Frame) -> bool:
        row = next(line for line in view.screen(frame, 80, 24) if line.plain.startswith("  g1"))
        return any("dim" in str(span.style) for span in row.spans)

    dimmed = [name for name in ("live", "idle", "stale", "gone", "closed") if dims(FRAMES[name])]
    assert dimmed == ["stale", "gone", "closed"]
    assert "nothing new for 7s" in plain(view.screen(FRAMES["stale"], 80, 24))
    assert "its last numbers, 11m40s old" in plain(view.screen(FRAMES["gone"], 80, 24))


def test_what_is_not_known_is_no_number() -> None:
    shown = plain(view.screen(FRAMES["unknown"], 80, 24)).splitlines()
    line = next(line for line in shown if "evicted while live" in line)
    assert line.removeprefix(" evicted while live").split() == ["-", "-"]


@pytest.mark.parametrize(
    ("name", "rows", "first"),
    [
        ("live", 8, "g0  full"),
        ("sequences", 7, "e00d3b  3  58m"),
        ("eviction", 4, "0  6  live  77c1aa"),
        ("eviction-g1", 17, "15  12  live  1f09bc"),
        ("tiers", 2, "ram"),
        ("events", 7, "14:02:11  demoted  c7f3a1  g1-g6  6"),
        ("filtered", 6, "g1  state"),
        ("empty", 0, ""),
        ("waiting", 0, ""),
        ("sequences-metrics", 0, ""),
        ("eviction-metrics", 0, ""),
    ],
)
def test_the_row_under_the_cursor_can_be_copied(name: str, rows: int, first: str) -> None:
    assert view.row_count(FRAMES[name]) == rows
    assert view.selected(FRAMES[name]).startswith(first)


def test_every_column_that_can_be_sorted_by_sorts() -> None:
    for name in View:
        frame = looking(LIVE, name)
        for title in view.columns(frame):
            rows = [view.selected(looking(LIVE, name, sort=title, follow=False))]
            rows.append(view.selected(looking(LIVE, name, sort=title, inverted=True, follow=False)))
            assert all(rows)
    by_spare = looking(LIVE, sort="SPARE")
    assert view.selected(by_spare).startswith("g7")
    assert view.selected(looking(LIVE, sort="spare", inverted=True)).startswith("g0")


def test_sorted_rows_with_nothing_to_sort_by_go_last() -> None:
    shown = looking(LIVE, View.EVICTION, sort="#", cursor=3)
    assert view.selected(shown).endswith("in use now: stays")
    inverted = looking(LIVE, View.EVICTION, sort="#", inverted=True, cursor=3)
    assert view.selected(inverted).endswith("in use now: stays")


def test_the_group_in_need_is_shown_unless_one_is_chosen() -> None:
    assert view.shown_group(LIVE) == "g7"
    assert view.shown_group(looking(LIVE, group="g2")) == "g2"
    assert view.shown_group(looking(LIVE, group="no such group")) == "g7"
    assert view.shown_group(waiting()) is None


def test_a_log_that_is_followed_has_the_cursor_at_its_end() -> None:
    follows = looking(LIVE, View.EVENTS, cursor=2)
    assert view.selected(follows).startswith("14:02:11  demoted")
    stays = looking(LIVE, View.EVENTS, cursor=2, follow=False)
    assert view.selected(stays).startswith("14:02:05  missed")


def test_the_cursor_stays_on_the_screen() -> None:
    for cursor in range(17):
        frame = looking(LIVE, View.EVICTION, group="g1", cursor=cursor)
        lines = view.screen(frame, 80, 16)
        marked = [line.plain for line in lines if line.plain.startswith(">")]
        assert len(marked) == 1
        assert marked[0].split()[1] == view.selected(frame).split()[0]


def test_equal_groups_share_a_row_only_where_height_is_short() -> None:
    assert "g1-g6 x6" not in plain(view.screen(LIVE, 80, 24))
    assert "g1-g6 x6" in plain(view.screen(LIVE, 80, 16))
    groups = LIVE.history[-1].groups
    odd = replace(groups[3], slots=Slots(5, 1, 12, 11, 1))
    frame = latest_with(LIVE, groups=(*groups[:3], odd, *groups[4:]))
    shown = plain(view.screen(frame, 80, 16))
    assert "g1-g2 x2" in shown
    assert "g4-g6 x3" in shown


def test_a_lost_event_is_always_said() -> None:
    for width, height in SIZES:
        assert "3 lost" in plain(view.screen(FRAMES["events"], width, height))


def test_a_bad_filter_is_said_and_hides_nothing() -> None:
    frame = looking(LIVE, View.EVENTS, filter="foo:bar")
    assert "no field 'foo'" in plain(view.screen(frame, 80, 24))
    assert view.row_count(frame) == 7


def test_tokens_instead_of_bytes() -> None:
    shown = plain(view.screen(FRAMES["tokens"], 80, 24))
    assert "TOKENS" in shown
    assert "61.2M" in shown
    assert "812GiB" not in shown


def test_a_baseline_of_another_run_gives_no_totals() -> None:
    before = latest_with(LIVE, ram=Restores(9999, 1, 1, (1,))).history[-1]
    lines = plain(view.screen(replace(LIVE, baseline=before), 80, 24)).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith(" RESTORED"))
    assert lines[head + 1].split()[:3] == ["ram", "-", "-"]
    assert lines[head + 2].split()[:3] == ["nvme0", "0", "-"]


def test_every_state_has_a_style_and_a_word() -> None:
    for state in State:
        frame = replace(LIVE, status=Status(state, LIVE.now - 5))
        assert state.split()[0] in view.screen(frame, 80, 24)[0].plain


def test_an_empty_snapshot_is_no_numbers() -> None:
    silent = Snapshot(LIVE.now, LIVE.now, Phase.INIT, alive=True, running=None, pool=None)
    for name in View:
        shown = plain(view.screen(looking(replace(LIVE, history=[silent]), name), 80, 24))
        assert "no group has reported" in shown


def test_drawing_loads_nothing_heavy() -> None:
    heavy = ("numpy", "textual", "torch", "vllm")
    code = f"import sys, tiercache.tui.view; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_server_that_starts_has_no_numbers_yet() -> None:
    starts = replace(LIVE, status=Status(State.WAITING, LIVE.now - 3, "the server starts"))
    shown = plain(view.screen(starts, 80, 24))
    assert "no group has reported" in shown
    assert "the server starts" in shown
    assert "spare" not in shown
    assert view.row_count(starts) == 0


def test_what_happens_to_all_groups_is_one_row() -> None:
    first = LIVE.log[0]
    events = [
        replace(first, number=i, group=f"g{i}", tokens=tokens)
        for i, tokens in enumerate((1632, 1632, 0), start=1)
    ]
    late = replace(first, number=4, group="g4", when=first.when + 1)
    again = replace(first, number=5, group="g4", when=first.when + 1)
    frame = looking(replace(LIVE, log=[*events, late, again]), View.EVENTS, follow=False)
    assert view.row_count(frame) == 3
    assert view.selected(frame) == (
        "13:21:12  evicted live  91be02  g1-g3  3  -  -  took the slot of a LIVE one !"
    )
