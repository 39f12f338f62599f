# SPDX-License-Identifier: Apache-2.0
"""The whole tier at its limits: a quota that holds at every moment, and disks that are full."""

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Self

import pytest

from tests.tiers.nvme.segments_helpers import mounted
from tests.tiers.nvme.tier_helpers import (
    DISK,
    PRIMARY,
    SEGMENT_BYTES,
    SLOT_BYTES,
    Clock,
    Rig,
    capacity_of,
    in_index,
    keys,
    occupied,
    published,
    validate,
    wait_cleared,
)
from tiercache.blocks import by_group
from tiercache.tiers.base import Batch
from tiercache.tiers.nvme.tier import GROWTH_PAUSE_S, NvmeTier

A = keys("a")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB: less than the capacity of a tier."""
    with mounted("tmpfs", tmp_path / "disk", "size=512k") as disk:
        yield disk


class Sampler:
    """Looks all the time what a directory occupies, in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self.most = self.samples = 0
        self._path = path
        self._stop = Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.most = max(self.most, occupied(self._path))
            self.samples += 1


def churn(rig: Rig, tier: NvmeTier, times: int, name: str) -> int:
    """Write the capacity so many times, several jobs at once; the records that were stored."""
    flying: list[Batch] = []
    stored = 0
    for number in range(times * DISK[1]):
        for group_id, count in ((0, 4), (1, 1)):
            if len(flying) == 8:
                stored += len(flying[0].keys) - len(rig.wait(tier, flying.pop(0)).failed)
            chosen = keys((f"{name} {number} {n}" for n in range(count)), group_id)
            first = number % 15 * count
            if batch := rig.begin_store(tier, chosen, first=first):
                flying.append(batch)
    return stored + sum(len(b.keys) - len(rig.wait(tier, b).failed) for b in flying)


# --- the quota


@pytest.mark.parametrize("workers", [1, 2])
def test_the_quota_holds_at_every_moment(tmp_path: Path, workers: int) -> None:
    capacity = capacity_of(DISK, workers)
    path = tmp_path / "nvme"
    with Rig(path, workers) as rig, Sampler(path) as sampler:
        for start in range(2):
            tier = rig.open()
            assert churn(rig, tier, 8, f"{start}") > 7 * 50
            validate(tier)
            for run in by_group(published(tier)).values():
                assert rig.loaded(tier, run) == run
            tier.close()
    assert sampler.samples > 10
    assert capacity // 2 < sampler.most <= capacity


def test_a_store_larger_than_the_quota_is_trimmed_before_the_first_store(rig: Rig) -> None:
    tier = rig.open()
    churn(rig, tier, 2, "")
    full = published(tier)
    tier.close()
    smaller = capacity_of({0: 12, 1: 3})
    assert occupied(rig.path) > smaller
    tier = rig.open(capacity=smaller)
    assert occupied(rig.path) <= smaller
    left = published(tier)
    assert set(left) <= set(full)
    assert 0 < len(left) <= 15
    for run in by_group(left).values():
        assert rig.loaded(tier, run) == run
    with Sampler(rig.path) as sampler:
        churn(rig, tier, 2, "again")
    assert sampler.most <= smaller
    validate(tier)
    assert sum(in_index(tier).values()) == len(published(tier))


def test_the_same_key_is_counted_once(rig: Rig) -> None:
    tier = rig.open()
    for _ in range(100):
        if batch := rig.begin_store(tier, A):
            rig.wait(tier, batch)
    stats = tier.stats()
    assert (stats.used, stats.entries) == (SLOT_BYTES[0], 1)
    assert (stats.counters["stored"], stats.counters["declined"]) == (1, 99)
    assert in_index(tier) == {0: 1, 1: 0}


def test_what_is_removed_gives_its_bytes_back(rig: Rig) -> None:
    tier = rig.open()
    for number in range(100):
        rig.stored(tier, keys([number]))
        tier.clear()
        wait_cleared(rig, tier)
    assert (tier.stats().used, tier.stats().entries) == (0, 0)
    assert in_index(tier) == {0: 0, 1: 0}
    rig.stored(tier, keys(range(38)), at_once=2)
    assert tier.stats().counters["evicted"] == 0


# --- a full disk


def fill(disk: Path, leave: int) -> Path:
    """Somebody else's file, that leaves so many bytes free."""
    foreign = disk / "foreign"
    stat = os.statvfs(disk)
    foreign.write_bytes(bytes(stat.f_bavail * stat.f_frsize - leave))
    return foreign


