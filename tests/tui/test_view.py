# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from tiercache.slots import SlotCounts
from tiercache.tui import view
from tiercache.tui.feed import State, Status
from tiercache.tui.frame import Frame, Sort
from tiercache.tui.snapshot import Counters, Group, Snapshot
from tiercache.tui.text import ASCII, UNICODE, Glyphs

SIZES = ((80, 24), (60, 16), (200, 60))
Golden = Callable[[str, str], None]


def plain(lines: list[Text]) -> str:
    return "".join(f"{line.plain.rstrip()}\n" for line in lines)


def not_live(frame: Frame, state: State, since: float, reason: str) -> Frame:
    history = frame.history if state in (State.STALE, State.GONE) else ()
    return replace(frame, status=Status(state, frame.now - since, reason), history=history)


@pytest.fixture
def frames(live: Frame) -> dict[str, Frame]:
    latest = live.history[-1]
    second = [replace(group, engine="1") for group in latest.groups]
    unknown = [replace(group, counters=Counters()) for group in latest.groups]
    old = [replace(snapshot, taken=snapshot.taken - 7) for snapshot in live.history]
    stale = replace(live, history=old)
    return {
        "live": live,
        "first": replace(live, history=live.history[:1]),
        "spare": replace(live, sort=Sort.SPARE),
        "paused": replace(live, paused_since=live.now - 65),
        "engines": replace(
            live, history=[replace(latest, groups=(*latest.groups, *second))], sort=Sort.SPARE
        ),
        "unknown": replace(
            live,
            history=[
                replace(latest, groups=tuple(unknown), restored_tokens=None, lost_tokens=None)
            ],
        ),
        "silent": replace(live, history=[Snapshot(live.now - 0.5)]),
        "stale": not_live(stale, State.STALE, 7.5, "no answer within 5s"),
        "gone": not_live(stale, State.GONE, 3, "connection refused"),
        "waiting": not_live(live, State.WAITING, 12, "connection refused"),
        "no-tiercache": not_live(
            live, State.NO_TIERCACHE, 2, "the page has no vllm:tiercache_* metric"
        ),
    }


NAMES = (
    *("live", "first", "spare", "paused", "engines", "unknown"),
    *("silent", "stale", "gone", "waiting", "no-tiercache"),
)


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_screens(
    frames: dict[str, Frame], golden: Golden, name: str, width: int, height: int
) -> None:
    golden(f"{name}-{width}x{height}.txt", plain(view.screen(frames[name], width, height)))


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("name", ["live", "gone", "waiting"])
def test_ascii_screens(
    frames: dict[str, Frame], golden: Golden, name: str, width: int, height: int
) -> None:
    frame = replace(frames[name], glyphs=ASCII)
    golden(f"{name}-{width}x{height}-ascii.txt", plain(view.screen(frame, width, height)))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_help(live: Frame, golden: Golden, width: int, height: int) -> None:
    lines = view.screen(live, width, height, helping=True)
    golden(f"help-{width}x{height}.txt", plain(lines))


@pytest.mark.parametrize("name", ["live", "waiting"])
def test_reports(frames: dict[str, Frame], golden: Golden, name: str) -> None:
    golden(f"{name}-report.txt", plain(view.report(frames[name], 100)))


def test_a_small_screen_says_what_is_spare(live: Frame, golden: Golden) -> None:
    golden("live-40x8.txt", plain(view.screen(live, 40, 8)))


def test_every_state_has_a_style() -> None:
    assert set(view.STATE_STYLES) == set(State)


def test_losses_and_empty_groups_are_marked_without_colour(live: Frame) -> None:
    lines = view.screen(live, 80, 24)
    empty = next(line.plain for line in lines if line.plain.startswith(" g7"))
    lost = next(line.plain for line in lines if "evicted, live" in line.plain)
    assert " 0! " in empty
    assert " !" in lost


def test_old_numbers_are_dimmed(frames: dict[str, Frame]) -> None:
    dimmed = {
        name: any(
            "dim" in str(span.style) for line in view.screen(frame, 80, 24) for span in line.spans
        )
        for name, frame in frames.items()
    }
    assert [name for name, is_dim in dimmed.items() if is_dim] == ["stale", "gone"]


names = st.text(max_size=20) | st.sampled_from(["0", "1", "12", "模型", "e\u0301", "a\nb\x1b[2J"])
counts = st.integers(0, 10**13)
maybe = st.none() | counts
groups = st.builds(
    Group,
    names,
    names,
    names,
    st.builds(SlotCounts, *[counts] * 5),
    st.builds(Counters, *[maybe] * 7),
)
snapshots = st.builds(
    Snapshot,
    taken=st.floats(1e9, 2e9),
    models=st.lists(names, max_size=3).map(tuple),
    groups=st.lists(groups, max_size=40).map(tuple),
    restored_tokens=maybe,
    lost_tokens=maybe,
)
any_frame = st.builds(
    Frame,
    url=st.just("http://127.0.0.1:8000/metrics") | st.text().map("http://[::1]:8000/{}".format),
    interval=st.floats(0.25, 1e6),
    now=st.floats(1e9, 2e9),
    status=st.builds(Status, st.sampled_from(State), st.floats(1e9, 2e9), names),
    history=st.lists(snapshots, max_size=3),
    sort=st.sampled_from(Sort),
    paused_since=st.none() | st.floats(1e9, 2e9),
    glyphs=st.sampled_from([ASCII, UNICODE]),
)


@settings(max_examples=200, deadline=None)
@given(any_frame, st.integers(0, 250), st.integers(0, 70), st.booleans())
def test_no_line_is_ever_wider_than_the_screen(
    frame: Frame, width: int, height: int, helping: bool
) -> None:
    lines = view.screen(frame, width, height, helping=helping)
    assert [line.cell_len for line in lines] == [width] * height
    assert_shows(lines, frame.glyphs)


@settings(max_examples=50, deadline=None)
@given(any_frame, st.integers(0, 250))
def test_no_line_of_a_report_is_wider_than_asked_for(frame: Frame, width: int) -> None:
    lines = view.report(frame, width)
    assert all(line.cell_len <= width for line in lines)
    assert_shows(lines, frame.glyphs)


def assert_shows(lines: list[Text], glyphs: Glyphs) -> None:
    for line in lines:
        assert line.plain.isprintable()
        assert not glyphs.ascii_only or line.plain.isascii()
