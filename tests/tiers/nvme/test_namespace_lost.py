# SPDX-License-Identifier: Apache-2.0
"""Namespaces of a random hash seed, which nobody can open again: they are removed."""

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tiers.nvme.tier_helpers import Rig, keys
from tiercache.tiers.nvme import namespace as module
from tiercache.tiers.nvme.namespace import Namespace

RECORDS = {0: 8192, 1: 65536}
LOST = "random:0123"

Open = Callable[[str], Namespace]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Open namespaces of a hash seed below tmp_path; closed afterwards."""
    made: list[Namespace] = []

    def make(seed: str) -> Namespace:
        made.append(Namespace.open(tmp_path, {"model": "m", "hash_seed": seed}, RECORDS))
        return made[-1]

    yield make
    for one in made:
        one.close()


def left(path: Path) -> list[str]:
    return sorted(child.name for child in path.iterdir())


@pytest.mark.parametrize("seed", ["PYTHONHASHSEED=0", "random:4567"])
def test_it_is_removed_with_one_line_that_says_how_much_it_was(
    opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: str
) -> None:
    lost = opened(LOST)
    (lost.group_directory(0) / "000000.seg").write_bytes(bytes(1 << 20))
    lost.close()
    nbytes = sum(path.lstat().st_blocks * 512 for path in lost.directory.rglob("*"))
    caplog.set_level(logging.INFO, logger="tiercache")
    ours = opened(seed)
    assert left(tmp_path) == [ours.directory.name]
    assert ours.unused == []
    [record] = caplog.records
    assert f"removed namespace {lost.directory.name}, {nbytes} bytes" in record.getMessage()


def test_others_are_left_alone(opened: Open, tmp_path: Path) -> None:
    other = opened("PYTHONHASHSEED=1")
    other.close()
    ours = opened(LOST)
    ours.close()
    again = opened(LOST)  # whoever has the seed may use it
    assert left(tmp_path) == sorted([ours.directory.name, other.directory.name])
    assert [unused.name for unused in again.unused] == [other.directory.name]


def test_one_that_is_open_is_left_alone(opened: Open, tmp_path: Path) -> None:
    lost, ours = opened(LOST), opened("random:4567")
    assert left(tmp_path) == sorted([lost.directory.name, ours.directory.name])


def test_one_whose_lock_is_only_seen_when_it_is_tried_is_left_alone(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another container, whose processes the kernel's list does not show."""
    lost = opened(LOST)
    monkeypatch.setattr(module, "is_locked", lambda _: False)
    ours = opened("random:4567")
    assert left(tmp_path) == sorted([lost.directory.name, ours.directory.name])
    assert [unused.name for unused in ours.unused] == [lost.directory.name]


def test_what_cannot_be_removed_is_found_again_next_time(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lost = opened(LOST)
    lost.close()

    def refused(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    with monkeypatch.context() as broken:
        broken.setattr("shutil.rmtree", refused)
        ours = opened("random:4567")
    assert [unused.name for unused in ours.unused] == [lost.directory.name]
    assert "cannot be removed" in caplog.text
    ours.close()
    assert opened("random:4567").unused == []


def test_a_start_that_is_killed_while_it_removes_leaves_it_to_the_next(
    opened: Open, tmp_path: Path
) -> None:
    """The removal is cut off after its first directory."""
    lost = opened(LOST)
    lost.close()
    code = (
        "import os, shutil, sys\n"
        "from pathlib import Path\n"
        "from tiercache.tiers.nvme.namespace import Namespace\n"
        "remove = shutil.rmtree\n"
        "def once(path):\n"
        "    remove(path)\n"
        "    os._exit(9)\n"
        "shutil.rmtree = once\n"
        'Namespace.open(Path(sys.argv[1]), {"model": "m", "hash_seed": "random:89"}, {0: 8192})\n'
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert killed.returncode == 9
    assert lost.directory.exists()
    ours = opened("PYTHONHASHSEED=0")
    assert left(tmp_path) == [ours.directory.name]
    assert ours.unused == []


def test_a_tier_gets_its_bytes_back(rig: Rig) -> None:
    for start in range(4):
        tier = rig.open(fingerprint={"hash_seed": f"random:{start}"})
        rig.stored(tier, keys(range(8)))
        tier.close()
        assert len(left(rig.path)) == 1
