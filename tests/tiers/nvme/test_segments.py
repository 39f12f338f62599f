# SPDX-License-Identifier: Apache-2.0
"""Segment files: runs of neighbours, allocation, and what a capacity that changes keeps."""

import fcntl
import os
import random
import threading
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiers.nvme.segments_helpers import (
    PAGE,
    RECORD,
    SEGMENT,
    SLOTS,
    nbytes,
    records_of,
    segments,
    sizes,
    transfer,
)
from tiercache.errors import ConfigError
from tiercache.tiers.nvme.io import IOV_MAX, read_now, write_now
from tiercache.tiers.nvme.segments import RUN_BYTES, Run, Segments


def spans(runs: list[Run]) -> list[tuple[int, int]]:
    return [(run.start, run.count) for run in runs]


def test_neighbours_of_one_segment_are_one_run(tmp_path: Path) -> None:
    with segments(tmp_path) as group:
        group.prepare(range(SLOTS))
        slots = [1, 2, 3, 4, 5, 9, 8, 0, 0]
        runs = group.runs(slots)
        assert spans(runs) == [(0, 3), (3, 2), (5, 1), (6, 1), (7, 1), (8, 1)]
        assert [run.offset // RECORD for run in runs] == [1, 0, 1, 0, 0, 0]
        assert [Path(f"/proc/self/fd/{run.fd}").readlink().stem[-1] for run in runs] == list(
            "012200"
        )
        assert group.runs([]) == []


def test_runs_are_bounded_in_bytes(tmp_path: Path) -> None:
    record = RUN_BYTES // 4 + PAGE
    with segments(tmp_path, 7, record_bytes=record, segment_bytes=1 << 30) as group:
        group.prepare([0])
        assert spans(group.runs(range(7))) == [(0, 3), (3, 3), (6, 1)]


def test_a_record_longer_than_a_run_is_a_run(tmp_path: Path) -> None:
    with segments(tmp_path, 2, record_bytes=RUN_BYTES + PAGE, segment_bytes=1) as group:
        group.prepare(range(2))
        assert spans(group.runs(range(2))) == [(0, 1), (1, 1)]


def test_runs_are_bounded_in_buffers(tmp_path: Path) -> None:
    with segments(tmp_path, IOV_MAX + 2, record_bytes=PAGE, segment_bytes=1 << 30) as group:
        group.prepare([0])
        assert spans(group.runs(range(IOV_MAX + 2))) == [(0, IOV_MAX), (IOV_MAX, 2)]


@given(st.lists(st.integers(0, 59) | st.integers(20, 30), max_size=40), st.booleans())
def test_runs_cover_their_slots_and_could_not_be_longer(
    tmp_path_factory: pytest.TempPathFactory, slots: list[int], ordered: bool
) -> None:
    if ordered:
        slots.sort()
    directory = tmp_path_factory.getbasetemp() / "runs"
    with segments(directory, 60, record_bytes=PAGE, segment_bytes=25 * PAGE) as group:
        group.prepare(range(60))
        group._run_slots = 10
        runs = group.runs(slots)
        files = [group.runs([slot])[0].fd for slot in (0, 25, 50)]
    places = [(run.fd, run.offset // PAGE + i) for run in runs for i in range(run.count)]
    assert places == [(files[slot // 25], slot % 25) for slot in slots]
    assert [run.start for run in runs] == [sum(r.count for r in runs[:i]) for i in range(len(runs))]
    assert all(run.count <= 10 for run in runs)
    for one, two in pairwise(runs):
        follows = one.fd == two.fd and one.offset + one.count * PAGE == two.offset
        assert not follows or one.count == 10


@pytest.mark.parametrize("slot", [-1, SLOTS])
def test_a_slot_out_of_range_is_an_error(tmp_path: Path, slot: int) -> None:
    with segments(tmp_path) as group:
        for method in (group.runs, group.prepare, group.missing):
            with pytest.raises(IndexError, match="0 to 9"):
                method([0, slot])
        assert group.absent([slot]) == [slot]


def test_a_run_in_a_segment_that_is_not_there(tmp_path: Path) -> None:
    with segments(tmp_path) as group, pytest.raises(FileNotFoundError, match=r"000002\.seg"):
        group.runs([8])


@given(st.permutations(range(60)), st.integers(0, 60), st.randoms(use_true_random=False))
def test_what_is_written_to_random_slots_is_read_from_them(
    tmp_path_factory: pytest.TempPathFactory, slots: list[int], n: int, rng: random.Random
) -> None:
    directory = tmp_path_factory.getbasetemp() / "random"
    slots = slots[:n]
    with segments(directory, 60, record_bytes=PAGE, segment_bytes=7 * PAGE) as group:
        group.prepare(slots)
        memory, records = records_of(slots, [rng.randbytes(8) for _ in slots])
        transfer(group, write_now, slots, records)
        written = memory[:]
    order = sorted(range(n), key=slots.__getitem__)
    with segments(directory, 60, record_bytes=PAGE, segment_bytes=7 * PAGE) as group:
        assert group.absent(slots) == []
        memory, records = records_of(slots, [b"" for _ in slots])
        transfer(group, read_now, [slots[i] for i in order], [records[i] for i in order])
        assert memory[:] == written


def test_segments_are_allocated_when_they_are_needed(tmp_path: Path) -> None:
    directory = tmp_path / "deeper" / "g0"
    with segments(directory) as group:
        assert (group.count, group.allocated, sizes(directory)) == (3, 0, {})
        assert group.lacking() == [range(SLOTS)]
        assert group.missing([0, 1, 9]) == 6 * RECORD
        group.prepare([9, 0, 1])
        assert sizes(directory) == {"000000.seg": 4 * RECORD, "000002.seg": 2 * RECORD}
        assert group.allocated == nbytes(directory) == 6 * RECORD
        assert group.missing([0, 1, 9]) == 0
        assert group.missing(range(SLOTS)) == 4 * RECORD
        assert group.absent(range(SLOTS)) == [4, 5, 6, 7]
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}


def test_descriptors_are_private_and_direct(tmp_path: Path) -> None:
    with segments(tmp_path) as group:
        group.prepare([0])
        fd = group.runs([0])[0].fd
        assert not os.get_inheritable(fd)
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
    with closing(Segments(tmp_path, RECORD, SLOTS, segment_bytes=SEGMENT, direct=False)) as group:
        assert not fcntl.fcntl(group.runs([0])[0].fd, fcntl.F_GETFL) & os.O_DIRECT


@pytest.mark.parametrize(
    ("record_bytes", "slots"), [(0, 1), (-PAGE, 1), (PAGE + 512, 1), (PAGE, 0)]
)
def test_sizes_that_cannot_be(tmp_path: Path, record_bytes: int, slots: int) -> None:
    with pytest.raises(ConfigError):
        Segments(tmp_path, record_bytes, slots)


def test_threads_that_need_the_same_segments(tmp_path: Path) -> None:
    with segments(tmp_path, 400) as group:
        threads = [threading.Thread(target=group.prepare, args=(range(400),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert group.allocated == nbytes(tmp_path) == 400 * RECORD
        assert len({run.fd for run in group.runs(range(400))}) == 100


def test_those_that_need_none_do_not_wait(tmp_path: Path) -> None:
    with segments(tmp_path) as group:
        group.prepare([0])
        with group._preparing:  # another thread hangs in an allocation
            group.prepare([1, 2, 3])
            assert group.missing([4]) == 4 * RECORD
            assert len(group.runs([0])) == 1


def test_what_was_allocated_is_found_again(tmp_path: Path) -> None:
    with segments(tmp_path) as group:
        group.prepare(range(SLOTS))
    with segments(tmp_path) as group:
        assert group.lacking() == []
        assert group.allocated == nbytes(tmp_path) == SLOTS * RECORD
        assert group.absent(range(SLOTS)) == []
        assert len(group.runs(range(SLOTS))) == 3


def test_slots_of_segments_that_are_not_there_are_lacking(tmp_path: Path) -> None:
    with segments(tmp_path) as group:
        assert group.lacking() == [range(10)]
        group.prepare([5])
        assert group.lacking() == [range(4), range(8, 10)]
        group.prepare([9])
        assert group.lacking() == [range(4)]
    (tmp_path / "000001.seg").write_bytes(bytes(RECORD))
    with segments(tmp_path) as group:
        assert group.lacking() == [range(8)]
        group.prepare([0, 4])
        assert group.lacking() == []
