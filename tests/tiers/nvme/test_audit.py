# SPDX-License-Identifier: Apache-2.0
"""Every kind of damage is found, and put right so that the tier serves what is left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers.nvme.damage_helpers import DAMAGES, STORED, elsewhere, flip_in_index, segment
from tests.tiers.nvme.server_helpers import Server, fill, reopened
from tests.tiers.nvme.test_offline import tree
from tests.tiers.nvme.tier_helpers import SEGMENT_BYTES, Rig, keys
from tiercache.errors import ConfigError, DamageError, FormatError, PoolBusyError
from tiercache.tiers.nvme.audit import Verifier, audit
from tiercache.tiers.nvme.findings import Audit
from tiercache.tiers.nvme.offline import open_readonly
from tiercache.tiers.nvme.records import checksum
from tiercache.tiers.nvme.repair import repair, unblock
from tiercache.tiers.nvme.writing import held


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return fill(tmp_path / "nvme")


def look(directory: Path, share: float = 1.0) -> Audit:
    with open_readonly(directory, segment_bytes=SEGMENT_BYTES) as pool:
        return audit(pool.only(), share=share)


def fix(directory: Path, found: Audit) -> Audit:
    unblock(directory, found.findings)
    with held(directory):
        return repair(directory, found.findings, segment_bytes=SEGMENT_BYTES)


def test_nothing_is_found_in_what_the_tier_makes(directory: Path) -> None:
    found = look(directory)
    assert found.findings == ()
    assert found.facts.entries == {0: 24, 1: 6}
    assert found.facts.read == 30
    assert found.facts.record_bytes == found.facts.read_bytes == 24 * 8192 + 6 * 16384
    assert found.facts.segments == 5


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_put_right_and_the_rest_is_served(directory: Path, name: str) -> None:
    make, code, left, data = DAMAGES[name]
    make(directory)
    before = tree(directory)
    if data:
        assert look(directory, share=0).findings == ()
    found = look(directory)
    assert code in {finding.code for finding in found.findings}
    assert tree(directory) == before
    assert fix(directory, found).findings == ()
    assert look(directory).findings == ()
    with reopened(directory.parent) as served:
        assert set(left) <= set(served) <= set(STORED)
    assert look(directory).findings == ()


@pytest.mark.parametrize("name", [name for name in DAMAGES if "link" in name])
def test_what_a_link_points_at_is_left_alone(directory: Path, name: str) -> None:
    DAMAGES[name].make(directory)
    before = tree(elsewhere(directory))
    fix(directory, look(directory))
    assert tree(elsewhere(directory)) == before


def test_several_kinds_at_once(directory: Path) -> None:
    for name in ("segment deleted", "unknown file", "page under no key"):
        DAMAGES[name].make(directory)
    os.truncate(segment(directory, 2), 8192)
    found = look(directory)
    assert {finding.code for finding in found.findings} == {
        "unknown",
        "strange-pages",
        "missing-segment",
        "short-segment",
    }
    fix(directory, found)
    with reopened(directory.parent) as served:
        assert set(served) >= {*STORED[:8], STORED[16], *STORED[24:]}


def test_a_namespace_that_was_only_begun_is_sound(directory: Path) -> None:
    DAMAGES["meta missing"].make(directory)
    fix(directory, look(directory))
    assert [path.name for path in directory.iterdir()] == ["lock"]
    assert look(directory).findings == ()


def test_another_format_is_an_error_and_no_damage(directory: Path) -> None:
    meta = directory / "meta.json"
    meta.write_text(meta.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(FormatError, match="format 9 found"):
        look(directory)


def test_more_than_the_capacity_has_no_remedy(directory: Path) -> None:
    with open_readonly(directory, segment_bytes=SEGMENT_BYTES) as pool:
        occupied = pool.only().nbytes
        assert audit(pool.only(), capacity=occupied + 8192).findings == ()
        found = audit(pool.only(), capacity=100_000)
    assert [finding.code for finding in found.findings] == ["over-capacity"]
    assert fix(directory, found).findings == ()  # which is not told the capacity


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a file that cannot be removed")
def test_what_cannot_be_put_right_is_said(directory: Path) -> None:
    file = directory / "g0" / "stranger"
    file.touch()
    if subprocess.run(["chattr", "+i", str(file)], check=False, capture_output=True).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        with pytest.raises(DamageError, match="cannot be repaired"):
            fix(directory, look(directory))
    finally:
        subprocess.run(["chattr", "-i", str(file)], check=True)


# --- beside a server


def test_a_server_that_writes_has_no_damage(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        server.churn()
        for _ in range(15):
            [directory] = tmp_path.iterdir()
            assert look(directory).findings == ()
        server.kill()
    found = look(directory)
    # What it was writing may have replaced a record whose entry it had not removed yet.
    assert {finding.code for finding in found.findings} <= {"bad-records", "unfinished"}
    fix(directory, found)
    assert look(directory).findings == ()


def test_damage_beside_a_server_is_found_and_left_alone(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        server.store(0, 24)
        [directory] = tmp_path.iterdir()
        DAMAGES["bit flipped in a record"].make(directory)
        (directory / "g0" / "stranger").touch()
        found = look(directory)
        assert {finding.code for finding in found.findings} == {"unknown", "bad-records"}
        with pytest.raises(PoolBusyError, match=f"in use by process {server.pid}"):
            fix(directory, found)
        assert (directory / "g0" / "stranger").exists()


def test_readers_that_died_are_counted(tmp_path: Path) -> None:
    code = (
        "import lmdb, os, signal, sys\n"
        "for _ in range(3):\n"
        "    if not os.fork():\n"
        "        env = lmdb.open(sys.argv[1], readonly=True, max_readers=512, lib_version=0)\n"
        "        reading = env.begin()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    os.wait()\n"
    )
    with Server(tmp_path) as server:
        server.store(0, 8)
        [directory] = tmp_path.iterdir()
        subprocess.run([sys.executable, "-c", code, str(directory / "index")], check=True)
        [finding] = look(directory).findings
        assert finding.code == "dead-readers"
        assert finding.text.startswith("3 processes")
    assert look(directory).findings == ()


def test_while_it_is_held_no_server_starts(directory: Path) -> None:
    with (
        Rig(directory.parent) as rig,
        held(directory),
        pytest.raises(ConfigError, match=f"process {os.getpid()} does"),
    ):
        rig.open()


def test_two_commands_exclude_each_other(directory: Path) -> None:
    with held(directory), pytest.raises(PoolBusyError), held(directory):
        pass


# --- records of several workers


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("said", [None, 1, 8])
def test_records_are_compared_in_the_parts_of_their_workers(workers: int, said: int | None) -> None:
    size = 24 * 4096
    record = os.urandom(size)
    part = size // workers
    parts = [memoryview(record)[n * part : (n + 1) * part] for n in range(workers)]
    expected = checksum(b"a hash of a block", parts)
    verifier = Verifier({} if said is None else {"tensor_parallel_size": said})
    assert verifier.verify(b"a hash of a block", memoryview(record), expected)
    assert not verifier.verify(b"another hash", memoryview(record), expected)
    assert not verifier.verify(b"a hash of a block", memoryview(record), expected ^ 1)


def test_damaged_pages_leave_the_other_groups(directory: Path) -> None:
    flip_in_index(directory, keys([20])[0])
    [finding] = look(directory).findings
    assert finding.count == 1
    fix(directory, look(directory))
    assert look(directory).facts.entries == {0: 0, 1: 6}
