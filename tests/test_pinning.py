# SPDX-License-Identifier: Apache-2.0
"""Registration with a faked CUDA runtime: pieces, rollback and the lock between processes."""

import fcntl
import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tiercache import pinning
from tiercache.errors import TierCacheError
from tiercache.pinning import Span, registered

PAGE = 4096


class FakeRuntime:
    """Remembers what is registered; fails at one address; looks at the lock while it works."""

    def __init__(self, lock: Path) -> None:
        self.lock = lock
        self.live: dict[int, int] = {}
        self.failing = -1
        self.lock_was_held: list[bool] = []

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802
        self.lock_was_held.append(is_locked(self.lock))
        if address == self.failing:
            return 2
        self.live[address] = nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        return 0 if self.live.pop(address, None) else 1


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock: flock excludes every other open of the file."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = FakeRuntime(tmp_path / "lock")
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    return fake


def test_registered_while_open_and_locked_only_meanwhile(runtime: FakeRuntime) -> None:
    spans = [Span(0, 1 << 21, 8 * PAGE, PAGE), Span(3, 1 << 22, 5 * PAGE, PAGE)]
    with registered(spans, runtime.lock):
        assert runtime.live == {1 << 21: 8 * PAGE, 1 << 22: 5 * PAGE}
        assert not is_locked(runtime.lock)
    assert runtime.lock_was_held == [True, True]
    assert not runtime.live


def test_failure_names_group_size_and_code_and_undoes_the_rest(runtime: FakeRuntime) -> None:
    runtime.failing = 1 << 22
    spans = [Span(0, 1 << 21, 8 * PAGE, PAGE), Span(3, 1 << 22, 5 * PAGE, PAGE)]
    with (
        pytest.raises(TierCacheError, match=r"group 3: .* 20480 bytes .* code 2"),
        registered(spans, runtime.lock),
    ):
        pytest.fail("must not be entered")
    assert not runtime.live
    assert not is_locked(runtime.lock)


@pytest.mark.parametrize("unit", [3 * PAGE, PAGE + 512])
def test_pieces_are_limited_page_aligned_and_never_split_a_unit(
    runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch, unit: int
) -> None:
    monkeypatch.setattr(pinning, "MAX_PIECE_BYTES", 100 * PAGE)
    nbytes = 1000 * unit
    with registered([Span(0, 1 << 21, nbytes, unit)], runtime.lock):
        pieces = sorted(runtime.live.items())
    assert len(pieces) > 1
    assert sum(size for _, size in pieces) == nbytes
    for (address, size), (following, _) in pairwise(pieces):
        assert address + size == following
        assert following % PAGE == 0
        assert (following - (1 << 21)) % unit == 0
        assert size <= 100 * PAGE


def test_a_unit_above_the_limit_is_registered_whole(
    runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinning, "MAX_PIECE_BYTES", PAGE)
    with registered([Span(0, 1 << 21, 8 * PAGE, 4 * PAGE)], runtime.lock):
        assert sorted(runtime.live.values()) == [4 * PAGE, 4 * PAGE]


def test_without_cuda_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch.cuda, "cudart", absent)
    with (
        pytest.raises(TierCacheError, match=r"with CUDA: Torch not compiled"),
        registered([], tmp_path / "lock"),
    ):
        pytest.fail("must not be entered")


def test_an_error_inside_the_context_passes_through_and_unregisters(runtime: FakeRuntime) -> None:
    with pytest.raises(RuntimeError, match=r"^mine$"), registered([], runtime.lock):
        raise RuntimeError("mine")


def test_a_lock_of_another_user_is_refused(
    runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who made the file could hold its lock for ever; it lies where everybody may write."""
    runtime.lock.touch()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with (
        pytest.raises(TierCacheError, match=r"belongs to user \d+.*lock"),
        registered([Span(0, PAGE, PAGE, PAGE)], runtime.lock),
    ):
        pass
    assert runtime.lock_was_held == []


def test_the_default_lock_belongs_to_the_user() -> None:
    assert str(os.getuid()) in pinning.default_lock().name
