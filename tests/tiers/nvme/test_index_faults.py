# SPDX-License-Identifier: Apache-2.0
"""The index when files are damaged, processes die or fork, and LMDB gives up."""

import gc
import os
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import lmdb
import pytest

from tests.tiers.nvme.index_helpers import (
    SLOTS,
    Opener,
    after,
    changes,
    command,
    contents,
    entry,
    expected,
    occupied,
    run,
    write,
)
from tiercache.errors import TierCacheError
from tiercache.tiers.nvme import index as module
from tiercache.tiers.nvme.index import Index, Loaded, Location, NotIndexedError, index_bytes
from tiercache.tiers.nvme.pages import page_key

STEPS = 200


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    with Opener(tmp_path / "index") as opener:
        yield opener


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The file of a closed index after STEPS steps."""
    with Opener(tmp_path / "index") as opener:
        write(opener(), STEPS)
    return tmp_path / "index" / "data.mdb"


WRITER = """
index = Index(Path(sys.argv[1]), SLOTS, durable=False)
for step in range(int(sys.argv[2]), 1_000_000):
    index.update(changes(step))
    print(step, flush=True)
"""


def test_a_killed_writer_loses_nothing_that_it_acknowledged(opened: Opener) -> None:
    rng = random.Random(7)
    steps = 0
    for _ in range(25):
        writing = command(WRITER, opened.path, steps)
        with subprocess.Popen(writing, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(rng.randrange(1, 60))]
            writer.kill()
            lines += writer.stdout.readlines()
        acknowledged = 1 + max(int(line) for line in lines if line.endswith(b"\n"))
        assert acknowledged > steps
        index = opened()
        # The step that was under way is there as a whole or not at all.
        found, possible = contents(index), (acknowledged, acknowledged + 1)
        steps = next(n for n in possible if found == expected(after(n)))
        assert index.damaged == 0
        index.close()
    assert occupied(opened.path) <= index_bytes(SLOTS)


DAMAGE = """
import logging, random
logging.disable()
data, rng = Path(sys.argv[1]), random.Random(3)
whole = data.read_bytes()
last, before = expected(after(int(sys.argv[2]))), expected(after(int(sys.argv[2]) - 1))
meta = [page * 4096 + offset for page in (0, 1) for offset in range(0, 168, 2)]
heads = [page * 4096 + rng.randrange(40) for page in range(len(whole) // 4096) for _ in "123"]
anywhere = [rng.randrange(len(whole)) for _ in range(200)]
outcomes = set()
for offset in meta + heads + anywhere:
    broken = bytearray(whole)
    broken[offset] ^= 1 << rng.randrange(8)
    data.write_bytes(broken)
    index = Index(data.parent, SLOTS, durable=False)
    found = contents(index)
    # A flipped bit in a meta page can bring back the state before the last transaction.
    assert found <= last or found <= before, offset
    outcomes.add((found == last, bool(found), index.damaged > 0))
    write(index, 2)
    index.close()
    with_more = Index(data.parent, SLOTS, durable=False)
    assert contents(with_more), offset
    with_more.close()
print(sorted(outcomes))
"""


def test_flipped_bits_never_crash_and_never_make_an_entry(data: Path) -> None:
    """In another process, which LMDB would take down."""
    unharmed, partly, anew = "(True, True, False)", "(False, True, True)", "(False, False, True)"
    outcomes = run(DAMAGE, data, STEPS)
    assert all(outcome in outcomes for outcome in (unharmed, partly, anew))


def _cut(data: Path) -> None:
    os.truncate(data, data.stat().st_size - 5 * 4096)


def _cut_in_a_page(data: Path) -> None:
    os.truncate(data, 8192 + 100)


def _fill_with_garbage(data: Path) -> None:
    data.write_bytes(random.Random(1).randbytes(data.stat().st_size))


def _put_text(data: Path) -> None:
    data.write_text("this is no index")


def _put_another_engine(data: Path) -> None:
    data.unlink()
    lmdb.open(str(data.parent), lib_version=1).close()


@pytest.mark.parametrize(
    "damage",
    [_cut, _cut_in_a_page, _fill_with_garbage, _put_text, _put_another_engine],
)
def test_a_file_that_is_no_index_makes_place_for_one(
    opened: Opener, data: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    damage(data)
    index = opened()
    assert (contents(index), index.damaged) == (set(), 1)
    assert len([r for r in caplog.records if "begins anew" in r.getMessage()]) == 1
    write(index, 20)
    index.close()
    assert contents(opened()) == expected(after(20))


@pytest.mark.parametrize("remove", [Path.unlink, lambda data: data.write_bytes(b"")])
def test_a_file_that_is_gone_is_begun_anew(
    opened: Opener, data: Path, remove: Callable[[Path], None]
) -> None:
    remove(data)
    index = opened()
    assert (contents(index), index.damaged) == (set(), 0)


def test_a_file_deleted_while_it_is_open_is_missed_only_afterwards(
    opened: Opener, data: Path
) -> None:
    index = opened()
    data.unlink()
    write(index, STEPS + 5, first=STEPS)
    assert contents(index) == expected(after(STEPS + 5))
    index.close()
    assert contents(opened()) == set()


@pytest.mark.parametrize("lock", [b"", b"\xff" * 64, b"\xff" * 33_000, None])
def test_the_lock_file_may_be_anything(opened: Opener, data: Path, lock: bytes | None) -> None:
    path = data.with_name("lock.mdb")
    path.unlink()
    if lock is not None:
        path.write_bytes(lock)
    index = opened()
    assert contents(index) == expected(after(STEPS))
    write(index, STEPS + 1, first=STEPS)


def test_a_damaged_page_is_dropped_counted_and_written_again(opened: Opener, data: Path) -> None:
    with lmdb.open(str(data.parent), lib_version=0) as other, other.begin(write=True) as edit:
        keys = list(edit.cursor().iternext(values=False))
        page = bytearray(edit.get(keys[0], b""))
        page[100] ^= 1
        edit.put(keys[0], page)
        edit.put(keys[1], edit.get(keys[2], b""))  # under a key that is not its own
    index = opened()
    index.update({Location(0, 0): entry(9)})
    assert index.damaged == 1
    rest = {row for row in expected(after(STEPS)) if row[0] != 0 or row[1] >= 2 * 127}
    assert contents(index) == rest | {(0, 0, b"hash 9", 27)}
    assert index.damaged == 2
    assert contents(index) == rest | {(0, 0, b"hash 9", 27)}
    assert index.damaged == 2


def test_what_is_no_page_is_removed(opened: Opener, data: Path) -> None:
    with lmdb.open(str(data.parent), lib_version=0) as other, other.begin(write=True) as edit:
        edit.put(b"key", b"value")
        edit.put(page_key(9, 0), b"value")
    assert contents(opened()) == expected(after(STEPS))


def test_what_an_interrupted_copy_left_is_removed(opened: Opener, data: Path) -> None:
    (data.parent / "compact").mkdir()
    (data.parent / "compact" / "data.mdb").write_bytes(b"half")
    assert contents(opened()) == expected(after(STEPS))
    assert sorted(path.name for path in data.parent.iterdir()) == ["data.mdb", "lock.mdb"]


READERS = """
import lmdb, os, signal
told, tell = os.pipe()
def read():
    environment = lmdb.open(sys.argv[1], readonly=True, lib_version=0)
    return environment, environment.begin()
children = []
for _ in range(200):
    children.append(os.fork())
    if children[-1] == 0:
        held = read()
        os.write(tell, b"x")
        signal.pause()
read_so_far = 0
while read_so_far < 200:
    read_so_far += len(os.read(told, 200))
held = read()  # a reader that lives keeps the table from being made anew
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print("killed", flush=True)
sys.stdin.read()
"""


def test_two_hundred_killed_readers(opened: Opener, data: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(command(READERS, data.parent), stdin=pipe, stdout=pipe) as readers:
        assert readers.stdout is not None
        assert readers.stdout.readline() == b"killed\n"
        index = opened()
        assert index.check_readers() == 0  # opening has freed them
        readers.communicate(b"")
    write(index, STEPS + 300, first=STEPS)
    assert contents(index) == expected(after(STEPS + 300))


def test_readers_that_die_later_are_found(opened: Opener, data: Path) -> None:
    index = opened()
    with subprocess.Popen(command(READERS, data.parent), stdin=-1, stdout=-1) as readers:
        assert readers.stdout is not None
        assert readers.stdout.readline() == b"killed\n"
        assert index.check_readers() == 200
        readers.communicate(b"")


def test_open_twice_in_one_process_is_refused_also_through_a_symlink(
    opened: Opener, data: Path, tmp_path: Path
) -> None:
    index = opened()
    (tmp_path / "link").symlink_to(data.parent)
    for path in (data.parent, tmp_path / "link", tmp_path / "link" / ".." / "index"):
        with pytest.raises(TierCacheError, match="already open in this process"):
            opened(path=path)
    assert contents(index) == expected(after(STEPS))
    index.close()
    again = opened(path=tmp_path / "link")
    index.close()
    with pytest.raises(TierCacheError, match="already open in this process"):
        opened()
    assert contents(again) == expected(after(STEPS))


def test_an_index_that_is_forgotten_can_be_opened_again(opened: Opener, data: Path) -> None:
    forgotten = Index(data.parent, SLOTS, durable=False)
    del forgotten
    gc.collect()
    assert contents(opened()) == expected(after(STEPS))


FORK = """
import os
from tiercache.errors import TierCacheError
index = Index(Path(sys.argv[1]), SLOTS, durable=False)
index.update(changes(0))
child = os.fork()
if child == 0:
    uses = [lambda: index.update(changes(1)), lambda: index.load(0), index.clear, index.info]
    for use in [*uses, index.check_readers, lambda: Index(Path(sys.argv[1]), SLOTS, durable=False)]:
        try:
            use()
        except TierCacheError as error:
            print(error, flush=True)
    index.close()
    os._exit(0)
os.waitpid(child, 0)
index.update(changes(1))
assert contents(index) == expected(after(2))
print(os.getpid())
"""


def test_after_a_fork_the_child_is_refused_and_the_parent_goes_on(tmp_path: Path) -> None:
    *refusals, again, parent = run(FORK, tmp_path / "index").splitlines()
    assert len(refusals) == 5
    assert all(f"was opened by process {parent}" in refusal for refusal in refusals)
    assert "already open in this process" in again


def test_a_place_that_cannot_be_used(opened: Opener, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TierCacheError, match="cannot be opened"):
            opened(path=path)
    (tmp_path / "file").unlink()
    opened(path=tmp_path / "file")  # nothing is left of the failure


def test_after_close_everything_is_refused(opened: Opener) -> None:
    index = opened()
    index.close()
    index.close()
    with pytest.raises(NotIndexedError):
        index.update({Location(0, 0): entry(1)})
    for ask in (index.info, index.check_readers):
        with pytest.raises(TierCacheError, match="does not answer"):
            ask()


def test_asking_while_the_map_grows(opened: Opener) -> None:
    index = opened({0: 20_000}, map_bytes=4096)
    stop, asked = threading.Event(), threading.Event()

    def ask() -> None:
        while not stop.is_set():
            index.check_readers()
            index.info()
            asked.set()

    with ExitStack() as stack:
        asking = threading.Thread(target=ask)
        asking.start()
        stack.callback(asking.join)
        stack.callback(stop.set)
        asked.wait()
        for first in range(0, 20_000, 100):
            index.update({Location(0, first + slot): entry(first + slot) for slot in range(100)})
    assert len(index.load(0).keys) == 20_000


def raises(error: Exception) -> Callable[..., None]:
    def call(*_: object, **__: object) -> None:
        raise error

    return call


def test_lmdb_that_gives_up_is_opened_again(opened: Opener, data: Path) -> None:
    index = opened()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_transact", raises(lmdb.PanicError("meta page")))
        with pytest.raises(NotIndexedError, match="meta page"):
            index.update(changes(STEPS))
    write(index, STEPS + 3, first=STEPS)
    assert contents(index) == expected(after(STEPS + 3))
    assert index.damaged == 0


def test_reading_that_fails_begins_anew(opened: Opener, data: Path) -> None:
    index = opened()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_read", raises(lmdb.CorruptedError("page")))
        assert index.load(0) == Loaded([], [], [])
    assert (contents(index), index.damaged) == (set(), 1)
    write(index, 3)
    assert contents(index) == expected(after(3))


def test_what_cannot_be_opened_again_stores_nothing_and_raises_nothing_else(
    opened: Opener, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = opened()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "open_environment", raises(OSError("disk is gone")))
        with pytest.MonkeyPatch.context() as once:
            once.setattr(index, "_transact", raises(lmdb.PanicError("meta page")))
            with pytest.raises(NotIndexedError):
                index.update(changes(STEPS))
        with pytest.raises(NotIndexedError):
            index.update(changes(STEPS))
        with pytest.raises(NotIndexedError):
            index.clear()
        assert index.load(0) == Loaded([], [], [])
    assert "disk is gone" in caplog.text
