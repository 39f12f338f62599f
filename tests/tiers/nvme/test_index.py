# SPDX-License-Identifier: Apache-2.0
"""The index on a real file: what it gives back, and how much room it takes."""

import os
import random
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiers.nvme.index_helpers import (
    SLOTS,
    Opener,
    after,
    command,
    contents,
    entry,
    expected,
    occupied,
    write,
)
from tiercache.blocks import make_key
from tiercache.errors import InvariantError
from tiercache.tiers.nvme.index import (
    HASH_BYTES,
    Entry,
    Index,
    Loaded,
    Location,
    NotIndexedError,
    index_bytes,
)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    with Opener(tmp_path / "index") as opener:
        yield opener


def test_what_was_stored_is_there_after_reopening(opened: Opener) -> None:
    index = opened()
    write(index, 100)
    assert contents(index) == expected(after(100))
    index.close()
    assert contents(opened()) == expected(after(100))


@pytest.mark.parametrize("durable", [False, True])
def test_removed_entries_stay_removed(opened: Opener, durable: bool) -> None:
    index = opened(durable=durable)
    index.update({Location(0, 1): entry(1), Location(0, 2): entry(2), Location(3, 1): entry(3)})
    index.update({Location(0, 1): None, Location(3, 1): None, Location(3, 2): None})
    index.close()
    assert contents(opened(durable=durable)) == {(0, 2, b"hash 2", 6)}


def test_the_order_is_that_of_stamps_and_the_next_one_is_known(opened: Opener) -> None:
    index = opened()
    index.update({Location(0, slot): entry(stamp) for slot, stamp in enumerate([5, 9, 2, 200])})
    index.update({Location(3, 299): entry(7)})
    loaded = index.load(0)
    in_order = [b"hash 2", b"hash 5", b"hash 9", b"hash 200"]
    assert loaded.keys == [make_key(block_hash, 0) for block_hash in in_order]
    assert loaded.slots == [2, 0, 1, 3]
    assert list(loaded.checksums) == [6, 15, 27, 600]
    assert index.next_stamp == 201
    index.load(3)
    assert index.next_stamp == 201


def test_an_empty_index_starts_at_zero(opened: Opener) -> None:
    index = opened()
    index.update({})
    assert (index.load(0), index.next_stamp, index.damaged) == (Loaded([], [], []), 0, 0)


def test_of_two_slots_with_a_hash_the_younger_counts_and_the_older_is_cleared(
    opened: Opener,
) -> None:
    index = opened()
    index.update({Location(0, 5): entry(8, b"same"), Location(0, 500): entry(7, b"same")})
    assert index.load(0) == ([make_key(b"same", 0)], [5], [24])
    index.update({Location(0, 5): None})
    assert index.load(0) == Loaded([], [], [])


@pytest.mark.parametrize(
    ("location", "bad"),
    [
        (Location(0, 700), entry(1)),
        (Location(0, -1), entry(1)),
        (Location(1, 0), None),
        (Location(0, 0), Entry(b"", 1, 1)),
        (Location(0, 0), Entry(bytes(HASH_BYTES + 1), 1, 1)),
        (Location(0, 0), Entry(b"h", 1 << 64, 1)),
        (Location(0, 0), Entry(b"h", 1, -1)),
    ],
)
def test_what_does_not_fit_is_refused_as_a_whole(
    opened: Opener, location: Location, bad: Entry | None
) -> None:
    index = opened()
    with pytest.raises(InvariantError):
        index.update({Location(3, 3): entry(1), location: bad})
    assert contents(index) == set()


def test_clear_removes_everything_and_goes_on(opened: Opener, tmp_path: Path) -> None:
    index = opened()
    write(index, 50)
    index.clear()
    assert contents(index) == set()
    assert (tmp_path / "index" / "data.mdb").stat().st_size == index.info()["file_bytes"] == 8192
    write(index, 20)
    assert contents(index) == expected(after(20))


def test_who_opens_a_cleared_index_next_finds_nothing_and_begins_anew(opened: Opener) -> None:
    index = opened()
    index.clear()
    write(index, 20)
    index.close()
    index = opened()
    assert contents(index) == set()
    write(index, 30)
    index.close()
    assert contents(opened()) == expected(after(30))