def test_on_a_full_disk_it_goes_on_with_what_it_has_and_grows_when_there_is_space(
    disk: Path, clock: Clock
) -> None:
    with Rig(disk / "nvme") as rig:
        tier = rig.open(clock=clock)
        rig.stored(tier, keys(range(8)))
        rig.stored(tier, keys(range(4), 1), at_once=2)
        fill(disk, leave=SEGMENT_BYTES // 2)
        full = occupied(disk)
        assert rig.store(tier, A).failed == A
        assert tier.stats().healthy
        assert tier.stats().counters["failed"] == 1
        for number in range(10, 40):
            rig.stored(tier, keys([number]))
            assert tier.stats().used <= 8 * SLOT_BYTES[0] + 4 * SLOT_BYTES[1]
        left = published(tier)[:-4]
        assert left[-1] == keys([39])[0]
        assert len(left) >= 7
        assert rig.loaded(tier, left) == left
        assert not tier.store(rig.batch(keys(range(100, 109))))  # nine will not fit
        assert tier.stats().counters["failed"] == 1
        assert occupied(disk) - full < SEGMENT_BYTES // 2
        validate(tier)

        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        clock.now += GROWTH_PAUSE_S / 2
        tier.poll()
        assert not tier.store(rig.batch(keys(range(100, 109))))
        clock.now += GROWTH_PAUSE_S / 2
        tier.poll()
        new = keys(range(100, 130))
        rig.stored(tier, new, at_once=10)
        assert rig.loaded(tier, [*left, *new]) == [*left, *new]
        validate(tier)
        tier.close()


def test_a_disk_that_stays_full_is_asked_once_per_pause(disk: Path, clock: Clock) -> None:
    with Rig(disk / "nvme") as rig:
        tier = rig.open(clock=clock)
        rig.stored(tier, keys(range(8)))
        rig.stored(tier, keys(range(4), 1), at_once=2)
        fill(disk, leave=SEGMENT_BYTES // 2)
        number = 100
        for attempt in range(5):
            for _ in range(20):
                number += 1
                rig.store(tier, keys([number]))
            assert tier.stats().counters["failed"] == attempt + 1
            clock.now += GROWTH_PAUSE_S
            tier.poll()
        assert tier.stats().healthy
        assert len(published(tier)) >= 7 + 4
        validate(tier)
        tier.close()
        tier = rig.open()
        found = by_group(published(tier))
        assert [rig.loaded(tier, run) for run in found.values()] == [*found.values()]
        tier.close()


def test_jobs_that_find_the_disk_full_at_once_are_no_sick_device(disk: Path, clock: Clock) -> None:
    with Rig(disk / "nvme") as rig:
        tier = rig.open(clock=clock)
        rig.stored(tier, keys(range(8)))
        fill(disk, leave=SEGMENT_BYTES // 2)
        batches = [rig.begin_store(tier, keys([n]), n - 100) for n in range(100, 106)]
        ends = [rig.wait(tier, batch) for batch in batches if batch]
        assert [len(done.failed) for done in ends] == [1] * 6
        assert tier.stats().healthy
        rig.stored(tier, A)
        validate(tier)
        tier.close()


def test_a_small_disk_is_filled_and_no_exception_escapes(disk: Path, clock: Clock) -> None:
    with Rig(disk / "nvme") as rig:
        tier = rig.open(clock=clock)
        assert churn(rig, tier, 4, "") > 3 * 20
        assert not list(disk.rglob("*.new"))
        for run in by_group(published(tier)).values():
            assert rig.loaded(tier, run) == run
        validate(tier)
        left = published(tier)
        tier.close()
        tier = rig.open()
        # A full disk may keep the index from hearing of the last evictions. What was evicted is
        # there as long as nothing was written over it, and does not verify afterwards.
        right = [key for run in by_group(published(tier)).values() for key in rig.loaded(tier, run)]
        assert set(right) >= set(left)
        assert churn(rig, tier, 1, "again")
        validate(tier)
        tier.close()


def test_a_disk_that_was_full_from_the_start_is_used_when_there_is_space(
    disk: Path, clock: Clock
) -> None:
    with Rig(disk / "nvme") as rig:
        tier = rig.open(clock=clock)
        foreign = fill(disk, leave=SEGMENT_BYTES // 2)
        assert rig.store(tier, A).failed == A
        for _ in range(5):
            assert not tier.store(rig.batch(A))
        assert tier.missing(A) == A
        foreign.unlink()
        assert not tier.store(rig.batch(A))
        clock.now += GROWTH_PAUSE_S
        tier.poll()
        rig.stored(tier, A)
        assert rig.loaded(tier, A) == A
        tier.close()


def test_some_space_is_left_to_others(disk: Path) -> None:
    min_free = 256 << 10
    with Rig(disk / "nvme") as rig:
        tier = rig.open(min_free=min_free)
        assert churn(rig, tier, 2, "")
        stat = os.statvfs(disk)
        # The index grows for each page that is new: it has no segment to wait for.
        assert stat.f_bavail * stat.f_frsize > min_free - SEGMENT_BYTES
        assert occupied(disk) > 128 << 10
        assert tier.stats().healthy
        validate(tier)
        tier.close()


def test_a_quota_of_the_file_system_is_a_full_disk(
    rig: Rig, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def over_quota(*_: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    tier = rig.open(clock=clock)
    rig.stored(tier, keys(range(8)))
    with monkeypatch.context() as broken:
        broken.setattr(os, "posix_fallocate", over_quota)
        assert rig.store(tier, A).failed == A
        rig.stored(tier, A)
    assert tier.stats().healthy
    assert tier._groups[0].table.slots == DISK[0] < PRIMARY[0]
    clock.now += GROWTH_PAUSE_S
    tier.poll()
    rig.stored(tier, keys(range(100, 120)))
    validate(tier)


def test_there_are_descriptors_for_all_segments(rig: Rig) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 20, before[1]))
    try:
        tier = rig.open(capacity=capacity_of({0: 320, 1: 80}))
        rig.stored(tier, keys(range(300)))
        assert len(list(Path("/proc/self/fd").iterdir())) > opened + 20
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
