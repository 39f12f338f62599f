# SPDX-License-Identifier: Apache-2.0
"""Attaching to an arena that is gone, or was never good; kills, forks, seals, limits."""

import os
import pickle
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sharing_helpers import (
    ANSWER,
    MIB,
    SHAPES,
    Process,
    holders,
    owner,
    visitor,
)
from tiercache import sharing
from tiercache.arena import HostArena
from tiercache.errors import UnsupportedError
from tiercache.sharing import ALIGNMENT, ArenaTicket, attach


@pytest.fixture
def arena() -> Iterator[HostArena]:
    with HostArena(SHAPES, shared=True) as made:
        yield made


# --- refusals


def refused(ticket: ArenaTicket, because: str) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(UnsupportedError, match=because) as error:
        attach(ticket)
    assert ticket.name in str(error.value)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_private_memory_of_another_process() -> None:
    with owner(shared=False) as (_, ticket):
        refused(ticket, "private to that process")


def test_a_process_that_has_ended() -> None:
    with owner() as (process, ticket):
        process.kill()
        refused(ticket, "no such process")


def test_a_process_that_has_ended_and_is_not_yet_waited_for() -> None:
    with owner() as (process, ticket):
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        refused(ticket, "cannot attach")


def test_a_process_id_that_was_used_again(arena: HostArena) -> None:
    with owner() as (_, ticket):
        refused(replace(ticket, started=ticket.started + 1), "another one has its id")
    ticket = arena.ticket()
    refused(replace(ticket, started=ticket.started - 1), "another one has its id")


def test_a_process_id_that_is_used_again_while_it_attaches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with owner() as (_, ticket):
        times = iter([ticket.started, ticket.started + 1])
        monkeypatch.setattr(sharing, "_start_time", lambda _: next(times))
        refused(ticket, "another one has its id")


def test_a_wrong_size() -> None:
    with owner() as (_, ticket):
        refused(replace(ticket, nbytes=ticket.nbytes + ALIGNMENT), "8388608 are expected")
        refused(replace(ticket, nbytes=ALIGNMENT), "do not fit into")


def test_a_closed_arena(arena: HostArena) -> None:
    with owner() as (process, ticket):
        process.ask("release.close()")
        refused(ticket, "is closed")
    arena.close()
    refused(arena.ticket(), "is closed")


def test_a_descriptor_that_is_something_else() -> None:
    with owner() as (_, ticket):
        for descriptor in (0, 1, 999):
            refused(replace(ticket, descriptor=descriptor), "something else")
        refused(replace(ticket, name=ticket.name + "0"), "something else")


def test_memory_of_others_under_a_ticket() -> None:
    """A process that forges tickets still has to have a memfd that says it is an arena's."""
    code = "import os; x = os.memfd_create('other'); os.ftruncate(x, 6 << 20)"
    with owner() as (process, ticket):
        process.ask(f"exec({code!r}, globals())")
        forged = replace(ticket, descriptor=process.ask("x"), name="other")
        refused(forged, "something else")


def test_memory_that_could_shrink() -> None:
    code = "x = os.memfd_create('tiercache-arena-0'); os.ftruncate(x, 6 << 20)"
    with owner() as (process, ticket):
        process.ask(f"exec({code!r}, globals())")
        forged = replace(ticket, descriptor=process.ask("x"), name="tiercache-arena-0")
        refused(forged, "not sealed")


STRANGER = (
    """
import os, pickle, sys
from tiercache.sharing import attach

try:
    os.setgid(65534)
    os.setuid(65534)
    print("changed", flush=True)
except PermissionError:
    print("not permitted", flush=True)

def reason():
    try:
        attach(pickle.loads(bytes.fromhex(sys.argv[1])))
    except Exception as error:
        return type(error).__name__, str(error)
"""
    + ANSWER
)


def test_another_users_process() -> None:
    with owner() as (_, ticket):
        process = Process(STRANGER, pickle.dumps(ticket).hex())
        try:
            if process.greeting != "changed":
                pytest.skip("no permission to become another user")
            kind, text = process.ask("reason()")
        finally:
            process.kill()
    assert kind == "UnsupportedError"
    assert text.endswith("it cannot be opened: Permission denied")


# --- sealed, and gone with its processes


def test_nobody_can_resize_it(arena: HostArena) -> None:
    descriptor = arena.ticket().descriptor
    assert descriptor is not None
    for nbytes in (0, arena.nbytes - ALIGNMENT, arena.nbytes + ALIGNMENT):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, nbytes)
    with owner() as (_, ticket):
        path = f"/proc/{ticket.pid}/fd/{ticket.descriptor}"
        with pytest.raises(PermissionError):
            os.truncate(path, 0)


