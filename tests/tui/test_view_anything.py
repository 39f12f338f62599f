# SPDX-License-Identifier: Apache-2.0
"""Whatever a snapshot says and whatever size a terminal has, the screen holds."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase as Step
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from tests.tui.scenes import live
from tiercache.stats.model import (
    Event,
    Group,
    Health,
    Kind,
    Loss,
    Phase,
    Pool,
    Restores,
    Sequence,
    SlotClass,
    Slots,
    Snapshot,
    Tier,
    Victim,
    Where,
)
from tiercache.tui import view
from tiercache.tui.feed import State, Status
from tiercache.tui.frame import Frame
from tiercache.tui.keys import KEYS
from tiercache.tui.state import UiState, View
from tiercache.tui.text import ASCII, UNICODE, Glyphs

#: A frame is large: to make one that fails smaller takes minutes, and says little more.
EXAMPLES = settings(deadline=None, phases=(Step.explicit, Step.reuse, Step.generate))
ODD = ["g0", "g7", "e1.g0", "e1.g1", "", "模型", "e\u0301", "a\nb\x1b[2J", "\u200b", "g²", "g" * 80]
names = st.sampled_from(ODD) | st.text(max_size=12)
numbers = st.integers(0, 9) | st.integers(0, 10**6) | st.integers(0, 2**64 - 1)
moments = st.floats(1e9, 2e9) | st.floats(-1e12, 1e12)
maybe: Any = st.none() | numbers
counts = st.dictionaries(st.sampled_from([*Kind, "failed", "corrupt", "stored_bytes"]), numbers)
restores = st.builds(
    Restores, numbers, numbers, numbers, st.lists(numbers, max_size=140).map(tuple)
)
groups = st.builds(
    Group,
    names,
    st.sampled_from(["full", "window", "state"]) | names,
    st.builds(Slots, *[numbers] * 5),
    maybe,
    maybe,
    st.none() | moments,
    counts,
)
tiers = st.builds(
    Tier,
    names,
    names,
    st.sampled_from(Health),
    *[numbers] * 5,
    st.none() | st.floats(0, 1e15),
    restores,
    counts,
    st.dictionaries(st.sampled_from(["map_bytes", "readers", "max_readers"]), numbers),
)
losses = st.builds(Loss, names, numbers, st.none() | moments, maybe, st.booleans())
sequences = st.builds(
    Sequence,
    number=numbers,
    turns=numbers,
    last_used=moments,
    tokens=numbers,
    cached=numbers,
    restorable=numbers,
    restorable_ram=numbers,
    live=numbers,
    demoted=numbers,
    where=st.integers(0, 15).map(Where),
    source=st.none() | names | st.just("miss"),
    restored=numbers,
    seconds=st.none() | st.floats(0, 1e12),
    loss=st.none() | losses,
)
victims = st.builds(
    Victim,
    names,
    numbers,
    st.sampled_from(SlotClass),
    maybe,
    maybe,
    st.none() | moments,
    st.none() | names,
    numbers,
)
events = st.builds(
    Event,
    number=numbers,
    when=moments,
    kind=st.sampled_from(Kind),
    group=st.none() | names,
    tier=st.none() | names,
    count=numbers,
    sequence=maybe,
    tokens=numbers,
    nbytes=numbers,
    seconds=st.none() | st.floats(0, 1e12),
)
pools = st.builds(
    Pool,
    name=names,
    pid=numbers,
    host=names,
    started=moments,
    workers=numbers,
    writer=names | st.sampled_from(["serve", "replay", "demo"]),
    block_tokens=numbers,
    policy=names,
    tiercache=names,
    path=names,
)
totals = st.dictionaries(
    st.sampled_from(["restored_tokens", "lost_tokens", "late", "unworthy", "stored_bytes"]), numbers
)


def snapshots(least_groups: int) -> st.SearchStrategy[Snapshot]:
    return st.builds(
        Snapshot,
        taken=moments,
        heartbeat=moments,
        phase=st.sampled_from(Phase),
        alive=st.booleans(),
        running=maybe,
        pool=st.none() | pools,
        groups=st.lists(groups, min_size=least_groups, max_size=9).map(tuple),
        tiers=st.lists(tiers, max_size=3).map(tuple),
        ram=st.none() | restores,
        missed=st.none() | restores,
        totals=totals,
        sequences=st.lists(sequences, max_size=5).map(tuple),
        sequences_dropped=numbers,
        victims=st.lists(victims, max_size=6).map(tuple),
        events_total=numbers,
        torn=st.booleans(),
        source=st.sampled_from(["segment", "metrics", "record"]),
    )


FILTERS = ["kind:evict", "!seq:e00", "group:g7 tier:nvme0", "a:b", "!", "kind:", "::", "live"]
TITLES = sorted(
    {title for name in View for title in view.columns(replace(live(), ui=UiState(name)))}
)


def choices(views: st.SearchStrategy[View]) -> st.SearchStrategy[UiState]:
    return st.builds(
        UiState,
        view=views,
        group=st.none() | names,
        cursor=st.integers(0, 9),
        detail=st.booleans(),
        filter=st.just("") | st.sampled_from(FILTERS) | st.text(max_size=40),
        filtering=st.booleans(),
        sort=st.sampled_from(["", "no such column", *TITLES]),
        inverted=st.booleans(),
        zoomed=st.booleans(),
        follow=st.booleans(),
        tokens=st.booleans(),
        paused_since=st.none() | moments,
        message=st.just("") | names,
    )


def frames(
    states: Iterable[State], views: st.SearchStrategy[View], *, snapshots_at_least: int, groups: int
) -> st.SearchStrategy[Frame]:
    return st.builds(
        Frame,
        target=names,
        interval=st.floats(0.25, 1e6),
        now=moments,
        status=st.builds(Status, st.sampled_from(list(states)), moments, names),
        history=st.lists(snapshots(groups), min_size=snapshots_at_least, max_size=2),
        log=st.lists(events, max_size=6),
        events_lost=numbers,
        ui=choices(views),
        baseline=st.none() | snapshots(0),
        glyphs=st.sampled_from([ASCII, UNICODE]),
    )


WITHOUT_NUMBERS = {State.WAITING, State.NO_TIERCACHE}
ANYTHING = frames(State, st.sampled_from(View), snapshots_at_least=0, groups=0)
SHOWN = {
    name: frames(set(State) - WITHOUT_NUMBERS, st.just(name), snapshots_at_least=1, groups=1)
    for name in View
}


def assert_fits(frame: Frame, width: int, height: int) -> None:
    lines = view.screen(frame, width, height)
    assert [line.cell_len for line in lines] == [width] * height
    assert_shows(lines, frame.glyphs)


@pytest.mark.parametrize("name", View)
@settings(EXAMPLES, max_examples=40)
@given(data=st.data(), width=st.integers(20, 300), height=st.integers(5, 100))
def test_every_line_has_the_width_of_the_screen(
    data: st.DataObject, width: int, height: int, name: View
) -> None:
    assert_fits(data.draw(SHOWN[name]), width, height)


@settings(EXAMPLES, max_examples=60)
@given(ANYTHING, st.booleans(), st.integers(0, 100), st.integers(0, 40))
def test_even_without_numbers_or_next_to_no_screen(
    frame: Frame, helping: bool, width: int, height: int
) -> None:
    assert_fits(replace(frame, ui=replace(frame.ui, helping=helping)), width, height)


@settings(EXAMPLES, max_examples=40)
@given(st.one_of(*SHOWN.values()), st.integers(20, 300))
def test_no_line_of_a_report_is_wider_than_asked_for(frame: Frame, width: int) -> None:
    lines = view.report(frame, width)
    assert all(line.cell_len <= width for line in lines)
    assert_shows(lines, frame.glyphs)


@settings(EXAMPLES, max_examples=60)
@given(st.one_of(ANYTHING, *SHOWN.values()))
def test_rows_can_be_counted_sorted_and_copied(frame: Frame) -> None:
    rows = view.row_count(frame)
    assert rows >= 0
    assert set(view.columns(frame)) <= set(TITLES)
    copied = view.selected(frame)
    assert copied.isprintable()
    assert rows or not copied


def assert_shows(lines: list[Text], glyphs: Glyphs) -> None:
    for line in lines:
        assert line.plain.isprintable()
        assert not glyphs.ascii_only or line.plain.isascii()


def test_every_key_is_in_the_help() -> None:
    frame = replace(live(), ui=UiState(helping=True))
    for width, height in ((80, 24), (200, 60)):
        shown = "\n".join(line.plain for line in view.screen(frame, width, height))
        assert all(f" {key.shown} " in shown for key in KEYS)
