# SPDX-License-Identifier: Apache-2.0
"""``tiercache prune``, ``compact`` and ``drop`` over real pools."""

import os
from pathlib import Path

import pytest

from tests.cli.pool_helpers import Run, directory, document, indexed, run, sound
from tests.tiers.nvme.damage_helpers import FIRST, SECOND, STORED, segment
from tests.tiers.nvme.segments_helpers import mounted
from tests.tiers.nvme.server_helpers import Server, fill, reopened
from tests.tiers.nvme.test_offline import tree
from tests.tiers.nvme.tier_helpers import (
    FINGERPRINT,
    SLOT_BYTES,
    Rig,
    content,
    keys,
    occupied,
)
from tiercache.blocks import key_hash
from tiercache.cli.diagnostics import ExitCode

__all__ = ["directory", "run"]


def everything(directory: Path) -> bytes:
    """All bytes of all files."""
    return b"".join(file.read_bytes() for file in directory.rglob("*") if file.is_file())


# --- compact


def test_compact_gives_back_what_no_entry_needs(run: Run, directory: Path) -> None:
    run("drop", directory, *(key_hash(k).hex() for k in FIRST[6:18]), "--yes")
    before = occupied(directory)
    plan = document(run, "compact", directory, "-n")["data"][0]
    assert plan["segments_removed"] == 1
    assert plan["segments_shrunk"] == 3
    assert plan["freed_bytes"] is None
    [done] = document(run, "compact", directory, "--yes")["data"]
    assert done["freed_bytes"] == before - occupied(directory) >= plan["segment_bytes"] > 0
    assert segment(directory, 0).stat().st_size == 6 * SLOT_BYTES[0]
    assert not segment(directory, 1).exists()
    hole = segment(directory, 2)
    assert hole.stat().st_size == 8 * SLOT_BYTES[0]
    assert hole.stat().st_blocks * 512 == 6 * SLOT_BYTES[0]
    sound(run, directory)
    again = document(run, "compact", directory, "-n")["data"][0]
    assert (again["segment_bytes"], again["segments_removed"]) == (0, 0)
    with reopened(directory.parent) as served:
        left = [*FIRST[:6], *FIRST[18:], *SECOND]
        assert set(served) == set(left)


def test_a_compacted_pool_takes_all_that_it_took_before(run: Run, directory: Path) -> None:
    run("drop", directory, *(key_hash(k).hex() for k in FIRST[2:22]), "--yes")
    run("compact", directory, "--yes")
    new = keys(range(500, 530))
    with Rig(directory.parent) as rig:
        tier = rig.open()
        rig.stored(tier, new)
        assert rig.loaded(tier, new) == new
        assert rig.loaded(tier, [FIRST[0], FIRST[23]]) == [FIRST[0], FIRST[23]]
        tier.close()
    sound(run, directory)


def test_compact_without_holes(run: Run, tmp_path: Path) -> None:
    with mounted("ramfs", tmp_path / "ram") as disk:
        directory = fill(disk / "nvme")
        run("drop", directory, *(key_hash(k).hex() for k in FIRST[9:15]), "--yes")
        code, _, err = run("compact", directory, "--yes")
        assert code == ExitCode.OK
        assert "has no holes" in err
        sound(run, directory)
        with reopened(directory.parent) as served:
            assert len(served) == 24


# --- prune


