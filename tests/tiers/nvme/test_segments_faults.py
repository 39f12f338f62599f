# SPDX-License-Identifier: Apache-2.0
"""Segment files on real file systems that are full, know no direct I/O, or hold surprises."""

import errno
import fcntl
import logging
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiers.nvme.segments_helpers import (
    PAGE,
    RECORD,
    SLOTS,
    mounted,
    nbytes,
    records_of,
    segments,
    sizes,
    transfer,
)
from tiercache.errors import ConfigError
from tiercache.tiers.nvme import segments as module
from tiercache.tiers.nvme.io import read_now, write_now


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 pages; the root directory takes none of them."""
    with mounted("tmpfs", tmp_path / "small", f"size={32 * PAGE}") as path:
        yield path


@pytest.fixture
def no_direct_io(tmp_path: Path) -> Iterator[Path]:
    """A ramfs: it refuses O_DIRECT, which tmpfs takes since Linux 6.6, and has no fallocate."""
    with mounted("ramfs", tmp_path / "ram") as path:
        yield path


def occupied(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir())


def test_a_full_disk_leaves_nothing_behind(small_disk: Path) -> None:
    """A segment takes 8 of the 32 pages, a foreign file ten."""
    foreign = small_disk / "foreign"
    foreign.write_bytes(bytes(10 * PAGE))
    directory = small_disk / "g0"
    with segments(directory, 16) as group:
        group.prepare([0])
        with pytest.raises(OSError, match="No space left") as info:
            group.prepare([4, 8, 12])
        assert info.value.errno == errno.ENOSPC
        assert sizes(directory) == {"000000.seg": 4 * RECORD}
        assert group.allocated == occupied(directory) == 4 * RECORD
        assert group.absent([0, 4, 8, 12]) == [4, 8, 12]
        with pytest.raises(FileNotFoundError):
            group.runs([4])
        group.prepare([4])  # this one fits
        foreign.unlink()
        group.prepare([8])
        assert group.allocated == occupied(directory) == 12 * RECORD


def test_a_full_disk_leaves_a_torn_segment_as_it_was(small_disk: Path) -> None:
    directory = small_disk / "g0"
    with segments(directory, 16) as group:
        group.prepare([0])
        write_now(group.runs([0])[0].fd, 0, [memoryview(b"kept" * 2048)])
    os.truncate(directory / "000000.seg", RECORD)
    (small_disk / "foreign").write_bytes(bytes(28 * PAGE))
    with segments(directory, 16) as group:
        with pytest.raises(OSError, match="No space left"):
            group.prepare([0])
        assert group.allocated == occupied(directory) == RECORD
        assert group.absent([0, 1]) == [1]
        (small_disk / "foreign").unlink()
        group.prepare([0])
        assert group.allocated == occupied(directory) == 4 * RECORD
    assert (directory / "000000.seg").read_bytes()[:RECORD] == b"kept" * 2048


def test_a_fault_at_the_last_step_undoes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with segments(tmp_path) as group:
        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="Input/output"):
            group.prepare(range(SLOTS))
        monkeypatch.undo()
        assert (sizes(tmp_path), group.allocated) == ({}, 0)
        group.prepare(range(SLOTS))


@pytest.mark.parametrize("size", [0, RECORD, RECORD + 100, 4 * RECORD - 1])
def test_a_truncated_segment_is_torn_until_it_is_prepared(tmp_path: Path, size: int) -> None:
    with segments(tmp_path) as group:
        group.prepare(range(SLOTS))
    os.truncate(tmp_path / "000001.seg", size)
    with segments(tmp_path) as group:
        assert group.lacking() == [range(4, 8)]
        lost = list(range(4 + size // RECORD, 8))
        assert group.absent(range(SLOTS)) == lost
        assert group.allocated == 6 * RECORD + size
        with pytest.raises(OSError, match="short read"):
            read_now(group.runs(lost[-1:])[0].fd, 3 * RECORD, [memoryview(bytearray(RECORD))])
        assert group.missing(lost) == 4 * RECORD - size
        group.prepare(lost)
        assert group.allocated == nbytes(tmp_path) == SLOTS * RECORD
        fd = group.runs(lost[-1:])[0].fd
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT


def test_a_missing_segment_is_torn(tmp_path: Path) -> None:
    with segments(tmp_path) as group:
        group.prepare(range(SLOTS))
        (tmp_path / "000001.seg").unlink()
        read_now(group.runs([4])[0].fd, 0, [memoryview(mmap.mmap(-1, RECORD))])
    with segments(tmp_path) as group:
        assert group.lacking() == [range(4, 8)]
        assert group.absent(range(SLOTS)) == [4, 5, 6, 7]


def test_a_smaller_capacity_gives_space_back(tmp_path: Path) -> None:
    with segments(tmp_path) as group:
        group.prepare(range(SLOTS))
    with segments(tmp_path, 5) as group:
        assert sizes(tmp_path) == {"000000.seg": 4 * RECORD, "000001.seg": RECORD}
        assert group.allocated == nbytes(tmp_path) == 5 * RECORD
        assert group.lacking() == []
    with segments(tmp_path, 2) as group:
        assert sizes(tmp_path) == {"000000.seg": 2 * RECORD}


def test_a_larger_capacity_keeps_what_is_there(tmp_path: Path) -> None:
    with segments(tmp_path, 2) as group:
        group.prepare(range(2))
    with segments(tmp_path) as group:
        assert group.absent(range(SLOTS)) == list(range(2, SLOTS))
        group.prepare([2])
        assert group.allocated == nbytes(tmp_path) == 4 * RECORD


def test_unfinished_segments_are_removed_and_foreign_files_are_not(tmp_path: Path) -> None:
    for name in ("000000.seg.new", "000099.seg.new", "000003.seg"):
        (tmp_path / name).write_bytes(bytes(PAGE))
    foreign = {"notes.txt": 1, "0000003.seg": 1, "3.seg": 1, "000003.seg.bak": 1}
    for name in foreign:
        (tmp_path / name).write_bytes(b"x")
    with segments(tmp_path) as group:
        assert sizes(tmp_path) == dict(sorted(foreign.items()))
        assert group.allocated == 0


@pytest.mark.parametrize("name", ["000000.seg", "000099.seg"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "directory"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    directory = tmp_path / "g0"
    victim = tmp_path / "victim"
    directory.mkdir()
    victim.write_bytes(b"precious")
    place = directory / name
    match kind:
        case "link":
            place.symlink_to(victim)
        case "dangling link":
            place.symlink_to(tmp_path / "nowhere")
        case "fifo":
            os.mkfifo(place)
        case _:
            place.mkdir()
    with pytest.raises(ConfigError, match=f"path.*{name}.*no link"):
        segments(directory)
    assert victim.read_bytes() == b"precious"
    assert os.path.lexists(place)


def test_a_link_that_appears_later_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    with segments(tmp_path / "g0") as group:
        (tmp_path / "g0" / "000000.seg").symlink_to(victim)
        (tmp_path / "g0" / "000001.seg.new").symlink_to(victim)
        group.prepare([0])
        with pytest.raises(OSError, match="symbolic links"):
            group.prepare([4])
    assert victim.read_bytes() == b"precious"
    assert (tmp_path / "g0" / "000000.seg").lstat().st_size == 4 * RECORD


def test_a_linked_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "g0").symlink_to(tmp_path / "real")
    with pytest.raises(NotADirectoryError):
        segments(tmp_path / "g0")


@pytest.fixture
def _unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_buffered", set())


@pytest.mark.usefixtures("_unwarned")
def test_without_direct_io_the_cache_serves_and_one_warning_says_so(
    no_direct_io: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slots = list(range(SLOTS))
    for name in ("g0", "g1"):
        with segments(no_direct_io / name, record_bytes=PAGE) as group:
            group.prepare(slots)
            _, records = records_of(slots, [b"data"] * SLOTS)
            transfer(group, write_now, slots, records)
            _, copies = records_of(slots, [b""] * SLOTS)
            transfer(group, read_now, slots, copies)
            assert [copy[-1] for copy in copies] == slots
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "no direct I/O" in caplog.text


@pytest.mark.usefixtures("_unwarned")
def test_a_coarser_alignment_than_ours_falls_back_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def preadv(*_: object) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "preadv", preadv)
    with segments(tmp_path) as group:
        group.prepare(range(SLOTS))
        flags = {fcntl.fcntl(run.fd, fcntl.F_GETFL) for run in group.runs(range(SLOTS))}
    assert not any(flag & os.O_DIRECT for flag in flags)
    assert len(caplog.records) == 1


def test_a_bad_first_block_says_nothing_about_alignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def preadv(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", preadv)
    with segments(tmp_path) as group:
        group.prepare([0])
        assert fcntl.fcntl(group.runs([0])[0].fd, fcntl.F_GETFL) & os.O_DIRECT
    assert caplog.records == []


def test_close_twice(tmp_path: Path) -> None:
    with segments(tmp_path) as group:
        group.prepare([0])
        group.close()
        with pytest.raises(FileNotFoundError):
            group.runs([0])