def test_only_the_owner_may_read_the_files(opened: Opener, tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        opened()
    finally:
        os.umask(umask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"index": 0o700, "data.mdb": 0o600, "lock.mdb": 0o600}


# --- size ------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [{0: 1}, {0: 200, 1: 30, 2: 128}, {0: 5000, 1: 100}])
def test_index_bytes_holds_after_ten_thousand_random_updates(
    opened: Opener, tmp_path: Path, slots: dict[int, int]
) -> None:
    index, rng = opened(slots), random.Random(1)
    locations = [Location(group_id, slot) for group_id, n in slots.items() for slot in range(n)]
    for stamp in range(10_000):
        # Mostly a few slots, now and then all pages: three generations of them must fit.
        wanted = rng.choice([1, 1, 2, 8, 64]) if stamp % 100 else len(locations)
        chosen = rng.sample(locations, min(wanted, len(locations)))
        index.update({at: entry(stamp, rng.randbytes(8)) for at in chosen})
    assert occupied(tmp_path / "index") <= index_bytes(slots)


def test_a_full_map_grows_up_to_the_limit(opened: Opener) -> None:
    index = opened(map_bytes=4096)
    sizes = {index.info()["map_bytes"]}
    for stamp in range(0, 700, 10):
        index.update({Location(0, slot): entry(slot) for slot in range(stamp, stamp + 10)})
        sizes.add(index.info()["map_bytes"])
    assert len(sizes) > 3
    assert max(sizes) <= index_bytes(SLOTS)
    assert len(index.load(0).keys) == 700


READER = """
import lmdb
environment = lmdb.open(sys.argv[1], readonly=True, lib_version=0)
with environment.begin() as transaction:
    print("reads", flush=True)
    sys.stdin.read()
"""


STEPS = 1000


def write_until_refused(index: Index) -> int:
    """Steps that the index took, at most STEPS."""
    for step in range(STEPS):
        try:
            write(index, step + 1, first=step)
        except NotIndexedError:
            return step
    return STEPS


def test_a_reader_that_stays_makes_the_index_refuse_not_grow(
    opened: Opener, tmp_path: Path
) -> None:
    index = opened()
    pipe = subprocess.PIPE
    reading = command(READER, tmp_path / "index")
    with subprocess.Popen(reading, stdin=pipe, stdout=pipe, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reads\n"
        written = write_until_refused(index)
        assert 0 < written < STEPS
        assert contents(index) == expected(after(written))
        reader.communicate("")
    write(index, written + 100, first=written)
    assert contents(index) == expected(after(written + 100))
    assert occupied(tmp_path / "index") <= index_bytes(SLOTS)


def test_an_index_for_more_slots_shrinks(opened: Opener, tmp_path: Path) -> None:
    wide = {0: 50_000, 3: 300, 7: 20_000}
    index = opened(wide)
    for group_id, count in wide.items():
        index.update({Location(group_id, s): entry(s, b"%d" % s) for s in range(count)})
    index.close()
    index = opened()
    assert contents(index) == {
        (group_id, slot, b"%d" % slot, slot * 3)
        for group_id, n in SLOTS.items()
        for slot in range(n)
    }
    assert occupied(tmp_path / "index") <= index_bytes(SLOTS)
    assert index.info()["map_bytes"] <= index_bytes(SLOTS)
    index.close()
    assert len(opened(wide).load(0).keys) == 700  # what was cut off does not come back


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 192 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a tmpfs, and not in every container")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_keeps_what_there_is(small_disk: Path) -> None:
    with Opener(small_disk / "index") as opened:
        index = opened()
        written = write_until_refused(index)
        assert 0 < written < STEPS
        assert contents(index) == expected(after(written))
        subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
        write(index, written + 20, first=written)
        index.close()
        assert contents(opened()) == expected(after(written + 20))


@pytest.mark.slow
def test_a_million_entries(opened: Opener) -> None:
    count = 1_000_000
    slots = random.Random(1).sample(range(count), count)
    index = opened({0: count})
    for start in range(0, count, 250_000):
        chosen = enumerate(slots[start : start + 250_000], start)
        index.update({Location(0, s): Entry(s.to_bytes(32, "big"), s, at) for at, s in chosen})
    index.close()
    index = opened({0: count})
    loaded = index.load(0)
    assert loaded.slots == list(loaded.checksums) == slots
    assert loaded.keys == [make_key(slot.to_bytes(32, "big"), 0) for slot in slots]
    assert index.next_stamp == count
