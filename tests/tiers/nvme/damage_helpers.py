# SPDX-License-Identifier: Apache-2.0
"""Every kind of damage that a namespace can have, made on a real one.

Each maker changes the files of a closed namespace that ``server_helpers.fill`` made: group 0 has 24
records in three segments of eight slots, group 1 has six in two of four.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from tests.tiers.nvme import server_helpers
from tests.tiers.nvme.tier_helpers import SLOT_BYTES
from tiercache.blocks import Key, key_hash
from tiercache.tiers.nvme.pages import Entry, Location, page_key
from tiercache.tiers.nvme.writing import index_of

STORED = server_helpers.STORED
FIRST = STORED[:24]
SECOND = STORED[24:]


class Damage(NamedTuple):
    """How it is made, what an audit calls it, and which keys survive it for certain."""

    make: Callable[[Path], object]
    code: str
    left: Collection[Key]
    data: bool = False
    """Whether only records tell."""


def without(*keys: Key) -> list[Key]:
    return [key for key in STORED if key not in keys]


def segment(directory: Path, number: int, group_id: int = 0) -> Path:
    return directory / f"g{group_id}" / f"{number:06d}.seg"


def data_file(directory: Path) -> Path:
    return directory / "index" / "data.mdb"


def flip(file: Path, offset: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[offset] ^= 1
    file.write_bytes(raw)


def flip_in_index(directory: Path, key: Key) -> None:
    """Change the hash of a block wherever it lies: the seals of its pages break."""
    data = data_file(directory)
    block_hash = key_hash(key)
    data.write_bytes(data.read_bytes().replace(block_hash, block_hash[::-1]))


def break_tree(directory: Path) -> None:
    """Damage the first page behind LMDB's two meta pages of which the tree is."""
    raw = bytearray(data_file(directory).read_bytes())
    for page in range(2, len(raw) // 4096):
        raw[page * 4096 + 10] ^= 0xFF  # the kind of page
    data_file(directory).write_bytes(raw)


def edit_meta(directory: Path, **fields: object) -> None:
    meta = json.loads((directory / "meta.json").read_text())
    meta["fingerprint"] |= fields
    (directory / "meta.json").write_text(json.dumps(meta))


def add(directory: Path, location: Location, entry: Entry) -> None:
    with index_of(directory) as index:
        index.change({location: entry})


def add_page(directory: Path, key: bytes, page: bytes) -> None:
    with index_of(directory) as index, index._environment.begin(write=True) as transaction:
        transaction.put(key, page)


def swap(file: Path, other: Path) -> None:
    """A link in the place of a file."""
    other.parent.mkdir(exist_ok=True)
    file.rename(other)
    file.symlink_to(other)


def elsewhere(directory: Path) -> Path:
    return directory.parent.parent / "elsewhere"


def replace_by_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()
    (file / "something").touch()


def kill_while_it_grows(directory: Path) -> None:
    """What a process leaves that is killed between allocating a segment and naming it."""
    file = segment(directory, 3).with_suffix(".seg.new")
    code = (
        "import os, signal, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)\n"
        "os.posix_fallocate(fd, 0, 65536)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(file)], check=False)
    assert file.exists()


def grow(file: Path) -> None:
    with file.open("ab") as opened:
        opened.write(bytes(SLOT_BYTES[0]))


def index_truncated(directory: Path) -> None:
    os.truncate(data_file(directory), 5000)


RNG = random.Random(5)
OLD = Entry(key_hash(FIRST[3]), 1, 0)
LAST_OF_SECOND = SECOND[4:]

DAMAGES: dict[str, Damage] = {
    # meta.json
    "meta missing": Damage(lambda d: (d / "meta.json").unlink(), "meta-missing", []),
    "meta empty": Damage(lambda d: os.truncate(d / "meta.json", 0), "meta-damaged", []),
    "meta torn": Damage(lambda d: os.truncate(d / "meta.json", 40), "meta-damaged", []),
    "meta is a directory": Damage(
        lambda d: replace_by_directory(d / "meta.json"), "meta-damaged", []
    ),
    "meta of another model": Damage(lambda d: edit_meta(d, model="other"), "fingerprint", []),
    "meta without sizes": Damage(lambda d: edit_meta(d, record_bytes=7), "fingerprint", []),
    "meta is a link": Damage(
        lambda d: swap(d / "meta.json", elsewhere(d) / "meta"), "meta-link", STORED
    ),
    "meta left unfinished": Damage(
        lambda d: (d / "meta.new").write_text("{"), "unfinished", STORED
    ),
    # the index
    "index deleted": Damage(lambda d: data_file(d).unlink(), "index-missing", []),
    "index emptied": Damage(lambda d: os.truncate(data_file(d), 0), "index-missing", []),
    "index truncated": Damage(index_truncated, "index-damaged", []),
    "index of garbage": Damage(
        lambda d: data_file(d).write_bytes(RNG.randbytes(20_000)), "index-damaged", []
    ),
    "index with a broken tree": Damage(break_tree, "index-damaged", []),
    "index is a link": Damage(lambda d: swap(data_file(d), elsewhere(d) / "data.mdb"), "link", []),
    "index is a directory": Damage(lambda d: replace_by_directory(data_file(d)), "kind", []),
    "index directory is a link": Damage(
        lambda d: swap(d / "index", elsewhere(d) / "index"), "link", []
    ),
    "index left half compacted": Damage(
        lambda d: (d / "index" / "compact").mkdir(), "unfinished", STORED
    ),
    "page damaged": Damage(lambda d: flip_in_index(d, FIRST[20]), "damaged-pages", SECOND),
    "page of no group": Damage(
        lambda d: add_page(d, page_key(9, 0), b"page"), "strange-pages", STORED
    ),
    "page under no key": Damage(lambda d: add_page(d, b"what?", b"page"), "strange-pages", STORED),
    "page of the wrong size": Damage(
        lambda d: add_page(d, page_key(0, 1), b"page"), "damaged-pages", STORED
    ),
    "entry beyond the slots": Damage(
        lambda d: add(d, Location(0, 5000), Entry(b"beyond", 1, 99)), "beyond-slots", STORED
    ),
    "block twice": Damage(
        lambda d: add(d, Location(0, 3 + 8), OLD), "duplicates", without(FIRST[11])
    ),
    # segments
    "segment deleted": Damage(
        lambda d: segment(d, 1).unlink(), "missing-segment", without(*FIRST[8:16])
    ),
    "last segment deleted": Damage(
        lambda d: segment(d, 1, 1).unlink(), "beyond-slots", without(*LAST_OF_SECOND)
    ),
    "all segments deleted": Damage(lambda d: shutil.rmtree(d / "g0"), "missing-segment", SECOND),
    "segment emptied": Damage(
        lambda d: os.truncate(segment(d, 1), 0), "short-segment", without(*FIRST[8:16])
    ),
    "segment cut between records": Damage(
        lambda d: os.truncate(segment(d, 1), 2 * SLOT_BYTES[0]),
        "short-segment",
        without(*FIRST[10:16]),
    ),
    "segment cut within a record": Damage(
        lambda d: os.truncate(segment(d, 1), SLOT_BYTES[0] + 100), "cut-off", without(*FIRST[9:16])
    ),
    "segment too long": Damage(lambda d: grow(segment(d, 1)), "too-long", STORED),
    "segment is a link": Damage(
        lambda d: swap(segment(d, 1), elsewhere(d) / "seg"), "link", without(*FIRST[8:16])
    ),
    "segment is a directory": Damage(
        lambda d: replace_by_directory(segment(d, 1)), "kind", without(*FIRST[8:16])
    ),
    "segment left unfinished": Damage(kill_while_it_grows, "unfinished", STORED),
    "group directory is a link": Damage(
        lambda d: swap(d / "g0", elsewhere(d) / "g0"), "link", SECOND
    ),
    # strangers
    "unknown file": Damage(lambda d: (d / "notes.txt").write_text("mine"), "unknown", STORED),
    "unknown file among segments": Damage(
        lambda d: (d / "g0" / "1.seg").write_bytes(b"x"), "unknown", STORED
    ),
    "directory of no group": Damage(lambda d: (d / "g9").mkdir(), "unknown", STORED),
    # access
    "directory open to others": Damage(lambda d: (d / "g0").chmod(0o755), "mode", STORED),
    "segment open to others": Damage(lambda d: segment(d, 0).chmod(0o644), "mode", STORED),
    "segment that nobody may read": Damage(lambda d: segment(d, 0).chmod(0), "mode", STORED),
    "lock is a link": Damage(lambda d: swap(d / "lock", elsewhere(d) / "lock"), "link", STORED),
    "lock is a directory": Damage(lambda d: replace_by_directory(d / "lock"), "kind", STORED),
    # records
    "bit flipped in a record": Damage(
        lambda d: flip(segment(d, 1), 3 * SLOT_BYTES[0] + 17),
        "bad-records",
        without(FIRST[11]),
        data=True,
    ),
    "records swapped": Damage(
        lambda d: swap_records(segment(d, 0)), "bad-records", without(*FIRST[:2]), data=True
    ),
    "record of zeros": Damage(
        lambda d: zero(segment(d, 0, 1), SLOT_BYTES[1]),
        "bad-records",
        without(SECOND[1]),
        data=True,
    ),
}
if os.geteuid() == 0:
    DAMAGES["segment of another user"] = Damage(
        lambda d: os.chown(segment(d, 0), 65534, 65534), "owner", STORED
    )


def swap_records(file: Path) -> None:
    raw = file.read_bytes()
    size = SLOT_BYTES[0]
    file.write_bytes(raw[size : 2 * size] + raw[:size] + raw[2 * size :])


def zero(file: Path, offset: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(bytes(SLOT_BYTES[1]))
