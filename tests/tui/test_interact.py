# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.tui.interact import CHANGES, EFFECTS, MAX_FILTER, Around, Effect, press, show
from tiercache.tui.keys import ACTIONS, KEYS, Action
from tiercache.tui.state import UiState, View

AROUND = Around(
    now=100.0,
    rows=40,
    page=10,
    groups=("g0", "g1", "g7"),
    group="g7",
    columns=("SEQ", "IDLE", "CACHED"),
)
SEQUENCES = UiState(view=View.SEQUENCES)


def after(keys: str, ui: UiState = SEQUENCES, around: Around = AROUND) -> UiState:
    for key in keys.split():
        ui, _ = press(ui, key, key if len(key) == 1 else None, around)
    return ui


def test_every_action_has_a_key_and_every_key_does_something() -> None:
    assert {key.action for key in KEYS} == set(Action)
    assert set(CHANGES) | set(EFFECTS) == set(Action)
    assert set(CHANGES) & set(EFFECTS) == set()
    assert len(ACTIONS) == sum(len(key.keys) for key in KEYS)


@pytest.mark.parametrize(("key", "view"), list(zip("12345", View, strict=True)))
def test_numbers_choose_a_view(key: str, view: View) -> None:
    assert after(key).view is view


def test_tab_goes_round_the_views() -> None:
    assert [after("tab " * n).view for n in range(5)] == [*list(View)[1:], View.OVERVIEW]
    assert after("tab shift+tab") == SEQUENCES
    assert after("1 shift+tab").view is View.EVENTS


def test_another_view_begins_at_its_top_and_keeps_the_filter() -> None:
    ui = UiState(cursor=7, detail=True, sort="IDLE", inverted=True, helping=True, filter="e00")
    assert show(ui, View.TIERS) == UiState(view=View.TIERS, filter="e00")


@pytest.mark.parametrize("key", ["question_mark", "f1"])
def test_help_comes_and_goes(key: str) -> None:
    assert after(key).helping
    assert after(f"{key} {key}") == SEQUENCES


def test_pause_remembers_since_when() -> None:
    assert after("space").paused_since == 100.0
    assert after("space space").paused_since is None


def test_there_is_nothing_to_hold_before_the_first_picture() -> None:
    around = replace(AROUND, can_pause=False)
    assert after("space", around=around).paused_since is None
    assert after("space", UiState(paused_since=1.0), around).paused_since is None


@pytest.mark.parametrize(
    ("keys", "cursor"),
    [
        ("down", 6),
        ("j j", 7),
        ("up", 4),
        ("k k", 3),
        ("pagedown", 15),
        ("pageup", 0),
        ("pagedown pagedown pagedown pagedown pagedown", 39),
        ("home", 0),
        ("g", 0),
        ("end", 39),
        ("G", 39),
        ("G down", 39),
        ("g up", 0),
    ],
)
def test_the_cursor_moves_and_stays_on_the_list(keys: str, cursor: int) -> None:
    assert after(keys, replace(SEQUENCES, cursor=5)).cursor == cursor


@pytest.mark.parametrize("key", ["down", "up", "pagedown", "pageup", "home", "end"])
def test_there_may_be_no_row(key: str) -> None:
    assert after(key, around=Around(now=0.0)).cursor == 0


def test_a_cursor_beyond_a_list_that_got_shorter_comes_back() -> None:
    assert after("up", replace(SEQUENCES, cursor=90)).cursor == 38


def test_enter_opens_and_closes_the_detail_of_a_row() -> None:
    assert after("enter").detail
    assert not after("enter enter").detail
    assert not after("enter", around=replace(AROUND, rows=0)).detail


def test_escape_goes_one_step_back_at_a_time() -> None:
    ui = UiState(helping=True, detail=True, zoomed=True, filter="e00")
    steps = [after("escape " * n, ui) for n in range(1, 6)]
    assert steps[0] == replace(ui, helping=False)
    assert steps[1] == replace(steps[0], detail=False)
    assert steps[2] == replace(steps[1], zoomed=False)
    assert steps[3] == steps[4] == UiState()


def test_sort_goes_round_the_columns_and_the_order_of_the_view() -> None:
    orders = [after("greater_than_sign " * n).sort for n in range(5)]
    assert orders == ["", "SEQ", "IDLE", "CACHED", ""]
    assert after("less_than_sign").sort == "CACHED"
    assert after("greater_than_sign less_than_sign").sort == ""


def test_a_column_that_is_not_there_is_sorted_by_no_more() -> None:
    assert after("greater_than_sign", replace(SEQUENCES, sort="SPARE")).sort == "SEQ"


def test_invert() -> None:
    assert after("I").inverted
    assert not after("I I").inverted


def test_brackets_go_round_the_groups_from_the_one_shown() -> None:
    assert after("right_square_bracket").group == "g0"
    assert after("left_square_bracket").group == "g1"
    assert after("right_square_bracket", around=Around(now=0.0)).group is None
    unknown = replace(AROUND, group=None)
    assert after("right_square_bracket", around=unknown).group == "g0"
    assert after("left_square_bracket", around=unknown).group == "g0"


