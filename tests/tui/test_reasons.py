# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest

from tests.tui import scenes
from tests.tui.scenes import LOSS, SEQUENCES, snapshot, state_group, token_group
from tiercache.stats.model import Group, Loss, Sequence, Slots, Where
from tiercache.tui import reasons

STRANDED, RESTING = SEQUENCES[0], SEQUENCES[1]
TOKENS, G1, G7 = token_group(0), state_group(1, 0), state_group(7, 0)


def spare(group: Group, free: int) -> Group:
    return replace(group, slots=replace(group.slots, free=free, demoted=0))


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ([], ""),
        ([TOKENS, G1, G7], "g7 loses a live checkpoint at the next store"),
        ([TOKENS, G1], "g1 loses a live checkpoint in 16 stores"),
        ([spare(TOKENS, 0), G1], "g1 loses a live checkpoint in 16 stores"),
        ([spare(TOKENS, 0)], "g0 loses a live attention block at the next store"),
        (
            [spare(state_group(n, 0), 0) for n in range(1, 4)],
            "g1-g3 lose a live checkpoint at the next store",
        ),
        ([replace(G7, slots=Slots(0, 1, 0, 0, 29))], "g7: nothing live to lose yet"),
        ([replace(G7, slots=Slots(0, 0, 0, 0, 0))], ""),
    ],
)
def test_who_loses_a_live_entry_next(groups: list[Group], sentence: str) -> None:
    assert reasons.next_loss(groups) == sentence


def test_a_full_cache_of_attention_blocks_is_no_alarm() -> None:
    assert reasons.is_alarming(G7)
    assert not reasons.is_alarming(G1)
    assert not reasons.is_alarming(spare(G7, 1))
    assert not reasons.is_alarming(spare(TOKENS, 0))
    assert reasons.next_victim(spare(TOKENS, 0)) == "live"
    assert reasons.next_victim(G7) == "LIVE"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"loss": None}, True),
        ({"restorable": 1}, False),
        ({"cached": 0}, False),
        ({"where": Where.RAM_BLOCKS | Where.RUNNING}, True),
        ({"where": Where.RAM_BLOCKS | Where.RUNNING, "loss": None}, False),
    ],
)
def test_who_is_stranded(changes: dict[str, object], expected: bool) -> None:
    assert replace(STRANDED, **changes).is_stranded is expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("loss", "words", "fate"),
    [
        (LOSS, "g7 lost to 91be02", "was evicted at 13:21:12 by a store of 91be02."),
        (replace(LOSS, by=None), "g7 evicted 13:21:12", "was evicted at 13:21:12."),
        (replace(LOSS, when=None), "g7 lost to 91be02", "was evicted by a store of 91be02."),
        (
            Loss("g7", 508_368, None, None),
            "g7 not stored",
            "was never stored, or that is not remembered.",
        ),
        (
            Loss("g7", 508_368, None, None, unreadable=True),
            "g7 unreadable on disk",
            "was on a tier and did not verify.",
        ),
    ],
)
def test_why_in_words(loss: Loss, words: str, fate: str) -> None:
    sequence = replace(STRANDED, loss=loss)
    assert reasons.short(sequence) == words
    said = reasons.sentences(sequence, snapshot())
    assert said[0].startswith("e00d3b cannot be restored: 508.8k tokens")
    assert said[1] == f"The checkpoint of g7 at token 508.4k {fate}"
    assert said[2] == "Its next turn computes these 508.8k tokens again."


def test_what_is_whole_is_said_to_be_whole() -> None:
    whole = replace(RESTING, restorable=RESTING.cached)
    assert reasons.sentences(whole, snapshot()) == [
        "All 508.8k cached tokens of 1f09bc can be restored."
    ]
    part = reasons.sentences(RESTING, snapshot())
    assert part[0] == "504.3k of 508.8k cached tokens of 1f09bc can be restored."


def test_the_largest_loss_comes_first() -> None:
    small = replace(STRANDED, number=1, cached=1632)
    found = reasons.stranded((small, *SEQUENCES))
    assert [each.number for each in found] == [scenes.STRANDED, 1]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ([], ""),
        (["g7"], "g7"),
        (["g1", "g2", "g3"], "g1-g3"),
        (["g1", "g3"], "g1+1"),
        (["e0.g1", "e0.g2"], "e0.g1-g2"),
        (["e0.g1", "e1.g2"], "e0.g1+1"),
        (["g²", "gé"], "g²+1"),
        (["", ""], "+1"),
    ],
)
def test_names_of_groups_in_short(names: list[str], shown: str) -> None:
    assert reasons.span(names) == shown


def test_places_count_the_free_slots_first_and_leave_out_pinned_ones() -> None:
    places = [place for group, place, _ in reasons.places(snapshot()) if group == "g1"]
    assert places == list(range(4, 18))
    assert [place for group, place, _ in reasons.places(snapshot()) if group == "g7"] == [0, 1]
    assert list(reasons.places(None)) == []


def test_numbers_are_names() -> None:
    assert reasons.name(1) == "000001"
    assert reasons.name(None) == "-"


def test_half_is_not_stranded_but_worth_a_place_in_front() -> None:
    half: Sequence = replace(RESTING, restorable=RESTING.cached // 2 - 1)
    assert reasons.is_halved(half)
    assert not reasons.is_halved(RESTING)
