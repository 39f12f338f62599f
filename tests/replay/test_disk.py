# SPDX-License-Identifier: Apache-2.0
"""The disk of a replay: what the NVMe tier would have, and nothing of how long it takes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.core_helpers import full, state
from tests.replay.samples import named, turn
from tiercache.blocks import Key, make_key
from tiercache.replay.disk import DiskModel
from tiercache.replay.simulate import Player, Setup
from tiercache.tiers.base import Batch

BLOCK = 16


def keys(group_id: int, *names: str) -> list[Key]:
    return [make_key(name.encode(), group_id) for name in names]


def store(disk: DiskModel, group_id: int, some: Sequence[Key]) -> bool:
    return disk.store(Batch(1, group_id, list(some), list(range(len(some)))))


@pytest.fixture
def disk() -> DiskModel:
    """100 slots of group 0, 10 of group 1, as they are in memory 20 to 2."""
    return DiskModel([full(0), state(1)], {0: 20, 1: 2}, 100)


def test_it_is_divided_as_memory_is(disk: DiskModel) -> None:
    sizes = disk.memory.record_bytes
    assert disk.stats().capacity == 100 * sizes[0] + 10 * sizes[1]


def test_what_is_stored_can_be_loaded(disk: DiskModel) -> None:
    some, other = keys(0, "a", "b"), keys(0, "c")
    assert disk.missing([*some, *other]) == [*some, *other]
    assert store(disk, 0, some)
    assert disk.missing([*some, *other]) == other
    disk.load(Batch(2, 0, [*some, *other], [0, 1, 2]))
    stored, loaded = disk.poll()
    assert (stored.job_id, list(stored.failed)) == (1, [])
    assert (loaded.job_id, list(loaded.failed)) == (2, other)
    assert disk.poll() == []
    disk.validate()


def test_the_least_recent_and_the_demoted_leave(disk: DiskModel) -> None:
    some = keys(1, *"abcdefgh")
    for key in some:
        store(disk, 1, [key])
    disk.touch(some[:1])
    disk.demote(some[7:])
    for key in keys(1, *"ijkl"):
        store(disk, 1, [key])
    gone = disk.missing(some)
    assert gone[0] == some[1]
    assert some[7] in gone
    assert some[0] not in gone
    disk.validate()


def test_more_than_there_is_room_for_is_declined(disk: DiskModel) -> None:
    assert not store(disk, 1, keys(1, *"abcdefghijk"))
    assert disk.poll() == []


def test_nothing_is_left(disk: DiskModel) -> None:
    store(disk, 0, keys(0, "a"))
    disk.close()
    assert disk.stats().entries == disk.stats().used == 0
    disk.validate()


def test_an_evicted_conversation_comes_back() -> None:
    setup = Setup.uniform(block_tokens=BLOCK, token_slots=10, state_slots=4, state_groups=2)
    hashes = {name: named(f"{name}: ", 8) for name in "abc"}
    restored = {}
    for slots in (0, 100):
        player = Player(replace(setup, disk_slots=slots))
        for each in hashes.values():
            player.play(turn(each, 8 * BLOCK + 1, time=1.0))
        restored[slots] = player.play(turn(hashes["a"], 8 * BLOCK + 1, time=0.5))
        assert not player.cache.pending
        player.cache.validate()
    assert restored == {0: 0, 100: 8 * BLOCK}