def test_zoom_and_units() -> None:
    assert after("z").zoomed
    assert not after("z z").zoomed
    assert after("t").tokens
    assert not after("t t").tokens


EVENTS = UiState(view=View.EVENTS)


def test_moving_away_from_the_newest_event_stops_following() -> None:
    assert after("up", EVENTS) == replace(EVENTS, cursor=38, follow=False)
    assert after("g", EVENTS) == replace(EVENTS, cursor=0, follow=False)
    assert after("down", EVENTS) == replace(EVENTS, cursor=39)
    assert after("up down", EVENTS) == replace(EVENTS, cursor=39, follow=False)


def test_the_end_of_the_events_is_followed_again() -> None:
    assert after("up G", EVENTS) == replace(EVENTS, cursor=39)


def test_follow_stays_where_the_newest_event_is_now() -> None:
    assert after("f", EVENTS) == replace(EVENTS, cursor=39, follow=False)
    assert after("f f", EVENTS).follow


@pytest.mark.parametrize(
    ("key", "effect"),
    [
        ("q", Effect.QUIT),
        ("ctrl+c", Effect.QUIT),
        ("plus", Effect.SLOWER),
        ("minus", Effect.FASTER),
        ("s", Effect.SAVE),
        ("c", Effect.COPY),
        ("r", Effect.RESET),
        ("T", Effect.THEME),
        ("x", Effect.NONE),
        ("down", Effect.NONE),
    ],
)
def test_effects(key: str, effect: Effect) -> None:
    ui, found = press(SEQUENCES, key, None, AROUND)
    assert found is effect
    assert effect is Effect.NONE or ui == SEQUENCES


def test_the_next_key_takes_a_message_away() -> None:
    assert after("x", replace(SEQUENCES, message="saved")) == SEQUENCES


def typed(*keys: tuple[str, str | None], ui: UiState = SEQUENCES) -> UiState:
    ui = after("slash", ui)
    for key, character in keys:
        ui, effect = press(ui, key, character, AROUND)
        assert effect is Effect.NONE
    return ui


def test_a_filter_is_typed_until_enter() -> None:
    letters = [("q", "q"), ("exclamation_mark", "!"), ("space", " "), ("1", "1")]
    ui = typed(*letters, ui=replace(SEQUENCES, cursor=4))
    assert (ui.filter, ui.filtering, ui.cursor, ui.view) == ("q! 1", True, 0, View.SEQUENCES)
    done = typed(*letters, ("enter", None))
    assert (done.filter, done.filtering) == ("q! 1", False)


def test_editing_a_filter() -> None:
    assert typed(("a", "a"), ("b", "b"), ("backspace", "\x7f")).filter == "a"
    assert typed(("backspace", "\x7f")).filter == ""
    assert typed(("a", "a"), ("ctrl+u", "\x15"), ("b", "b")).filter == "b"
    assert typed(("a", "a"), ("up", None), ("tab", "\t"), ("f1", None)).filter == "a"
    assert typed(("a", "a"), ("escape", "\x1b")) == SEQUENCES


def test_an_old_filter_is_edited_further() -> None:
    assert typed(("b", "b"), ui=replace(SEQUENCES, filter="a")).filter == "ab"


def test_a_filter_has_an_end() -> None:
    assert len(typed(*[("a", "a")] * (MAX_FILTER + 5)).filter) == MAX_FILTER


def test_ctrl_c_quits_even_while_a_filter_is_typed() -> None:
    _, effect = press(replace(SEQUENCES, filtering=True), "ctrl+c", "\x03", AROUND)
    assert effect is Effect.QUIT


any_ui = st.builds(
    UiState,
    view=st.sampled_from(View),
    group=st.none() | st.sampled_from(["g0", "g9"]),
    cursor=st.integers(0, 100),
    detail=st.booleans(),
    filter=st.text(max_size=3),
    filtering=st.booleans(),
    sort=st.sampled_from(["", "IDLE", "NONE"]),
    inverted=st.booleans(),
    zoomed=st.booleans(),
    follow=st.booleans(),
    helping=st.booleans(),
    paused_since=st.none() | st.just(1.0),
)
any_around = st.builds(
    Around,
    now=st.just(2.0),
    rows=st.integers(0, 50),
    page=st.integers(1, 20),
    groups=st.lists(st.sampled_from(["g0", "g1", "g2"]), unique=True).map(tuple),
    group=st.none() | st.sampled_from(["g0", "g9"]),
    columns=st.lists(st.sampled_from(["IDLE", "SEQ"]), unique=True).map(tuple),
    can_pause=st.booleans(),
)


@given(any_ui, st.sampled_from([*ACTIONS, "x", "f5", "backspace"]), any_around)
def test_no_key_ever_leaves_the_list(ui: UiState, key: str, around: Around) -> None:
    character = key if len(key) == 1 else None
    new, _ = press(ui, key, character, around)
    assert new.cursor == ui.cursor or 0 <= new.cursor < max(around.rows, 1)
    assert new.sort in (ui.sort, "", *around.columns)
    assert new.group == ui.group or new.group in around.groups
