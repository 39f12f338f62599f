# SPDX-License-Identifier: Apache-2.0
"""The arena on real memory, small: shapes, refusal, fallbacks and release."""

import errno
import gc
import logging
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tiercache import arena as arena_module
from tiercache import sharing
from tiercache.arena import HostArena, available_bytes
from tiercache.errors import ConfigError, OutOfMemoryError, TierCacheError, UnsupportedError
from tiercache.hostmem import reserved_bytes
from tiercache.pinning import Span
from tiercache.sharing import ALIGNMENT, attach

MIB = 1 << 20
REGIONS = {0: (3, MIB), 7: (5, 4096)}

both = pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])


def mapped_flags(address: int) -> set[str]:
    """The kernel's flags of the mapping around ``address``."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if vma := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(vma[1], 16) <= address < int(vma[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    return set()


def mapped_file(address: int) -> str | None:
    """The file of the mapping around ``address``; empty for anonymous memory, None for none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, _, *path = line.split(maxsplit=5)
        low, high = (int(bound, 16) for bound in span.split("-"))
        if low <= address < high:
            return path[0] if path else ""
    return None


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@both
def test_regions_are_aligned_contiguous_and_apart(shared: bool) -> None:
    with HostArena(REGIONS, shared=shared) as arena:
        assert arena.nbytes == 3 * ALIGNMENT
        for group_id, (slots, slot_bytes) in REGIONS.items():
            region = arena.region(group_id)
            assert (region.dtype, tuple(region.shape)) == (torch.int8, (slots, slot_bytes))
            assert region.is_contiguous()
            assert region.data_ptr() % ALIGNMENT == 0
        arena.region(0).fill_(1)
        arena.region(7).fill_(2)
        assert bool((arena.region(0) == 1).all())


@both
def test_a_region_is_not_a_copy(shared: bool) -> None:
    with HostArena(REGIONS, shared=shared) as arena:
        arena.region(0)[2, 5] = 42
        assert arena.region(0)[2, 5] == 42


def test_unknown_group() -> None:
    with HostArena(REGIONS) as arena, pytest.raises(KeyError):
        arena.region(1)


@pytest.mark.parametrize("shape", [(0, 4096), (4, 0), (-1, 4096)])
def test_an_empty_region_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="group 3"):
        HostArena({0: (1, 1), 3: shape})


@both
def test_too_much_is_refused_with_both_numbers_before_anything_is_mapped(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena_module, "available_bytes", lambda: 10 * MIB)
    monkeypatch.setattr(mmap, "mmap", lambda *_, **__: pytest.fail("mapped memory"))
    with pytest.raises(OutOfMemoryError, match=r"20971520 .* 10485760 ") as refused:
        HostArena({0: (20, MIB)}, shared=shared)
    assert (refused.value.needed, refused.value.available) == (20 * MIB, 10 * MIB)


def test_what_is_available_is_taken_from_the_machine() -> None:
    with pytest.raises(OutOfMemoryError) as refused:
        HostArena({0: (1 << 30, 1 << 30)})
    assert refused.value.needed == 1 << 60
    assert 0 < refused.value.available <= 2 * available_bytes()


class Mapping(mmap.mmap):
    """A mapping whose kernel refuses some advice with an error number."""

    refused: dict[int, int] = {}  # noqa: RUF012

    def madvise(self, option: int, *where: int) -> None:
        if option in self.refused:
            raise OSError(self.refused[option], os.strerror(self.refused[option]))
        super().madvise(option, *where)


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    monkeypatch.setattr(mmap, "mmap", Mapping)
    monkeypatch.setattr(Mapping, "refused", {})
    return Mapping.refused


@pytest.fixture(autouse=True)
def _no_reserved_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not counted where a test looks; one test takes them."""
    monkeypatch.setattr(arena_module, "reserved_bytes", lambda: 0)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@both
def test_a_kernel_without_populate_gets_touched_pages(shared: bool, refuse: dict[int, int]) -> None:
    refuse[sharing.MADV_POPULATE_WRITE] = errno.EINVAL
    before = resident_bytes()
    with HostArena({0: (64, MIB)}, shared=shared) as arena:
        assert resident_bytes() - before > 60 * MIB
        assert not arena.region(0).any()


def test_a_kernel_without_huge_pages(refuse: dict[int, int]) -> None:
    refuse[mmap.MADV_HUGEPAGE] = errno.EINVAL
    with HostArena({0: (16, MIB)}) as arena:
        assert arena.pages in {"4K", "2M"}  # "2M" where huge pages are always on
        assert bool((arena.region(0) == 0).all())


@both
def test_running_out_while_populating_is_the_same_error(
    shared: bool, refuse: dict[int, int]
) -> None:
    refuse[sharing.MADV_POPULATE_WRITE] = errno.ENOMEM
    before = open_descriptors()
    with pytest.raises(OutOfMemoryError):
        HostArena(REGIONS, shared=shared)
    assert open_descriptors() == before


def test_shared_memory_that_is_not_there_would_be_a_bus_error(refuse: dict[int, int]) -> None:
    refuse[sharing.MADV_POPULATE_WRITE] = errno.EFAULT
    with pytest.raises(OutOfMemoryError):
        HostArena(REGIONS, shared=True)


def test_other_errors_are_not_disguised(refuse: dict[int, int]) -> None:
    refuse[sharing.MADV_POPULATE_WRITE] = errno.EFAULT
    with pytest.raises(OSError, match=os.strerror(errno.EFAULT)):
        HostArena(REGIONS)


@both
def test_everything_is_populated_in_steps(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "COLLAPSE_STEP", 4 * MIB)
    monkeypatch.setattr(sharing, "POPULATE_STEP", 4 * MIB)
    before = resident_bytes()
    with HostArena({0: (33, MIB)}, shared=shared):
        assert resident_bytes() - before > 32 * MIB
    assert sharing.POPULATE_STEP % ALIGNMENT == 0


@pytest.mark.parametrize(
    ("huge", "pages"),
    [(None, "unknown"), (0, "4K"), (8 * MIB, "2M"), (6 * MIB, "75.0% 2M, 25.0% 4K")],
)
def test_pages(monkeypatch: pytest.MonkeyPatch, huge: int | None, pages: str) -> None:
    monkeypatch.setattr(arena_module, "huge_page_bytes", lambda *_: huge)
    with HostArena({0: (8, MIB)}) as arena:
        assert arena.pages == pages


def test_one_log_line_says_what_it_got(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tiercache.arena")
    with HostArena({0: (8, MIB)}) as arena:
        assert caplog.messages == [
            f"tiercache arena: {8 * MIB} bytes, pages {arena.pages}, not pinned"
        ]


@pytest.mark.parametrize("reserved", [0, 8 * MIB - 1, 1 << 60])
def test_shared_memory_without_enough_reserved_pages(
    reserved: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Even if the kernel says that there are enough, and has given them away since."""
    monkeypatch.setattr(arena_module, "reserved_bytes", lambda: reserved)
    monkeypatch.setattr(sharing, "_MFD_HUGETLB_2MB", 1 << 30)  # no such flag: refused
    caplog.set_level(logging.INFO, "tiercache.arena")
    with HostArena({0: (8, MIB)}, shared=True) as arena:
        assert arena.backing == "shared"
        assert caplog.messages == [
            f"tiercache arena: {8 * MIB} bytes, pages {arena.pages}, not pinned, shared"
        ]


