# SPDX-License-Identifier: Apache-2.0
"""Faults that users of other caches met on their disks, tried on ours.

The numbers are those of ``docs/field-reports.md``, which says where each was reported.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiers.nvme.server_helpers import fill
from tests.tiers.nvme.tier_helpers import Rig, capacity_of, keys, namespace_of
from tiercache.tiers.nvme.offline import open_readonly
from tiercache.tiers.nvme.segments import SEGMENT_BYTES


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path / "nvme") as rig:
        yield rig


def test_c61_a_lookup_asks_no_file_system(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = keys(range(30))
    tier = rig.open()
    rig.stored(tier, stored)
    asked: list[str] = []
    for name in ("scandir", "listdir", "stat", "lstat", "open"):
        monkeypatch.setattr(os, name, lambda *args, name=name, **_: asked.append(name))
    have = [key for key in keys(range(200_000)) if tier.has(key)]
    missing = tier.missing(stored)
    monkeypatch.undo()
    assert have == stored
    assert missing == []
    assert asked == []


def test_c61_there_are_as_many_files_as_gigabytes_not_as_blocks(rig: Rig) -> None:
    tier = rig.open(capacity=capacity_of({0: 4000, 1: 10}))
    rig.stored(tier, keys(range(300)))
    files = list(namespace_of(rig.path).rglob("*"))
    assert len([file for file in files if file.suffix == ".seg"]) == 38  # of 8 slots, here
    assert SEGMENT_BYTES == 1 << 30
    tier.close()


def test_c82_whoever_looks_at_a_disk_holds_no_transaction_between_two_looks(
    tmp_path: Path,
) -> None:
    """A transaction that stays open would keep every page that is replaced from being reused."""
    namespace = fill(tmp_path / "nvme")
    with open_readonly(namespace.parent) as pool:
        one = pool.only()
        chunks = one.entries(0)
        next(chunks)
        one.index.info()
        assert [each for each in one.index.readers() if each.transaction is not None] == []
        assert list(chunks) == []
