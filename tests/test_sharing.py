# SPDX-License-Identifier: Apache-2.0
"""Arenas reached from their own and from other processes: bytes, tickets, views, pages."""

import ctypes
import errno
import fcntl
import gc
import mmap
import os
import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sharing_helpers import ARENA, MIB, SHAPES, Process, mapped, owner, visitor
from tiercache import sharing
from tiercache.arena import HostArena
from tiercache.errors import UnsupportedError
from tiercache.hostmem import available_bytes, huge_page_bytes, reserved_bytes
from tiercache.sharing import (
    ALIGNMENT,
    Attached,
    Memfd,
    Memory,
    Region,
    attach,
    published,
    unique_name,
)


@pytest.fixture
def arena() -> Iterator[HostArena]:
    with HostArena(SHAPES, shared=True) as made:
        yield made


# --- bytes


def test_bytes_written_on_one_side_are_seen_on_the_other(arena: HostArena) -> None:
    arena.region(0)[2, 5] = 42
    arena.region(7)[4, 4095] = 7
    with visitor(arena.ticket()) as process:
        assert process.ask(f"attached.region(0)[2 * {MIB} + 5]") == 42
        assert process.ask("attached.region(7)[-1]") == 7
        assert process.ask("attached.region(7).__setitem__(slice(0, 3), b'abc')") is None
        assert arena.region(7)[0, :3].tolist() == [*b"abc"]
        assert process.ask("attached.close()") is None
        assert process.end() == 0
    assert arena.region(7)[0, :3].tolist() == [*b"abc"]


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_the_own_process_sees_the_very_arena(shared: bool) -> None:
    with HostArena(SHAPES, shared=shared) as arena, attach(arena.ticket()) as attached:
        attached.region(7)[4096] = 5
        assert arena.region(7)[1, 0] == 5
        assert mapped("/memfd:" + arena.ticket().name) == int(shared)


def test_views_are_flat_writable_bytes(arena: HostArena) -> None:
    with attach(arena.ticket()) as attached:
        assert attached.regions == {0: Region(0, 3, MIB), 7: Region(2 * ALIGNMENT, 5, 4096)}
        for group_id, (slots, slot_bytes) in SHAPES.items():
            view = attached.region(group_id)
            assert (view.format, view.ndim, view.nbytes) == ("B", 1, slots * slot_bytes)
            assert (view.readonly, view.c_contiguous) == (False, True)
        with pytest.raises(KeyError):
            attached.region(1)


def test_attached_memory_is_read_into_from_files(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 4096 + b"y" * 4096)
    with owner() as (process, ticket), attach(ticket) as attached:
        view = attached.region(7)
        descriptor = os.open(tmp_path / "data", os.O_RDONLY)
        assert os.preadv(descriptor, [view[4096:8192], view[:4096]], 0) == 8192
        os.close(descriptor)
        assert process.ask("bytes([slots[7][0], slots[7][4096]])") == b"yx"


def test_a_real_arena_in_another_process() -> None:
    process = Process(ARENA, repr((SHAPES,)))
    try:
        process.ask("arena.region(0)[2].fill_(6) is None")
        encoded = process.ask("__import__('pickle').dumps(arena.ticket())")
        with attach(pickle.loads(encoded)) as attached:
            assert bytes(attached.region(0)[2 * MIB :]) == b"\6" * MIB
            attached.region(7)[5] = 9
            assert process.ask("arena.region(7)[0, 5].item()") == 9
            process.ask("arena.close()")
            assert attached.region(7)[5] == 9
        assert process.end() == 0
    finally:
        process.kill()


def test_many_processes_attach_to_one_arena(arena: HostArena) -> None:
    with visitor(arena.ticket()) as one, visitor(arena.ticket()) as two:
        one.ask("attached.region(0).__setitem__(0, 99)")
        assert two.ask("attached.region(0)[0]") == 99


# --- the ticket