def test_reserved_pages_are_taken_first_and_need_no_other_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if reserved_bytes() < 8 * MIB:
        pytest.skip("no 2 MiB pages are reserved: vm.nr_hugepages")
    monkeypatch.setattr(arena_module, "reserved_bytes", reserved_bytes)
    monkeypatch.setattr(arena_module, "available_bytes", lambda: 0)
    before = reserved_bytes()
    with HostArena({0: (8, MIB)}, shared=True) as arena:
        assert (arena.pages, arena.backing) == ("2M", "shared, reserved")
        assert reserved_bytes() <= before - 8 * MIB
        assert mapped_flags(arena.region(0).data_ptr()) >= {"ht", "dc", "dd"}
        with pytest.raises(OSError, match=os.strerror(errno.EPERM)):
            os.ftruncate(arena.ticket().descriptor or -1, 0)
    assert reserved_bytes() == before


@both
def test_children_and_core_dumps_leave_it_out(shared: bool) -> None:
    with HostArena({0: (8, MIB)}, shared=shared) as arena:
        assert mapped_flags(arena.region(0).data_ptr()) >= {"dc", "dd"}


@both
def test_close_unmaps_and_may_be_repeated(shared: bool) -> None:
    arena = HostArena({0: (8, MIB)}, shared=shared)
    address = arena.region(0).data_ptr()
    arena.close()
    assert not mapped_flags(address)
    arena.close()
    with pytest.raises(KeyError):
        arena.region(0)


@both
def test_a_view_that_outlives_the_arena_stays_readable(
    shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    arena = HostArena({0: (8, MIB)}, shared=shared)
    row = arena.region(0)[3]
    row.fill_(9)
    address = row.data_ptr()
    arena.close()
    assert "stay mapped" in caplog.text
    assert bool((row == 9).all())
    arena.close()
    del row
    gc.collect()
    assert not mapped_flags(address)


@both
def test_an_arena_that_nobody_closed_goes_with_the_last_reference(shared: bool) -> None:
    before = open_descriptors()
    arena = HostArena({0: (8, MIB)}, shared=shared)
    address = arena.region(0).data_ptr()
    ticket = arena.ticket()
    del arena
    gc.collect()
    assert not mapped_flags(address)
    assert open_descriptors() == before
    with pytest.raises(UnsupportedError, match="closed"):
        attach(ticket)


@both
def test_pinning_registers_every_region_until_close(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    @contextmanager
    def fake(spans: list[Span]) -> Iterator[None]:
        events.extend(f"{span.group_id}: {span.nbytes} by {span.unit}" for span in spans)
        yield
        events.append("unregistered")

    monkeypatch.setattr(arena_module, "registered", fake)
    arena = HostArena(REGIONS, pin=True, shared=shared)
    assert events == [f"0: {3 * MIB} by {MIB}", "7: 20480 by 4096"]
    arena.close()
    assert events[2:] == ["unregistered"]


@both
@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA would pin the memory")
def test_memory_that_cannot_be_pinned_is_an_error_and_is_released(shared: bool) -> None:
    before = resident_bytes()
    with pytest.raises(TierCacheError, match="with CUDA"):
        HostArena({0: (64, MIB)}, pin=True, shared=shared)
    assert resident_bytes() - before < 32 * MIB


def test_the_memory_is_anonymous_and_leaves_no_descriptor() -> None:
    before = open_descriptors()
    with HostArena(REGIONS) as arena:
        assert open_descriptors() == before
        assert mapped_file(arena.region(0).data_ptr()) == ""
        assert arena.backing == "private"
    assert open_descriptors() == before


def test_shared_memory_has_one_descriptor_and_no_file() -> None:
    before = open_descriptors()
    with HostArena(REGIONS, shared=True) as arena:
        ticket = arena.ticket()
        assert len(open_descriptors()) == len(before) + 1
        assert mapped_file(arena.region(0).data_ptr()) == f"/memfd:{ticket.name} (deleted)"
    assert open_descriptors() == before
