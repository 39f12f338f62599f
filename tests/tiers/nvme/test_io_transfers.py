# SPDX-License-Identifier: Apache-2.0
"""Whole reads and writes, on real files: partial results, faults, and whose memory it is."""

import errno
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiers.nvme.io_helpers import Engines, run
from tiercache.tiers.nvme.io import IOV_MAX, flush, read, read_now, write, write_now

PAGE = 4096

Call = Callable[[int, Sequence[memoryview], int], int]


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A file of 8 pages, open for direct I/O."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(8 * PAGE))
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    yield fd
    os.close(fd)


def pages(count: int) -> tuple[mmap.mmap, list[memoryview]]:
    memory = mmap.mmap(-1, count * PAGE)
    view = memoryview(memory)
    return memory, [view[i * PAGE : (i + 1) * PAGE] for i in range(count)]


def content(fd: int) -> bytes:
    return Path(f"/proc/self/fd/{fd}").read_bytes()


def at_most(limit: int, call: Call) -> Call:
    """A system call that transfers ``limit`` bytes at a time: signals and quotas do that."""

    def limited(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        return call(fd, [next(b for b in buffers if b.nbytes).cast("B")[:limit]], offset)

    return limited


def test_what_was_written_is_read(engines: Engines, file: int) -> None:
    engine = engines(2)
    _, source = pages(3)
    _, target = pages(3)
    for number, page in enumerate(source):
        page[:] = bytes([number + 1]) * PAGE

    async def job() -> None:
        await write(file, 4 * PAGE, source)
        await flush(file)
        await read(file, 4 * PAGE, target[::-1])

    run(engine, job)
    assert [page[0] for page in target] == [3, 2, 1]
    assert content(file)[4 * PAGE : 7 * PAGE] == b"".join(source)


def test_the_callers_memory_goes_to_the_kernel(
    engines: Engines, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def preadv(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        seen.extend(buffer.obj for buffer in buffers)
        return sum(buffer.nbytes for buffer in buffers)

    monkeypatch.setattr(os, "preadv", preadv)
    memory, buffers = pages(2)
    run(engines(1), lambda: read(file, 0, buffers))
    assert seen == [memory, memory]


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 50))
def test_partial_transfers_go_on_where_they_stopped(sizes: list[int], limit: int) -> None:
    data = bytes(range(256)) * 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "preadv", at_most(limit, os.preadv))
        patch.setattr(os, "pwritev", at_most(limit, os.pwritev))
        fd = os.memfd_create("test")
        try:
            write_now(fd, 3, [memoryview(data)])
            buffers = [memoryview(bytearray(size)) for size in sizes]
            read_now(fd, 3, buffers)
        finally:
            os.close(fd)
    assert b"".join(buffers) == data[: sum(sizes)]


def test_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    count = 2 * IOV_MAX + 7
    data = os.urandom(count * 4)
    with (tmp_path / "file").open("w+b") as file:
        write_now(file.fileno(), 0, [memoryview(data)[i : i + 4] for i in range(0, len(data), 4)])
        buffers = [memoryview(bytearray(4)) for _ in range(count)]
        read_now(file.fileno(), 0, buffers)
    assert b"".join(buffers) == data


def test_buffers_of_any_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "preadv", at_most(5, os.preadv))
    target = memoryview(bytearray(24)).cast("b", (4, 6))
    path = tmp_path / "file"
    path.write_bytes(bytes(range(24)))
    with path.open("rb") as file:
        read_now(file.fileno(), 0, [target])
    assert target.tobytes() == bytes(range(24))


def test_a_file_that_ends_too_early_is_an_error(engines: Engines, file: int) -> None:
    _, buffers = pages(3)
    with pytest.raises(OSError, match=f"short read: {PAGE} bytes missing at {8 * PAGE}") as info:
        run(engines(1), lambda: read(file, 6 * PAGE, buffers))
    assert info.value.errno == errno.EIO


def test_a_file_cut_within_a_page_is_an_error_in_direct_io(file: int) -> None:
    os.ftruncate(file, 7 * PAGE + 100)
    _, buffers = pages(2)
    with pytest.raises(OSError, match="short read"):
        read_now(file, 6 * PAGE, buffers)


def test_a_write_that_makes_no_progress_is_an_error(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(OSError, match="short write"):
        write_now(file, 0, pages(1)[1])


def test_unaligned_memory_is_refused_by_the_kernel_not_copied(file: int) -> None:
    view = memoryview(pages(2)[0])
    with pytest.raises(OSError, match="Invalid argument"):
        read_now(file, 0, [view[1 : PAGE + 1]])


def test_nothing_to_transfer(file: int) -> None:
    read_now(file, 0, [])
    write_now(file, 0, [memoryview(b"")])


def test_an_injected_fault_fails_its_job_only(
    engines: Engines, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines(2)
    _, buffers = pages(1)

    def broken_at_page_1(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if offset == PAGE:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(fd, buffers, offset)

    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", broken_at_page_1)
    with pytest.raises(OSError, match="Input/output error"):
        run(engine, lambda: read(file, PAGE, buffers))
    run(engine, lambda: read(file, 2 * PAGE, buffers))
    assert bytes(buffers[0]) == content(file)[2 * PAGE : 3 * PAGE]


@pytest.mark.parametrize("fails", [False, True])
def test_memory_is_let_go_when_a_job_is_done(engines: Engines, file: int, fails: bool) -> None:
    engine = engines(2)
    errors = []
    memory = mmap.mmap(-1, 4 * PAGE)

    async def job(buffer: memoryview) -> None:
        try:
            await read(file, 7 * PAGE if fails else 0, [buffer])
        except OSError as error:
            errors.append(str(error))

    run(engine, partial(job, memoryview(memory)))
    assert len(errors) == fails
    # Without a garbage collection, and though the worker waits for its next call. It lets go a
    # moment after the job is done.
    while not memory.closed:
        with suppress(BufferError):
            memory.close()
