# SPDX-License-Identifier: Apache-2.0
"""Whatever breaks in the probe, the cache goes on as if there had never been one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.core_helpers import BLOCK, chain
from tests.probe.conftest import Watching
from tiercache.events import Event
from tiercache.probe import board, publisher
from tiercache.probe.attach import attach
from tiercache.probe.board import Board
from tiercache.probe.restores import Restorations
from tiercache.probe.sequences import Sequences
from tiercache.replay.simulate import Player, Setup
from tiercache.replay.turns import Turn
from tiercache.stats.model import Phase
from tiercache.stats.writer import SegmentWriter


def make_player() -> Player:
    return Player(Setup.uniform(block_tokens=BLOCK, token_slots=20, state_slots=7, state_groups=2))


def play(player: Player, names: str) -> list[int]:
    """Conversations that take turns, more than there is room for; what each turn restored."""
    restored = []
    for length in range(3, 9):
        for name in names:
            turn = Turn(0.0, name, chain(name, length), length * BLOCK + 1, 0)
            restored.append(player.play(turn))
    player.cache.validate()
    return restored


def broken(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("broken")


SOMEWHERE = [
    (SegmentWriter, "event"),
    (SegmentWriter, "put_state"),
    (SegmentWriter, "put_groups"),
    (SegmentWriter, "put_victims"),
    (SegmentWriter, "put_sequence"),
    (SegmentWriter, "put_restores"),
    (Sequences, "open"),
    (Sequences, "close"),
    (Restorations, "ask"),
    (Restorations, "answer"),
    (Restorations, "load"),
    (Restorations, "serve"),
    (Restorations, "loaded"),
    (Board, "take"),
    (Board, "touch_state"),
    (Board, "disturb"),
    (board, "survey"),
    (board, "victims"),
]


@pytest.mark.parametrize(("where", "name"), SOMEWHERE, ids=lambda it: getattr(it, "__name__", it))
def test_a_fault_anywhere_is_logged_once_and_ends_the_segment(
    where: Any,
    name: str,
    watch: Watching,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    undisturbed = play(make_player(), "abc")
    assert any(undisturbed)
    player = make_player()
    seen = watch(player.cache)
    monkeypatch.setattr(where, name, broken)
    assert play(player, "abc") == undisturbed
    assert len(caplog.records) == 1
    assert "the stats segment is not written any more, the cache goes on" in caplog.text
    assert "RuntimeError: broken" in caplog.text
    assert seen.look().phase is Phase.FAILED
    assert player.cache.observer is None
    assert player.cache.journal.listeners == []


def test_the_other_listeners_miss_nothing(watch: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even of the event at which the probe gives up."""
    player = make_player()
    heard: tuple[list[Event], list[Event]] = ([], [])
    player.cache.journal.listeners.append(heard[0].append)
    watch(player.cache)
    player.cache.journal.listeners.append(heard[1].append)
    play(player, "a")
    monkeypatch.setattr(Board, "take", broken)
    play(player, "b")
    assert heard[0] == heard[1] != []
    assert player.cache.observer is None


def test_a_fault_of_a_tiers_job(
    watch: Watching, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup.uniform(block_tokens=BLOCK, token_slots=24, state_slots=4)
    results = []
    for breaks in (False, True):
        player = Player(Setup(setup.groups, setup.slots, disk_slots=60))
        watch(player.cache)
        if breaks:
            monkeypatch.setattr(Board, "touch_slots", broken)
        results.append(play(player, "abc"))
        assert (player.cache.observer is None) is breaks
    assert results[0] == results[1]
    assert len(caplog.records) == 1


def test_a_segment_that_cannot_be_closed(
    watch: Watching, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    player = make_player()
    seen = watch(player.cache)
    with monkeypatch.context() as patch:
        patch.setattr(SegmentWriter, "close", broken)
        player.cache.close()
        assert player.cache.observer is None
    assert len(caplog.records) == 1
    seen.publisher._writer.close()


@pytest.mark.parametrize("where", [Board, publisher.Publisher])
def test_a_fault_at_the_start(
    where: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    player = make_player()
    monkeypatch.setattr(where, "__init__", broken)
    assert attach(player.cache, name="model", directory=tmp_path) is None
    assert "no stats segment is written: broken" in caplog.text
    assert player.cache.observer is None
    play(player, "ab")