def test_the_attached_side_outlives_a_killed_owner() -> None:
    with owner() as (process, ticket):
        process.ask("fill(0, 3)")
        with attach(ticket) as attached:
            process.kill()
            assert holders(ticket.name) == {f"{os.getpid()} maps it"}
            assert bytes(attached.region(0)) == b"\3" * (3 * MIB)
            attached.region(7)[0] = 1
    assert holders(ticket.name) == set()


def test_nothing_is_left_of_killed_processes() -> None:
    before = set(Path("/dev/shm").rglob("*"))
    with owner() as (one, ticket), visitor(ticket) as two:
        assert len(holders(ticket.name)) == 3  # the owner has it open, too
        one.kill()
        two.kill()
        assert holders(ticket.name) == set()
    assert set(Path("/dev/shm").rglob("*")) <= before


def test_processes_end_cleanly_with_everything_open() -> None:
    with owner() as (process, ticket), visitor(ticket) as other:
        other.ask("globals().__setitem__('slice', attached.region(0)[5:])")
        assert other.end() == 0
        assert process.end() == 0


FORK = """
def fork():
    inherited, alive = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        name = ticket.name
        links = [os.readlink(f"/proc/self/fd/{x}") for x in os.listdir("/proc/self/fd")
                 if os.path.lexists(f"/proc/self/fd/{x}")]
        maps = open("/proc/self/maps").read()
        os.write(inherited[1], b"%d" % (sum(name in x for x in [*links, maps])))
        os.close(alive[1])
        os.read(alive[0], 1)  # until the parent is gone
        os._exit(0)
    return child, int(os.read(inherited[0], 9))
"""


def test_forked_children_inherit_neither_mapping_nor_descriptor() -> None:
    with owner() as (process, ticket):
        process.ask(f"exec({FORK!r}, globals())")
        child, inherited = process.ask("fork()")
        assert inherited == 0
        assert Path(f"/proc/{child}").exists()
        assert len(holders(ticket.name)) == 2
        with attach(ticket) as attached:  # the parent still has its descriptor
            assert len(attached.region(0)) == 3 * MIB
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert holders(ticket.name) == set()


def test_attached_memory_is_left_out_of_children_and_core_dumps() -> None:
    with owner() as (_, ticket), attach(ticket):
        smaps = Path("/proc/self/smaps").read_text()
        _, _, own = smaps.partition(f"/memfd:{ticket.name}")
        flags = own.partition("VmFlags:")[2].partition("\n")[0].split()
        assert {"sh", "dc", "dd"} <= set(flags)


# --- limits

ACCOUNTING = """
import sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text("0")
from tiercache import arena as arena_module
from tiercache.arena import HostArena
from tiercache.errors import OutOfMemoryError
from tiercache.hostmem import available_bytes

arena_module.reserved_bytes = lambda: 0
print("started", flush=True)
for line in sys.stdin:
    try:
        print(repr(eval(line)), flush=True)
    except OutOfMemoryError as error:
        print(repr(str(error)), flush=True)
"""


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group with 512 MiB, below the one that we are in."""
    version = next((g for g in own_groups() if g.exists()), None)
    if version is None:
        pytest.skip("no memory control group is mounted")
    group = version / f"tiercache-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    try:
        limit = next((group / f for f in LIMITS if (group / f).exists()), None)
        if limit is None:
            pytest.skip("the memory controller is not delegated to us")
        limit.write_text(str(512 * MIB))
        yield group
    finally:
        group.rmdir()


LIMITS = ("memory.max", "memory.limit_in_bytes")


def own_groups() -> Iterator[Path]:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield Path("/sys/fs/cgroup") / path.lstrip("/")
        elif "memory" in controllers.split(","):
            yield Path("/sys/fs/cgroup/memory") / path.lstrip("/")


def test_shared_memory_counts_where_memory_is_limited(memory_group: Path) -> None:
    process = Process(ACCOUNTING, str(memory_group))
    try:
        before = process.ask("available_bytes()")
        assert before <= 512 * MIB
        process.ask("globals().update(arena=HostArena({0: (128, 1 << 20)}, shared=True))")
        after = process.ask("available_bytes()")
        assert abs(before - after - 128 * MIB) < 16 * MIB
        refusal = process.ask("HostArena({0: (480, 1 << 20)}, shared=True)")
        assert "the arena needs 503316480 bytes" in refusal
        process.ask("arena.close()")
        assert process.ask("available_bytes()") > before - 16 * MIB
    finally:
        process.kill()