def test_a_ticket_is_small_and_survives_pickling(arena: HostArena) -> None:
    ticket = arena.ticket()
    assert pickle.loads(pickle.dumps(ticket)) == ticket
    assert len(pickle.dumps(ticket)) < 500
    assert ticket.pid == os.getpid()
    assert ticket.nbytes == arena.nbytes
    with HostArena(SHAPES) as private:
        assert private.ticket().descriptor is None
        assert private.ticket().name != ticket.name


def test_the_start_time_is_found_after_any_process_name(tmp_path: Path) -> None:
    sleep = tmp_path / "a) b (1 2"
    sleep.symlink_to("/bin/sleep")
    with subprocess.Popen([sleep, "60"]) as process:
        assert sharing._start_time(process.pid) >= sharing._start_time(os.getpid())
        process.kill()


# --- letting go


def test_close_unmaps_and_may_be_repeated() -> None:
    with owner() as (_, ticket):
        attached = attach(ticket)
        view = attached.region(0)
        attached.close()
        attached.close()
        assert mapped(ticket.name) == 0
        with pytest.raises(ValueError, match="released"):
            view[0]
        with pytest.raises(KeyError):
            attached.region(0)


def test_slices_and_exports_stay_valid_after_close() -> None:
    with owner() as (process, ticket):
        process.ask("fill(0, 3)")
        attached = attach(ticket)
        piece = attached.region(0)[10:20]
        export = memoryview(attached.region(7)).cast("I")
        attached.close()
        assert bytes(piece) == b"\3" * 10
        export[0] = 0
        piece.release()
        assert mapped(ticket.name) == 1
        del export
        assert mapped(ticket.name) == 0


def test_a_view_in_use_by_a_call_is_left_to_it() -> None:
    """As of a read in another thread, which holds the buffer of the very view."""
    with owner() as (_, ticket):
        attached = attach(ticket)
        view = attached.region(0)
        holder = pickle.PickleBuffer(view)
        attached.close()
        assert view[0] == 0
        holder.release()
        del view
        gc.collect()
        assert mapped(ticket.name) == 0


@pytest.mark.parametrize("first", ["attached", "view"])
def test_without_close_it_goes_with_the_last_view(first: str) -> None:
    with owner() as (_, ticket):
        held: dict[str, object] = {"attached": attach(ticket)}
        assert isinstance(held["attached"], Attached)
        held["view"] = held["attached"].region(0)
        del held[first]
        gc.collect()
        assert mapped(ticket.name) == 1
        held.clear()
        gc.collect()
        assert mapped(ticket.name) == 0


def test_the_own_arena_may_be_closed_first(caplog: pytest.LogCaptureFixture) -> None:
    arena = HostArena(SHAPES, shared=True)
    attached = attach(arena.ticket())
    arena.close()
    assert "stay mapped" not in caplog.text
    attached.region(0)[0] = 1
    attached.close()
    assert mapped(arena.ticket().name) == 0


def test_closing_an_attached_side_leaves_the_own_arena_alone(arena: HostArena) -> None:
    attach(arena.ticket()).close()
    arena.region(0).fill_(1)


# --- pages


def test_pages_are_what_the_kernel_says() -> None:
    with HostArena({0: (8, MIB)}, shared=True) as arena:
        address = arena.region(0).data_ptr()
        huge = huge_page_bytes(address, address + 8 * MIB)
        assert arena.pages == {0: "4K", 8 * MIB: "2M"}.get(huge or 0, arena.pages)


def test_the_attached_side_maps_everything_in_the_pages_that_it_has() -> None:
    with owner() as (process, ticket):
        before = resident_bytes()
        with attach(ticket) as attached:
            assert resident_bytes() - before >= ticket.nbytes - MIB
            address = ctypes.addressof(ctypes.c_char.from_buffer(attached.region(0)))
            assert address % ALIGNMENT == 0
            end = "memory.address + memory.nbytes"
            process.ask("exec('from tiercache.hostmem import huge_page_bytes', globals())")
            theirs = process.ask(f"huge_page_bytes(memory.address, {end})")
            assert huge_page_bytes(address, address + ticket.nbytes) == theirs


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_without_huge_pages_it_is_4_kib() -> None:
    disable = "import ctypes\nctypes.CDLL(None).prctl(41, 1, 0, 0, 0)\n"  # PR_SET_THP_DISABLE
    process = Process(disable + ARENA, repr(({0: (8, MIB)},)))
    try:
        assert process.ask("arena.pages, arena.backing") == ("4K", "shared")
    finally:
        process.kill()


