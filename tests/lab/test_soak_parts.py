# SPDX-License-Identifier: Apache-2.0
"""What the soak relies on: tagged bytes, the journal of what must be there, and faults."""

import errno
import os
import random
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lab import soak_faults
from lab.soak_bytes import Bytes
from lab.soak_faults import Faults
from lab.soak_journal import Journal, Past, watched
from tests.core_helpers import full, keys, state
from tests.tiers.nvme.segments_helpers import mounted
from tiercache.blocks import Key
from tiercache.tiers.nvme.policy import make_disk_policy
from tiercache.tiers.nvme.space import SlotTable

A, B, C, D = keys([bytes([at]) * 32 for at in range(4)], 0)


# --- bytes


@pytest.fixture
def found() -> Iterator[Bytes]:
    memory = {group_id: memoryview(bytearray(4 * 4096)) for group_id in (0, 1)}
    made = Bytes([full(0), state(1)], memory)
    made.write(0, [A, B], [0, 2], epoch=5)
    yield made
    made.close()


def test_bytes_that_are_right(found: Bytes) -> None:
    assert found.wrong(0, [A, B], [0, 2], range(5, 6)) == []
    assert found.wrong(0, [B, A], [2, 0], range(3, 6)) == []
    assert found.wrong(0, [], [], range(1)) == []


@pytest.mark.parametrize("epochs", [range(4, 5), range(6, 7), range(1, 5)])
def test_bytes_of_another_epoch_are_wrong(found: Bytes, epochs: range) -> None:
    assert found.wrong(0, [A, B], [0, 2], epochs) == [A, B]


def test_bytes_of_another_block_or_group_are_wrong(found: Bytes) -> None:
    assert found.wrong(0, [A, A, B], [2, 0, 0], range(5, 6)) == [A, B]
    found.write(1, [A], [0], epoch=5)
    assert found.wrong(1, [A], [0], range(5, 6)) == []
    assert found.wrong(0, [A], [1], range(6)) == [A]
    found.scribble(0, [2])
    assert found.wrong(0, [A, B], [0, 2], range(5, 6)) == [B]


@pytest.mark.parametrize("at", [0, 1, 4095, 2048])
def test_every_byte_counts(at: int) -> None:
    memory = bytearray(4096)
    made = Bytes([full(0)], {0: memoryview(memory)})
    made.write(0, [A], [0], epoch=0)
    memory[at] ^= 1
    assert made.wrong(0, [A], [0], range(1)) == [A]
    made.close()


# --- the journal


def past(path: Path) -> Past:
    with closing(Journal(path)) as journal:
        return journal.past


def test_a_journal_has_what_was_stored_and_not_evicted(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with closing(Journal(path)) as journal, watched(journal) as tables:
        table = SlotTable(2, make_disk_policy("lru", 2), high_water=1.0, low_water=1.0)
        table.restore([], [])
        assert tables == [table]
        table.allocate([A, B])
        table.publish([A, B])
        table.allocate([C])  # evicts A, and is not stored
        table.drop([B])
        table.abandon([C])
        table.allocate([A])
        table.publish([A])
        table.clear()
        table.allocate([D])
        table.publish([D])
        journal.begin_talk(8)
    for _ in range(2):  # each begins anew from the one before
        assert past(path) == Past({D}, born=9)
    assert SlotTable.drop.__qualname__ == "SlotTable.drop"


def test_a_record_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with closing(Journal(path)) as journal:
        journal.note(b"+", [A, B])
    os.truncate(path, path.stat().st_size - 1)
    assert past(path).kept == {A}


def test_a_reset_counts_once_something_is_stored_after_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"

    def note(*, reset: bool = False, stored: tuple[Key, ...] = ()) -> range:
        with closing(Journal(path)) as journal:
            if reset:
                journal.begin_reset(journal.past.oldest, journal.past.epoch + 1)
                journal.note(b"-", journal.past.kept)
            journal.note(b"+", stored)
        return past(path).epochs

    assert note(stored=(A,)) == range(1)
    assert note(reset=True) == range(2)
    assert note(stored=(B,)) == range(2)  # what A was may have outlived the process
    assert note(reset=True) == range(3)
    assert note(reset=True, stored=(C,)) == range(3, 4)
    assert past(path).kept == set()  # it is not for the next process


# --- faults


def injecting(kind: str, monkeypatch: pytest.MonkeyPatch, ballast: Path | None = None) -> Faults:
    """Faults of one kind, all the time from the next tick on, of all calls."""
    monkeypatch.setattr(soak_faults, "CALM_S", (0.0, 0.0))
    monkeypatch.setattr(soak_faults, "FAULT_S", (3600.0, 3600.0))
    monkeypatch.setattr(soak_faults, "SHARES", (1.0,))
    monkeypatch.setattr(soak_faults, "DELAYS_S", (0.0,))
    monkeypatch.setattr(soak_faults, "CALLS", (("preadv", "pwritev", "fdatasync"),))
    return Faults([kind], random.Random(1), ballast)


@pytest.mark.parametrize("kind", ["eio", "slow"])
def test_calls_fail_or_take_long(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = injecting(kind, monkeypatch)
    preadv = os.preadv
    with (tmp_path / "file").open("w+b") as file, faults.installed():
        assert os.pwritev(file.fileno(), [b"x"], 0) == 1
        faults.tick()
        if kind == "eio":
            with pytest.raises(OSError, match="Input/output error"):
                os.preadv(file.fileno(), [bytearray(1)], 0)
        else:
            assert os.preadv(file.fileno(), [bytearray(1)], 0) == 1
        faults.calm()
        assert os.preadv(file.fileno(), [bytearray(1)], 0) == 1
    assert faults.injected == {kind: 1}
    assert os.preadv is preadv


def test_a_small_disk_is_filled_and_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted("tmpfs", tmp_path / "small", "size=1m") as small:
        faults = injecting("enospc", monkeypatch, small / "ballast")
        with faults.installed():
            faults.tick()
            full = re.escape(os.strerror(errno.ENOSPC))
            with pytest.raises(OSError, match=full), (small / "file").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, 8192)
        with (small / "file").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 8192)


def test_a_disk_of_others_is_never_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = injecting("enospc", monkeypatch, tmp_path / "ballast")
    with faults.installed():
        faults.tick()
    assert not list(tmp_path.iterdir())
