# SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tui.servers import qwen
from tiercache.stats.model import Phase, Sequence, SlotClass, Snapshot, Victim, Where
from tiercache.tui.plain import MAX_INT, from_plain, to_plain

Change = Callable[[dict[str, Any]], object]


def plain() -> dict[str, Any]:
    """A snapshot as it comes out of a file."""
    data: dict[str, Any] = json.loads(json.dumps(to_plain(qwen(3))))
    return data


def test_a_snapshot_comes_back_as_it_was() -> None:
    assert from_plain(Snapshot, plain()) == qwen(3)


def test_enumerations_are_words() -> None:
    data = plain()
    assert data["phase"] == "run"
    assert data["victims"][0]["slot_class"] == "demoted"
    assert data["sequences"][1]["where"] == ["ram_blocks", "ram_states", "running"]
    assert data["events"][0]["kind"] == "restored"


def set_at(*path: str | int, value: object) -> Change:
    def change(data: dict[str, Any]) -> None:
        inner: Any = data
        for part in path[:-1]:
            inner = inner[part]
        inner[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("taken"), "taken is missing"),
        (set_at("colour", value=1), "'colour' is no field of a snapshot"),
        (set_at("taken", value="now"), "taken: 'now' is not a number"),
        (set_at("taken", value=True), "taken: True is not a number"),
        (set_at("taken", value=1e300), "taken: 1e+300 is not a number"),
        (set_at("taken", value=float("nan")), "taken: nan is not a number"),
        (set_at("taken", value=10**400), "taken: 1000"),
        (set_at("alive", value=1), "alive: 1 is not true or false"),
        (set_at("running", value=-1), "running: -1 is not a counter"),
        (set_at("running", value=MAX_INT), "is not a counter"),
        (set_at("running", value=1.5), "running: 1.5 is not a counter"),
        (set_at("phase", value="sleep"), "phase: 'sleep' is not a phase"),
        (set_at("phase", value=["run"]), "phase: ['run'] is not a phase"),
        (set_at("pool", value=[]), "pool: [] is not an object"),
        (set_at("pool", "name", value=7), "pool: name: 7 is not a short text"),
        (set_at("pool", "name", value="x" * 5000), "is not a short text"),
        (set_at("groups", value={}), "groups: {} is not a list"),
        (set_at("groups", 3, "slots", "live", value=None), "groups: slots: live: None is not a"),
        (set_at("groups", 3, "counts", value=[]), "counts: [] is not an object"),
        (set_at("sequences", 0, "where", value=["moon"]), "where: 'moon' is not a where"),
        (set_at("sequences", 0, "where", value="tier"), "where: 'tier' is not a list"),
        (set_at("events", 0, "kind", value="party"), "kind: 'party' is not a kind"),
    ],
)
def test_what_cannot_have_been_a_snapshot_is_refused(change: Change, message: str) -> None:
    data = plain()
    change(data)
    with pytest.raises(ValueError, match=r"\w") as caught:
        from_plain(Snapshot, data)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 200


sequences = st.builds(
    Sequence,
    *[st.integers(0, 2**32 - 1)] * 2,
    st.floats(0, 1e11),
    *[st.integers(0, MAX_INT - 1)] * 6,
    st.sampled_from(list(Where)).map(lambda flag: flag | Where.TIER),
    st.none() | st.text(max_size=5),
)
victims = st.builds(
    Victim,
    st.text(max_size=5),
    st.integers(0, 2**32),
    st.sampled_from(SlotClass),
    *[st.none() | st.integers(0, 2**40)] * 2,
    st.none() | st.floats(0, 1e11),
    st.none() | st.text(max_size=5),
    st.integers(0, 2**40),
)


@given(sequences, victims)
def test_values_come_back_as_they_were(sequence: Sequence, victim: Victim) -> None:
    for value in (sequence, victim):
        assert from_plain(type(value), json.loads(json.dumps(to_plain(value)))) == value


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(st.sampled_from(sorted(plain())), anything)
def test_any_value_of_any_field_is_a_snapshot_or_a_value_error(name: str, value: object) -> None:
    with suppress(ValueError):
        assert isinstance(from_plain(Snapshot, plain() | {name: value}), Snapshot)


def test_a_phase_of_a_later_version_is_no_crash() -> None:
    assert [to_plain(phase) for phase in Phase] == ["init", "run", "closed", "failed"]
