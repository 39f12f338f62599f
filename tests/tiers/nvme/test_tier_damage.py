# SPDX-License-Identifier: Apache-2.0
"""The whole tier over damaged files: a miss, never wrong bytes."""

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.tiers.nvme.tier_helpers import (
    SLOT_BYTES,
    Clock,
    Rig,
    in_index,
    keys,
    namespace_of,
    published,
    segment,
    validate,
    wait_cleared,
)
from tiercache.tiers.nvme.index import Index, NotIndexedError
from tiercache.tiers.nvme.tier import NvmeTier

STORED = keys(range(24))
A, B = keys("a"), keys("b")


@pytest.fixture
def tier(rig: Rig, clock: Clock) -> NvmeTier:
    """Slots 0 to 23 of group 0 are in use: three segments."""
    tier = rig.open(clock=clock)
    rig.stored(tier, STORED)
    return tier


def data_file(rig: Rig) -> Path:
    return namespace_of(rig.path) / "index" / "data.mdb"


def flip(file: Path, offset: int, bit: int = 0) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        [byte] = opened.read(1)
        opened.seek(offset)
        opened.write(bytes([byte ^ 1 << bit]))
        opened.flush()
        os.fsync(opened.fileno())


# --- damaged data


@pytest.mark.parametrize("workers", [1, 2])
def test_a_flipped_bit_costs_the_record_that_it_is_in(tmp_path: Path, workers: int) -> None:
    """Each record of a run that is read at once, in its first, in some and in its last byte."""
    size = workers * SLOT_BYTES[0]
    per_segment = 8 // workers
    rng = random.Random(workers)
    with Rig(tmp_path, workers) as rig:
        tier = rig.open()
        for at in range(per_segment):
            for offset in (0, rng.randrange(size), size - 1):
                chosen = keys(f"{at} {offset} {n}" for n in range(per_segment))
                tier.clear()
                wait_cleared(rig, tier)
                rig.store(tier, chosen)
                slot = tier._groups[0].table.slot_of[chosen[at]]
                number, index = divmod(slot, per_segment)
                flip(segment(rig, number), index * size + offset, rng.randrange(8))
                done, right = rig.load(tier, chosen)
                assert done.failed == [chosen[at]]
                assert right == [*chosen[:at], *chosen[at + 1 :]]
                assert not tier.has(chosen[at])
                assert tier.missing(chosen) == [chosen[at]]
        assert tier.stats().counters["corrupt"] == 3 * per_segment
        assert tier.stats().healthy
        validate(tier)


def test_a_damaged_record_is_gone_also_after_a_restart(rig: Rig, tier: NvmeTier) -> None:
    flip(segment(rig, 1), 3 * SLOT_BYTES[0] + 17)
    left = [*STORED[:11], *STORED[12:]]
    assert rig.loaded(tier, STORED) == left
    tier.close()
    tier = rig.open()
    assert published(tier) == left
    rig.stored(tier, [STORED[11]])
    assert rig.loaded(tier, STORED) == STORED


def test_records_in_each_others_places_are_not_served(rig: Rig, tier: NvmeTier) -> None:
    file, size = segment(rig, 0), SLOT_BYTES[0]
    whole = file.read_bytes()
    with file.open("r+b") as opened:
        opened.write(whole[size : 2 * size] + whole[:size])
        opened.flush()
        os.fsync(opened.fileno())
    assert rig.loaded(tier, STORED) == STORED[2:]


def test_the_checksum_is_one_of_the_key_as_well(rig: Rig, tier: NvmeTier) -> None:
    """The same bytes under two keys."""
    for chosen in (A, B):
        batch = rig.batch(chosen)
        rig.fill(batch, garbage=True)
        assert tier.store(batch)
        assert not rig.wait(tier, batch).failed
    group = tier._groups[0]
    one, other = (group.checksums[group.table.slot_of[key]] for key in [*A, *B])
    assert one != other