class Reluctant(mmap.mmap):
    """A mapping whose kernel answers MADV_COLLAPSE as the test says, and counts the calls."""

    answers: Iterator[int] = iter(())
    calls = 0

    def madvise(self, option: int, *where: int) -> None:
        if option == sharing.MADV_COLLAPSE:
            type(self).calls += 1
            number = next(self.answers)
            raise OSError(number, os.strerror(number))
        super().madvise(option, *where)


@pytest.mark.parametrize(
    ("answer", "calls"), [(errno.EINVAL, 1), (errno.ENOMEM, 4), (errno.EAGAIN, 4)]
)
def test_a_kernel_that_does_not_collapse(
    answer: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmap, "mmap", Reluctant)
    monkeypatch.setattr(Reluctant, "answers", iter([answer] * 4))
    monkeypatch.setattr(Reluctant, "calls", 0)
    monkeypatch.setattr(sharing, "COLLAPSE_STEP", 2 * MIB)
    with HostArena({0: (8, MIB)}, shared=True) as arena:
        assert Reluctant.calls == calls
        assert not arena.region(0).any()


def test_collapsing_keeps_what_is_there() -> None:
    name = unique_name()
    memfd = Memfd(name, 4 * MIB)
    memory = Memory(4 * MIB, memfd.descriptor)
    view = memory.view(0, 4 * MIB)
    view[:] = bytes(range(256)) * (4 * MIB // 256)
    memory.collapse()
    assert view == bytes(range(256)) * (4 * MIB // 256)
    view.release()
    assert memory.close()
    memfd.close()


# --- tools of the above


def test_memory_without_a_descriptor_is_published_all_the_same() -> None:
    memory = Memory(ALIGNMENT)
    with published(unique_name(), memory, None, {0: Region(0, 1, 4096)}) as ticket:
        assert attach(ticket).region(0).nbytes == 4096
    with pytest.raises(UnsupportedError, match="is closed"):
        attach(ticket)
    assert memory.close()


def test_an_old_kernel_knows_no_executable_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_MFD_NOEXEC_SEAL", 1 << 30)
    memfd = Memfd(unique_name(), ALIGNMENT)
    assert fcntl.fcntl(memfd.descriptor, fcntl.F_GET_SEALS) == (
        fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    )
    assert fcntl.fcntl(memfd.descriptor, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
    memfd.close()


def test_pages_that_are_not_reserved_are_an_error() -> None:
    with pytest.raises(OSError, match=r"No space left|Cannot allocate"):
        Memfd(unique_name(), reserved_bytes() + (1 << 40), reserved=True)


def test_reserved_pages_of_a_machine(tmp_path: Path) -> None:
    assert reserved_bytes(tmp_path) == 0
    pool = tmp_path / "sys/kernel/mm/hugepages/hugepages-2048kB"
    pool.mkdir(parents=True)
    (pool / "free_hugepages").write_text("7\n")
    (pool / "resv_hugepages").write_text("3\n")
    assert reserved_bytes(tmp_path) == 8 * MIB
    assert available_bytes() > 0


@pytest.mark.parametrize("field", ["ShmemPmdMapped", "Shared_Hugetlb", "Private_Hugetlb"])
def test_huge_pages_of_shared_memory(tmp_path: Path, field: str) -> None:
    smaps = tmp_path / "smaps"
    smaps.write_text(f"1000-401000 rw-s 0 0:1 5 /memfd:x\nAnonHugePages: 0 kB\n{field}: 2048 kB\n")
    assert huge_page_bytes(0x1000, 0x401000, smaps) == 2 * MIB
