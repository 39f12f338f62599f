# SPDX-License-Identifier: Apache-2.0
"""The whole tier over errors and a device that hangs, and next to others."""

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from tests.tiers.nvme.segments_helpers import mounted
from tests.tiers.nvme.tier_helpers import (
    SLOT_BYTES,
    Clock,
    Rig,
    keys,
    namespace_of,
    published,
    segment,
    validate,
)
from tiercache.errors import ConfigError, TierCacheError
from tiercache.tiers.nvme import namespace, segments
from tiercache.tiers.nvme import tier as module
from tiercache.tiers.nvme.breaker import FAILURES, FIRST_PAUSE_S
from tiercache.tiers.nvme.tier import HUNG_S, NvmeTier

ROOT = Path(__file__).parents[3]
STORED = keys(range(24))
A, B = (keys([name]) for name in "ab")


@pytest.fixture
def tier(rig: Rig, clock: Clock) -> NvmeTier:
    """Slots 0 to 23 of group 0 are in use: three segments."""
    tier = rig.open(clock=clock)
    rig.stored(tier, STORED)
    return tier


# --- errors of the device


def fail(monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    def failing(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, failing)


def test_a_read_error_is_a_miss_and_the_next_read_succeeds(
    rig: Rig, tier: NvmeTier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as broken:
        fail(broken, "preadv", errno.EIO)
        assert rig.load(tier, STORED[:1])[0].failed == STORED[:1]
    assert rig.loaded(tier, STORED) == STORED[1:]
    assert tier.stats().counters["failed"] == 1
    assert tier.stats().healthy
    [record] = [r for r in caplog.records if r.levelno >= logging.WARNING and "read" in r.message]
    assert record.message == (
        "tiercache tier nvme0: 1 blocks were not read: [Errno 5] Input/output error"
    )


def test_reads_that_fail_in_a_row_rest_and_are_tried_again(
    rig: Rig, tier: NvmeTier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        fail(broken, "preadv", errno.EIO)
        for key in STORED[:FAILURES]:
            rig.load(tier, [key])
        left = STORED[FAILURES:]
        assert not any(map(tier.has, left))
        assert tier.leading(left) == 0
        assert not tier.stats().healthy
        assert tier.missing(left) == []
        assert rig.load(tier, left)[0].failed == left  # without trying
        assert tier.stats().counters["failed"] == FAILURES
        rig.stored(tier, A)
        clock.now += FIRST_PAUSE_S
        tier.poll()
        assert tier.has(left[0])
        rig.load(tier, left[:1])
        assert not tier.has(left[1])  # one failure was enough
    clock.now += 2 * FIRST_PAUSE_S
    tier.poll()
    assert tier.stats().healthy
    assert rig.loaded(tier, [*left, *A]) == [*left[1:], *A]
    validate(tier)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        *(("pwritev", code) for code in (errno.EIO, errno.EROFS, errno.EACCES, errno.ENOSPC)),
        *(("posix_fallocate", code) for code in (errno.EIO, errno.EROFS, errno.EACCES)),
    ],
)
def test_writes_that_fail_in_a_row_rest_and_are_tried_again(  # noqa: PLR0917
    rig: Rig, tier: NvmeTier, clock: Clock, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    new = keys(range(100, 110))
    with monkeypatch.context() as broken:
        fail(broken, call, code)
        for key in new[:FAILURES]:
            assert rig.store(tier, [key]).failed == [key]
        assert not tier.store(rig.batch(new))
        assert not tier.stats().healthy
        assert tier.missing(new) == new
        assert tier.stats().used == 24 * SLOT_BYTES[0]
        assert rig.loaded(tier, STORED) == STORED
        clock.now += FIRST_PAUSE_S
        assert rig.store(tier, new[:1]).failed == new[:1]
        assert not tier.store(rig.batch(new))
    clock.now += 2 * FIRST_PAUSE_S
    rig.stored(tier, new)
    assert tier.stats().healthy
    assert rig.loaded(tier, [*STORED, *new]) == [*STORED, *new]
    validate(tier)


def test_a_short_write_is_no_store(
    rig: Rig, tier: NvmeTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwritev", lambda *_: 0)
        assert rig.store(tier, A).failed == A
    assert not tier.has(A[0])
    rig.stored(tier, A)


# --- a device that hangs


class Hang:
    """System calls that do not return until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *calls: str) -> None:
        self.begun, self.over = Event(), Event()
        for call in calls:
            monkeypatch.setattr(os, call, self._hanging(getattr(os, call)))

    def _hanging(self, call: Callable[..., int]) -> Callable[..., int]:
        def hanging(*args: object) -> int:
            self.begun.set()
            assert self.over.wait(60)
            return call(*args)

        return hanging


def test_a_device_that_hangs_rests_and_comes_back(
    rig: Rig, tier: NvmeTier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing here waits for the device: it is let go by the same thread, at the end."""
    hang = Hang(monkeypatch, "preadv", "pwritev")
    load, store = rig.batch(STORED[:8], first=8), rig.begin_store(tier, A, first=16)
    tier.load(load)
    assert store
    assert hang.begun.wait(30)
    clock.now += HUNG_S
    assert tier.poll() == []
    assert tier.stats().healthy
    assert tier.has(STORED[0])
    assert rig.load(tier, B)[0].failed == B  # which says nothing of the device
    clock.now += 0.1
    assert tier.poll() == []
    assert not tier.stats().healthy
    assert not any(map(tier.has, STORED))
    assert not tier.store(rig.batch(B))
    assert rig.load(tier, STORED[8:16])[0].failed == STORED[8:16]
    tier.touch(STORED)
    tier.demote(STORED[:1])
    assert tier.missing([*STORED, *A, *B]) == B
    assert tier.stats().jobs == 2
    clock.now += 1000  # still hung after a pause
    assert tier.poll() == []
    assert not tier.has(STORED[0])
    hang.over.set()
    assert not rig.wait(tier, load).failed
    assert not rig.wait(tier, store).failed
    assert tier.stats().healthy
    assert rig.loaded(tier, [*STORED, *A]) == [*STORED, *A]
    validate(tier)


def test_a_long_queue_that_moves_does_not_hang(
    rig: Rig, tier: NvmeTier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.stored(tier, B)  # whose segment A will lie in
    hang = Hang(monkeypatch, "preadv")
    quick, slow = rig.begin_store(tier, A), rig.batch(STORED[:8], first=1)
    tier.load(slow)
    assert quick
    clock.now += HUNG_S - 1
    rig.wait(tier, quick)
    clock.now += HUNG_S - 1
    assert tier.poll() == []
    assert tier.stats().healthy
    hang.over.set()
    rig.wait(tier, slow)


def test_close_returns_although_the_device_hangs(
    rig: Rig, tier: NvmeTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.05)
    hang = Hang(monkeypatch, "pwritev")
    assert rig.begin_store(tier, A)
    assert hang.begun.wait(30)
    tier.close()
    with pytest.raises(ConfigError, match="no other process writes to"):
        rig.open()  # what hangs may still write
    assert not tier.has(STORED[0])
    assert not tier.store(rig.batch(B))
    hang.over.set()
    monkeypatch.setattr(module, "CLOSE_S", 30)
    tier.close()
    tier = rig.open()
    assert rig.loaded(tier, STORED) == STORED


def test_a_clock_that_is_set_back_harms_nothing(
    rig: Rig, tier: NvmeTier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, load = rig.begin_store(tier, A), rig.batch(STORED[:8], first=1)
    tier.load(load)
    clock.now = -1e6
    assert store
    assert rig.wait(tier, store).seconds == rig.wait(tier, load).seconds == 0
    assert tier.stats().healthy
    clock.now = 1e6
    with monkeypatch.context() as broken:
        fail(broken, "pwritev", errno.EIO)
        for key in keys(range(100, 100 + FAILURES)):
            rig.store(tier, [key])
    assert not tier.store(rig.batch(B))
    clock.now = 0
    rig.stored(tier, B)
    assert rig.loaded(tier, [*STORED, *A, *B]) == [*STORED, *A, *B]


# --- where it lies, and who else is there


def test_a_second_writer_is_refused_with_the_pid_of_the_first(
    rig: Rig, tier: NvmeTier, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(rig.path)
    for path in (rig.path, tmp_path / "link"):
        with pytest.raises(ConfigError, match=rf"path: .*process {os.getpid()} does"):
            rig.open(path=path)
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path\n"
        f"from tests.tiers.nvme.tier_helpers import Rig; Rig(Path({str(rig.path)!r})).open()"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert f"process {os.getpid()} does" in other.stderr
    assert rig.loaded(tier, STORED) == STORED


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_can_do_nothing_and_harms_nothing(rig: Rig, tier: NvmeTier) -> None:
    child = os.fork()
    if not child:
        status = 1
        try:
            assert not tier.store(rig.batch(A))
            assert rig.load(tier, STORED[:8])[0].failed == STORED[:8]
            tier.clear()
            tier.poll()
            tier.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(ConfigError, match="no other process writes to"):
        rig.open()
    rig.stored(tier, A)
    assert rig.loaded(tier, [*STORED, *A]) == [*STORED, *A]
    tier.close()
    assert published(rig.open()) == [*STORED, *A]


def test_killed_readers_keep_nothing_from_being_stored(rig: Rig, tier: NvmeTier) -> None:
    """Each had a place in LMDB's table of readers, and pages that must not be overwritten."""
    code = (
        "import lmdb, os, signal, sys\n"
        "for _ in range(200):\n"
        "    if not os.fork():\n"
        "        env = lmdb.open(sys.argv[1], readonly=True, max_readers=512, lib_version=0)\n"
        "        reading = env.begin()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    os.wait()\n"
    )
    index = namespace_of(rig.path) / "index"
    subprocess.run([sys.executable, "-c", code, str(index)], check=True)
    assert tier._disk.index.info()["readers"] >= 200
    for number in range(200):
        rig.stored(tier, keys([number + 100]))
    tier.close()
    tier = rig.open()
    assert tier._disk.index.info()["readers"] < 10
    assert keys([299])[0] in rig.loaded(tier, published(tier))


def test_a_network_file_system_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "file_system", lambda _: 0x6969)
    with pytest.raises(ConfigError, match=r"path: .*NFS is a network file system"):
        rig.open()
    assert not rig.path.exists()


def test_a_read_only_file_system_is_refused(tmp_path: Path) -> None:
    with mounted("tmpfs", tmp_path / "disk", "size=4m") as disk, Rig(disk / "nvme") as rig:
        rig.stored(tier := rig.open(), A)
        tier.close()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(ConfigError, match=r"path: .*Read-only file system"):
            rig.open()
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        tier = rig.open()
        assert rig.loaded(tier, A) == A
        tier.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_directory_that_we_may_not_use_is_refused(rig: Rig, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    code = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path\n"
        "from tests.tiers.nvme.tier_helpers import Rig\n"
        "os.setuid(65534)\n"
        f"Rig(Path({str(rig.path)!r})).open()"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "ConfigError: path: " in other.stderr
    assert "Permission denied" in other.stderr


def test_a_file_that_cannot_be_opened_is_an_error_of_ours_and_leaves_nothing_open(
    rig: Rig, tier: NvmeTier, tmp_path: Path
) -> None:
    tier.close()
    file = segment(rig, 1)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TierCacheError):
        rig.open()
    file.unlink()
    assert published(rig.open()) == [*STORED[:8], *STORED[16:]]


def test_without_direct_io_there_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_buffered", set())
    with mounted("ramfs", tmp_path / "ram") as disk, Rig(disk / "nvme") as rig:
        rig.stored(tier := rig.open(), [*STORED, *A])
        rig.stored(tier, keys(range(4), 1), at_once=2)
        assert rig.loaded(tier, STORED) == STORED
        tier.close()
        tier = rig.open()
        assert rig.loaded(tier, STORED) == STORED
        tier.close()
    assert sum("no direct I/O" in record.message for record in caplog.records) == 1
