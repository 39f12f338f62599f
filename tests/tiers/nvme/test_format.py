# SPDX-License-Identifier: Apache-2.0
"""Format 1 on disk, written and read here by hand: whatever breaks this makes a new format.

A directory of an older version is served by this one, and the other way round, as long as both say
format 1. How other formats are refused is tested with ``namespace``, ``offline`` and ``audit``; the
stats segment has a test of this kind in tests/stats.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path

import lmdb
import xxhash

from tests.tiers.nvme.tier_helpers import FINGERPRINT, Rig, content, keys, published
from tiercache.blocks import Key

#: Records of groups 0 and 1, and how many of them a file of 64 KiB holds.
RECORD_BYTES = {0: 8192, 1: 16384}
PER_SEGMENT = {0: 8, 1: 4}
WHOLE = {**FINGERPRINT, "record_bytes": {"0": 8192, "1": 16384}}
NAME = "1809092df68c5902"
#: Hash of 40 bytes at most, its length, the record's checksum, the count of its storing.
ENTRY = struct.Struct("<40sB7xQQ")
PAGE_ENTRIES = 127

STORED: Mapping[Key, int] = {
    **dict(zip(keys("abc"), [0, 9, 12], strict=True)),
    **dict(zip(keys("xy", 1), [1, 6], strict=True)),
}
"""Slots of blocks."""


def block_hash(key: Key) -> bytes:
    return key[:-4]


def group_of(key: Key) -> int:
    return int.from_bytes(key[-4:], "big")


def checksum(key: Key, record: bytes) -> int:
    return xxhash.xxh3_64_intdigest(record, int.from_bytes(block_hash(key)[:8], "little"))


def page(name: bytes, entries: Mapping[int, bytes]) -> bytes:
    body = b"".join(entries.get(at, bytes(64)) for at in range(PAGE_ENTRIES))
    return xxhash.xxh3_64_intdigest(body, int.from_bytes(name, "big")).to_bytes(8, "little") + body


def write(pool: Path) -> Path:
    """A namespace with the blocks ``STORED``, as the first version wrote it."""
    directory = pool / NAME
    (directory / "index").mkdir(parents=True)
    meta = {"format": 1, "created_by": "tiercache 0.1.0", "fingerprint": WHOLE}
    (directory / "meta.json").write_text(json.dumps(meta))
    entries: dict[int, dict[int, bytes]] = {0: {}, 1: {}}
    for stamp, (key, slot) in enumerate(STORED.items()):
        group, record = group_of(key), content(key, 0)
        put(directory, group, slot, record)
        entries[group][slot] = ENTRY.pack(block_hash(key), 32, checksum(key, record), stamp)
    with (
        lmdb.open(str(directory / "index"), map_size=1 << 20, lib_version=0) as environment,
        environment.begin(write=True) as transaction,
    ):
        for group, of_group in entries.items():
            name = struct.pack(">HI", group, 0)
            transaction.put(name, page(name, of_group))
    return directory


def put(directory: Path, group: int, slot: int, record: bytes) -> None:
    number, at = divmod(slot, PER_SEGMENT[group])
    file = directory / f"g{group}" / f"{number:06d}.seg"
    file.parent.mkdir(exist_ok=True)
    with file.open("r+b" if file.exists() else "w+b") as opened:
        opened.seek(at * RECORD_BYTES[group])
        opened.write(record)


def test_what_a_directory_is_called() -> None:
    text = json.dumps(WHOLE, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == NAME


def test_what_an_older_version_has_written_is_served(rig: Rig) -> None:
    write(rig.path)
    tier = rig.open()
    assert published(tier) == list(STORED)
    assert {**tier._groups[0].table.slot_of, **tier._groups[1].table.slot_of} == STORED
    assert rig.loaded(tier, list(STORED)[:3]) == list(STORED)[:3]
    assert rig.loaded(tier, list(STORED)[3:]) == list(STORED)[3:]
    rig.stored(tier, keys("new"))
    tier.close()
    assert set(published(rig.open())) == {*STORED, *keys("new")}


def test_an_older_version_can_read_what_is_written_now(rig: Rig) -> None:
    tier = rig.open()
    rig.stored(tier, keys(range(20)))
    rig.stored(tier, keys(range(5), 1), at_once=2)
    tier.close()
    directory = rig.path / NAME
    assert json.loads((directory / "meta.json").read_text())["format"] == 1
    assert json.loads((directory / "meta.json").read_text())["fingerprint"] == WHOLE
    found = {}
    with (
        lmdb.open(str(directory / "index"), readonly=True, lib_version=0) as environment,
        environment.begin() as transaction,
    ):
        for name, value in transaction.cursor():
            group, number = struct.unpack(">HI", name)
            rows = list(ENTRY.iter_unpack(value[8:]))
            packed = {at: ENTRY.pack(*row) for at, row in enumerate(rows) if row[1]}
            assert page(name, packed) == value
            for at, (hashed, length, summed, _) in enumerate(rows):
                if length:
                    found[hashed[:length], group] = (number * PAGE_ENTRIES + at, summed)
    for key in [*keys(range(20)), *keys(range(5), 1)]:
        slot, summed = found.pop((block_hash(key), group_of(key)))
        assert get(directory, group_of(key), slot) == content(key, 0)
        assert summed == checksum(key, content(key, 0))
    assert not found


def get(directory: Path, group: int, slot: int) -> bytes:
    number, at = divmod(slot, PER_SEGMENT[group])
    record = RECORD_BYTES[group]
    return (directory / f"g{group}" / f"{number:06d}.seg").read_bytes()[
        at * record : (at + 1) * record
    ]
