# SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.fleet import main
from lab.fleet_machines import (
    DISK,
    RAM,
    ROUTERS,
    SHARED,
    Balanced,
    Counts,
    Fleet,
    Names,
    Sticky,
    play,
)
from lab.fleet_report import HEADINGS, Costs, break_even, row, table, with_gains
from tiercache.blocks import GroupKind
from tiercache.replay.simulate import Setup
from tiercache.replay.turns import Stream, Turn

BLOCK = 16
LARGE = Setup.uniform(block_tokens=BLOCK, token_slots=100, state_groups=0)
SMALL = Setup.uniform(block_tokens=BLOCK, token_slots=4, state_groups=0)
COSTS = Costs(token_page=1000, state_page=500, compute_rate=100.0)


def turn(time: float, name: str, blocks: int) -> Turn:
    """A prompt of so many blocks, and one token of the next."""
    hashes = [f"{name} {n}".encode() for n in range(blocks)]
    return Turn(time, name, hashes, blocks * BLOCK + 1, 1)


def played(turns: Sequence[Turn], fleet: Fleet) -> Counts:
    return play(Stream("made", BLOCK, lambda: iter(turns)), fleet)


def restored_blocks(counts: Counts) -> dict[str, int]:
    return {tier: tokens // BLOCK for tier, tokens in counts.restored.items()}


TWICE = [turn(0, "a", 10), turn(1, "a", 12)]


def test_what_one_machine_computed_the_other_has_from_the_shared_tier() -> None:
    alone = played(TWICE, Fleet(LARGE, 2, "balanced"))
    shared = played(TWICE, Fleet(LARGE, 2, "balanced", shared_slots=100))
    assert restored_blocks(alone) == {}
    assert restored_blocks(shared) == {SHARED: 10}
    assert (shared.moved_requests, shared.moved_restored) == (1, 10 * BLOCK)
    assert shared.read == {GroupKind.FULL: 10}
    assert shared.written == {GroupKind.FULL: 12}


def test_a_conversation_that_stays_needs_no_shared_tier() -> None:
    counts = played(TWICE, Fleet(LARGE, 2, "sticky", shared_slots=100))
    assert restored_blocks(counts) == {RAM: 10}
    assert counts.moved_requests == 0
    assert counts.read == {}


def test_what_memory_has_no_room_for_comes_from_the_own_disk_first() -> None:
    turns = [turn(0, "a", 4), turn(1, "b", 4), turn(2, "a", 4)]
    counts = played(turns, Fleet(replace(SMALL, disk_slots=50), 1, "sticky", shared_slots=50))
    assert restored_blocks(counts) == {DISK: 4}


def test_conversations_of_a_machine_that_left_go_on_elsewhere() -> None:
    fleet = Fleet(LARGE, 2, "sticky", leaves=0.5)
    assert restored_blocks(played(TWICE, fleet)) == {}
    counts = played(TWICE, replace(fleet, shared_slots=100))
    assert restored_blocks(counts) == {SHARED: 10}
    assert counts.moved_requests == 1


def test_the_last_machine_does_not_leave() -> None:
    counts = played(TWICE, Fleet(LARGE, 1, "sticky", leaves=0.5))
    assert restored_blocks(counts) == {RAM: 10}


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 12)), max_size=25),
    st.sampled_from(sorted(ROUTERS)),
    st.integers(1, 3),
    st.sampled_from([0, 9, 60]),
    st.sampled_from([0, 9, 60]),
)
def test_tokens_add_up(
    asked: Iterable[tuple[str, int]], routing: str, machines: int, disk: int, shared: int
) -> None:
    turns = [turn(at, name, blocks) for at, (name, blocks) in enumerate(asked)]
    machine = replace(SMALL, disk_slots=disk)
    counts = played(turns, Fleet(machine, machines, routing, shared))
    assert counts.prompt_tokens == sum(turn.input_tokens for turn in turns)
    assert counts.prompt_tokens == counts.restored_tokens + sum(counts.computed)
    assert set(counts.restored) <= {RAM, *[DISK] * bool(disk), *[SHARED] * bool(shared)}