@pytest.mark.parametrize("keep", ["0", "0.5", "50%", "4%", "100%"])
def test_prune_keeps_the_youngest_share_of_each_group(run: Run, directory: Path, keep: str) -> None:
    share = float(keep.rstrip("%")) / (100 if "%" in keep else 1)
    first, second = -(-24 * share // 1), -(-6 * share // 1)
    document(run, "prune", directory, "--keep", keep, "--yes")
    kept = {*FIRST[24 - int(first) :], *SECOND[6 - int(second) :]}
    assert set(indexed(directory)) == kept
    with reopened(directory.parent) as served:
        assert set(served) == kept


def test_prune_until_so_much_is_free(run: Run, tmp_path: Path) -> None:
    """On a file system of its own: slots without entries go first, then the oldest entries."""
    with mounted("tmpfs", tmp_path / "disk", "size=4m") as disk:
        directory = fill(disk / "nvme")
        free = os.statvfs(disk).f_bavail * 4096
        enough = document(run, "prune", directory, "--until-free", free, "--yes")
        assert (enough["data"], enough["free_bytes"]) == ([], free)
        spare = 2 * SLOT_BYTES[1]  # of the last segment of group 1
        found = document(run, "prune", directory, "--until-free", free + spare, "--yes")
        assert found["free_bytes"] >= free + spare
        assert found["data"][0]["entries"] == 0
        assert set(indexed(directory)) == set(STORED)
        wanted = found["free_bytes"] + 10 * SLOT_BYTES[0] - 100
        found = document(run, "prune", directory, "--until-free", wanted, "--yes")
        assert found["free_bytes"] >= wanted
        assert set(indexed(directory)) == {*FIRST[10:], *SECOND}
        with reopened(directory.parent) as served:
            assert set(served) == {*FIRST[10:], *SECOND}
        code, _, err = run("prune", directory, "--until-free", "1GiB", "--yes")
        assert code == ExitCode.PROBLEM
        assert "nothing is left to remove" in err
        assert indexed(directory) == []


def test_prune_removes_namespaces_that_nobody_opened_last(run: Run, tmp_path: Path) -> None:
    for number in range(3):
        with Rig(tmp_path) as rig:
            tier = rig.open(fingerprint={**FINGERPRINT, "model": f"m{number}"})
            rig.stored(tier, keys(range(4)))
            name = tier._disk.namespace.directory
            tier.close()
        os.utime(name / "lock", (1000 + number, 1000 + number))
    names = sorted(path.name for path in tmp_path.iterdir())
    found = document(run, "prune", tmp_path, "--unused-namespaces", "-n")["data"]
    assert [row["model"] for row in found] == ["m0", "m1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    with Server(tmp_path) as server:  # of yet another model
        server.store(0, 4)
        document(run, "prune", tmp_path, "--unused-namespaces", "--yes")
        [left] = tmp_path.iterdir()
        assert set(indexed(left)) == set(keys(range(4)))


def test_prune_does_not_change_when_a_server_last_opened_it(run: Run, directory: Path) -> None:
    os.utime(directory / "lock", (1000, 1000))
    run("prune", directory, "--keep", "50%", "--yes")
    assert (directory / "lock").stat().st_mtime == 1000


@pytest.mark.parametrize("arguments", [[], ["--keep", "1", "--unused-namespaces"], ["--keep", "2"]])
def test_prune_is_told_one_thing(run: Run, directory: Path, arguments: list[str]) -> None:
    assert run("prune", directory, *arguments)[0] == ExitCode.USAGE


# --- drop


def test_what_is_dropped_cannot_be_read_any_more(run: Run, directory: Path) -> None:
    gone = FIRST[13]
    assert content(gone, 0) in everything(directory)
    assert key_hash(gone) in everything(directory)
    found = document(run, "drop", directory, key_hash(gone).hex()[:10], "--yes")
    assert [row["key"] for row in found["data"]] == [f"g0:{key_hash(gone).hex()}"]
    assert found["overwritten_bytes"] == SLOT_BYTES[0]
    left = everything(directory)
    assert content(gone, 0)[:64] not in left
    assert content(gone, 0)[-64:] not in left
    assert key_hash(gone) not in left
    assert set(indexed(directory)) == {*STORED} - {gone}
    sound(run, directory)
    with reopened(directory.parent) as served:
        assert set(served) == {*STORED} - {gone}


def test_a_block_is_dropped_in_all_groups_or_in_one(run: Run, directory: Path) -> None:
    both = key_hash(FIRST[2]).hex()
    run("drop", directory, f"g1:{both}", "--yes")
    assert set(indexed(directory)) == {*STORED} - {SECOND[2]}
    run("drop", directory, key_hash(FIRST[3]).hex(), "--yes")
    assert set(indexed(directory)) == {*STORED} - {SECOND[2], FIRST[3], SECOND[3]}


def test_earlier_copies_go_with_free_slots(run: Run, directory: Path) -> None:
    """A record that was evicted still lies in its slot, and one entry is written over it only."""
    old = FIRST[0]
    with Rig(directory.parent) as rig:
        tier = rig.open()
        tier.demote([old])
        rig.stored(tier, keys(range(600, 616)))
        assert not tier.has(old)
        tier.close()
    raw = b"".join(file.read_bytes() for file in (directory / "g0").iterdir())
    evicted = [
        key for key in STORED[:24] if content(key, 0) in raw and key not in indexed(directory)
    ]
    assert evicted
    victim = indexed(directory)[0]
    run("drop", directory, key_hash(victim).hex(), "--yes")
    assert content(evicted[0], 0) in everything(directory)
    victim = indexed(directory)[0]
    run("drop", directory, key_hash(victim).hex(), "--free-slots", "--yes")
    left = everything(directory)
    assert all(content(key, 0)[:64] not in left for key in evicted)
    sound(run, directory)


def test_all_leaves_no_byte_of_a_record(run: Run, directory: Path) -> None:
    descriptor = os.open(segment(directory, 1), os.O_RDONLY)
    try:
        found = document(run, "drop", directory.parent, "--all", "--yes")
        assert len(found["data"]) == 30
        # Whoever has a removed file open still reads it: zeros.
        assert not any(os.pread(descriptor, 1 << 16, 0))
    finally:
        os.close(descriptor)
    left = everything(directory)
    assert all(content(key, 0)[:64] not in left for key in STORED)
    assert all(key_hash(key) not in left for key in STORED)
    assert not list(directory.glob("g*/*"))
    sound(run, directory)
    with reopened(directory.parent) as served:
        assert served == []


def test_a_key_that_is_not_unique_or_not_there(run: Run, directory: Path) -> None:
    before = tree(directory)
    code, _, err = run("drop", directory, "g", "--yes")
    assert code == ExitCode.USAGE
    assert "is not unique" in err
    code, _, err = run("drop", directory, "ffffffffff", "--yes")
    assert code == ExitCode.PROBLEM
    assert "no key begins with 'ffffffffff'" in err
    for arguments in ([], ["aa", "--all"]):
        assert run("drop", directory, *arguments, "--yes")[0] == ExitCode.USAGE
    assert tree(directory) == before