@pytest.mark.parametrize("nbytes", [0, 4096, 3 * SLOT_BYTES[0], 3 * SLOT_BYTES[0] + 512])
def test_a_segment_that_is_cut_off_while_it_is_used(rig: Rig, tier: NvmeTier, nbytes: int) -> None:
    os.truncate(segment(rig, 1), nbytes)
    kept = nbytes // SLOT_BYTES[0]
    kept_keys = [*STORED[: 8 + kept], *STORED[16:]]
    assert rig.loaded(tier, kept_keys) == kept_keys
    for key in STORED[8 + kept : 16]:
        assert rig.load(tier, [key])[0].failed == [key]
        rig.load(tier, kept_keys[:1])  # not too many failures in a row
    assert published(tier) == kept_keys
    assert tier.stats().counters["failed"] == 8 - kept
    validate(tier)


@pytest.mark.parametrize("nbytes", [0, 4096, 3 * SLOT_BYTES[0], 3 * SLOT_BYTES[0] + 512])
def test_a_segment_that_was_cut_off_before_a_restart(rig: Rig, tier: NvmeTier, nbytes: int) -> None:
    tier.close()
    os.truncate(segment(rig, 1), nbytes)
    kept = nbytes // SLOT_BYTES[0]
    left = [*STORED[: 8 + kept], *STORED[16:]]
    tier = rig.open()
    assert published(tier) == left
    assert rig.loaded(tier, left) == left
    rig.stored(tier, [*STORED[8 + kept : 16], *A])
    assert rig.loaded(tier, [*STORED, *A]) == [*STORED, *A]
    validate(tier)
    assert in_index(tier)[0] == 25


def test_a_deleted_segment_is_used_on_and_missing_after_a_restart(rig: Rig, tier: NvmeTier) -> None:
    segment(rig, 1).unlink()
    assert rig.loaded(tier, STORED) == STORED
    tier.close()
    tier = rig.open()
    left = [*STORED[:8], *STORED[16:]]
    assert published(tier) == left
    rig.stored(tier, STORED[8:16])
    tier.close()
    tier = rig.open()
    assert published(tier) == [*left, *STORED[8:16]]
    assert rig.loaded(tier, STORED) == STORED


# --- damaged index


def test_flipped_bits_in_the_index_never_serve_wrong_bytes(rig: Rig, tier: NvmeTier) -> None:
    rng = random.Random(7)
    tier.close()
    whole = data_file(rig).read_bytes()
    used = [offset for offset, byte in enumerate(whole) if byte]
    survived = 0
    for _ in range(40):
        data_file(rig).write_bytes(whole)
        for offset in rng.sample(used, rng.choice([1, 1, 8])):
            flip(data_file(rig), offset, rng.randrange(8))
        tier = rig.open()
        found = published(tier)
        assert set(found) <= set(STORED)
        survived += len(rig.loaded(tier, found))
        rig.stored(tier, [*A, *tier.missing(STORED[:1])])
        validate(tier)
        tier.close()
    assert survived


@pytest.mark.parametrize("nbytes", [0, 100, 4096, 5000, 20000])
def test_an_index_that_was_cut_off(rig: Rig, tier: NvmeTier, nbytes: int) -> None:
    tier.close()
    os.truncate(data_file(rig), nbytes)
    tier = rig.open()
    found = published(tier)
    assert rig.loaded(tier, found) == found
    rig.stored(tier, tier.missing(STORED))
    assert rig.loaded(tier, STORED) == STORED


@pytest.mark.parametrize("what", ["index", "index/data.mdb", "index/lock.mdb", "meta.json"])
def test_an_index_that_is_deleted_while_it_is_used(rig: Rig, tier: NvmeTier, what: str) -> None:
    path = namespace_of(rig.path) / what
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    rig.stored(tier, A)
    assert rig.loaded(tier, [*STORED, *A]) == [*STORED, *A]
    tier.close()
    tier = rig.open()
    found = published(tier)
    assert rig.loaded(tier, found) == found
    rig.stored(tier, tier.missing(STORED))
    assert rig.loaded(tier, STORED) == STORED


def test_an_index_that_takes_nothing_stores_nothing(
    rig: Rig, tier: NvmeTier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise NotIndexedError("the index is full, at 4096 bytes")

    with monkeypatch.context() as broken:
        broken.setattr(Index, "update", full)
        assert rig.store(tier, A).failed == A
    assert tier.missing(A) == A
    assert rig.loaded(tier, STORED) == STORED
    assert tier.stats().used == 24 * SLOT_BYTES[0]
    rig.stored(tier, A)
    validate(tier)
