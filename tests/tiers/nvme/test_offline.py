# SPDX-License-Identifier: Apache-2.0
"""A pool read from outside: closed, served, churning, killed and not there."""

import os
import stat
from pathlib import Path

import pytest

from tests.tiers.nvme.server_helpers import STORED, Server, fill
from tests.tiers.nvme.tier_helpers import FINGERPRINT, SEGMENT_BYTES, content, keys
from tiercache.blocks import key_group, key_hash
from tiercache.errors import DamageError, FormatError, NoPoolError, TierCacheError
from tiercache.tiers.nvme.offline import OfflinePool, StoredEntry, open_readonly


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return fill(tmp_path / "nvme")


def opened(path: Path) -> OfflinePool:
    return open_readonly(path, segment_bytes=SEGMENT_BYTES)


def everything(pool: OfflinePool) -> list[StoredEntry]:
    [one] = pool.namespaces
    return [entry for group in one.groups for chunk in one.entries(group) for entry in chunk]


def tree(path: Path) -> dict[str, tuple[int, int, int]]:
    """Every file with its mode, size and time of change, but LMDB's table of readers."""
    return {
        str(file): (file.lstat().st_mode, file.lstat().st_size, file.lstat().st_mtime_ns)
        for file in sorted(path.rglob("*"))
        if file.name != "lock.mdb"
    }


def test_a_closed_pool_tells_what_it_has_and_stays_as_it_is(directory: Path) -> None:
    before = tree(directory.parent)
    for path in (directory.parent, directory):
        with opened(path) as pool:
            [one] = pool.namespaces
            found = everything(pool)
            assert sorted(entry.key for entry in found) == sorted(STORED)
            assert (one.name, one.format, one.pid) == (directory.name, 1, None)
            assert one.fingerprint == {**FINGERPRINT, "record_bytes": {"0": 8192, "1": 16384}}
            assert one.record_bytes == {0: 8192, 1: 16384}
            assert one.opened_at
            assert one.index.info().readers <= 1
    assert tree(directory.parent) == before


def test_every_record_lies_where_it_is_said_to(directory: Path) -> None:
    with opened(directory) as pool:
        [one] = pool.namespaces
        for entry in everything(pool):
            file, offset, nbytes = one.location(entry.group_id, entry.slot)
            record = file.read_bytes()[offset : offset + nbytes]
            assert record == content(entry.key, 0)
            assert len(record) == one.record_bytes[key_group(entry.key)]


def test_a_server_that_writes_is_named_and_not_disturbed(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        server.store(0, 8)
        with opened(tmp_path) as pool:
            [one] = pool.namespaces
            assert one.pid == server.pid
            assert {entry.key for entry in everything(pool)} == set(keys(range(8)))
            server.store(8, 8)
            assert {entry.key for entry in everything(pool)} == set(keys(range(16)))
            with one.index._begin():
                assert [reader.pid for reader in one.index.readers()] == [os.getpid()]
            assert one.index.readers() == []
        server.churn()
        for _ in range(30):
            with opened(tmp_path) as pool:
                found = everything(pool)
                assert 8 <= len(found) <= 40
                assert pool.namespaces[0].torn == 0
        server.kill()
    with opened(tmp_path) as pool:
        assert pool.namespaces[0].pid is None
        assert everything(pool)


def test_without_a_lock_file_a_closed_index_is_read_and_none_is_made(directory: Path) -> None:
    (directory / "index" / "lock.mdb").unlink()
    with opened(directory) as pool:
        assert len(everything(pool)) == len(STORED)
    assert not (directory / "index" / "lock.mdb").exists()


def test_without_a_lock_file_an_index_that_is_written_is_left_alone(tmp_path: Path) -> None:
    with Server(tmp_path) as server, opened(tmp_path) as pool:
        server.store(0, 8)
        [one] = pool.namespaces
        (one.index_directory / "lock.mdb").unlink()
        with pytest.raises(DamageError, match=r"has no lock\.mdb"):
            everything(pool)


@pytest.mark.parametrize("size", [100, 4096, 5000, 20_000])
def test_an_index_that_was_cut_off_is_not_given_to_lmdb(directory: Path, size: int) -> None:
    os.truncate(directory / "index" / "data.mdb", size)
    with opened(directory) as pool, pytest.raises(DamageError, match="is damaged"):
        everything(pool)


def test_a_damaged_page_is_left_out_and_counted(directory: Path) -> None:
    data = directory / "index" / "data.mdb"
    block_hash = key_hash(STORED[23])
    data.write_bytes(data.read_bytes().replace(block_hash, bytes(reversed(block_hash))))
    with opened(directory) as pool:
        assert {key_group(entry.key) for entry in everything(pool)} == {1}
        assert pool.namespaces[0].torn == 1


@pytest.mark.parametrize("meta", [None, b"", b"[", b'{"format": "x", "fingerprint": {}}'])
def test_without_a_meta_file_nothing_is_known_of_the_bytes(
    directory: Path, meta: bytes | None
) -> None:
    file = directory / "meta.json"
    file.unlink() if meta is None else file.write_bytes(meta)
    with opened(directory) as pool:
        [one] = pool.namespaces
        assert (one.format, one.fingerprint, one.groups) == (None, {}, [])


def test_another_format_is_refused_when_it_is_read(directory: Path) -> None:
    meta = directory / "meta.json"
    meta.write_text(meta.read_text().replace('"format": 1', '"format": 2'))
    with opened(directory) as pool:
        assert pool.namespaces[0].format == 2
        with pytest.raises(FormatError, match="format 2 found, this version reads 1"):
            everything(pool)


def test_an_index_that_is_not_there_has_no_entries(directory: Path) -> None:
    (directory / "index" / "data.mdb").unlink()
    with opened(directory) as pool:
        assert everything(pool) == []


@pytest.mark.parametrize("what", ["missing", "file", "empty"])
def test_where_there_is_no_pool(tmp_path: Path, what: str) -> None:
    path = tmp_path / what
    if what == "file":
        path.touch()
    elif what == "empty":
        path.mkdir()
        (path / "0123456789abcdef").symlink_to(tmp_path)
    with pytest.raises(NoPoolError, match="there is no pool in"):
        open_readonly(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_pool_of_another_user_is_an_error_of_one_line(directory: Path) -> None:
    directory.parent.chmod(0o700)
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setuid(65534)
            open_readonly(directory.parent)
        except TierCacheError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert stat.S_IMODE(directory.parent.stat().st_mode) == 0o700


def test_one_namespace_of_several_is_chosen_by_the_beginning_of_its_name(tmp_path: Path) -> None:
    names = ["0123456789abcdef", "0999999999999999", "f000000000000000"]
    for name in names:
        (tmp_path / name).mkdir()
    with opened(tmp_path) as pool:
        assert pool.only("f").name == names[2]
        for begin, message in [
            (None, "has several namespaces"),
            ("0", "several namespaces whose names begin"),
            ("1", "no namespace that begins"),
        ]:
            with pytest.raises(NoPoolError, match=message):
                pool.only(begin)