def test_states_are_counted_apart() -> None:
    hybrid = Setup.uniform(block_tokens=BLOCK, token_slots=100, state_slots=9, state_groups=2)
    counts = played(TWICE, Fleet(hybrid, 2, "balanced", shared_slots=100))
    assert counts.read == {GroupKind.FULL: 10, GroupKind.STATE: 2}
    assert COSTS.nbytes(counts.read) == 10 * 1000 + 2 * 500


def test_routers() -> None:
    assert Sticky().choose(1, {0: 5, 1: 9}) == 1
    assert Sticky().choose(None, {0: 5, 1: 9}) == 0
    assert Balanced().choose(1, {0: 5, 1: 9}) == 0
    assert all(ROUTERS[name]().choose(None, {2: 7}) == 2 for name in ROUTERS)


def test_conversations_are_told_apart_by_what_follows_the_common_head() -> None:
    names = Names()

    def of(*hashes: bytes) -> str:
        return names.of(Turn(0, "", hashes, 100, 1))

    first = of(b"head", b"a1")
    assert of(b"head", b"b1") != first
    assert of(b"head", b"a1", b"a2") == first
    assert of(b"head") != of(b"head")
    assert names.of(Turn(0, "said", (b"head", b"a1"), 100, 1)) == "said"


def test_break_even() -> None:
    # 8.4 GiB or the 265 s that 504,288 tokens take at 1,903 tokens/s: 34 MB/s.
    assert break_even(9.02e9, 504_288, 504_288 / 265) == pytest.approx(34.0e6, rel=0.01)
    assert break_even(5, 0, 100) is None


def test_gains_are_over_the_same_fleet_without_a_shared_tier() -> None:
    fleets = [Fleet(LARGE, 2, routing, s) for routing in ("balanced", "sticky") for s in (0, 100)]
    rows = with_gains([row("made", f, played(TWICE, f), COSTS) for f in fleets], COSTS)
    prompt = 22 * BLOCK + 2
    assert [r["gain"] for r in rows] == [None, round(10 * BLOCK / prompt, 4), None, 0.0]
    assert rows[1]["break_even_restore"] == 10 * 1000 * 100 / (10 * BLOCK)
    assert rows[1]["break_even_all"] == 22 * 1000 * 100 / (10 * BLOCK)
    assert rows[3]["break_even_all"] is None
    assert with_gains(rows[1:2], COSTS)[0]["gain"] is None


def test_the_table_has_a_line_for_each_row() -> None:
    fleet = Fleet(LARGE, 2, "balanced", 100)
    rows = with_gains([row("made", fleet, played(TWICE, fleet), COSTS)], COSTS)
    trace, about, headings, line = table(rows).splitlines()
    assert (trace, about) == ("made", "2 requests, 354 prompt tokens")
    assert all(heading in headings for heading in HEADINGS)
    assert line.split()[:4] == ["2", "balanced", "0", "100"]


def test_every_combination_is_played(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--conversations", "2", "--max-requests", "3", "--token-slots", "100", "--grow"]
    status = main([*sizes, "--machines", "1,2", "--shared", "0,500", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert status == 0
    assert document["schema"] == "tiercache.fleet/1"
    rows = document["data"]
    assert [(r["machines"], r["shared_slots"]) for r in rows] == [(1, 0), (1, 500)] + [
        (2, 0),
        (2, 500),
    ] * len(ROUTERS)
    assert rows[-1]["requests"] > rows[0]["requests"]
    assert all(0 <= r["restored_share"] < 1 for r in rows)


@pytest.mark.parametrize("wrong", [["nowhere.jsonl"], ["--span", "0", "--conversations", "1"]])
def test_what_cannot_be_played_is_refused(
    wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--machines", "1", *wrong]) == 2


def test_an_unknown_routing_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["--routing", "nearest"])
