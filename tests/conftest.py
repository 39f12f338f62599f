# SPDX-License-Identifier: Apache-2.0
"""What every test gets: vLLM's environment, no deadlines, and a check that nothing leaks.

Leaks are looked for after each test: file descriptors, threads, files in /dev/shm. The
end-to-end tests are exempt from the first two, as an engine keeps both for the life of the
process and is shared by the tests of a file; their /dev/shm is checked once, at the end.
"""

import gc
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from lab import environment

environment.apply()

E2E = Path(__file__).parent / "e2e"
E2E_TIMEOUT_S = 600
SHARED_MEMORY = Path("/dev/shm")
#: A thread that was told to stop gets this long.
JOIN_S = 5.0

# Deadlines measure the machine. In CI a failure must come back when it is looked for.
settings.register_profile("tiercache", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("tiercache"), derandomize=True)
settings.load_profile("ci" if "CI" in os.environ else "tiercache")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(E2E):
            item.add_marker(pytest.mark.e2e)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(E2E_TIMEOUT_S))


@pytest.fixture(autouse=True)
def _nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("e2e"):
        yield
        return
    descriptors, threads, shared = _descriptors(), set(threading.enumerate()), _shared_files()
    yield
    _check_threads(threads)
    _check_descriptors(descriptors)
    _check_shared_files(shared)


@pytest.fixture(autouse=True)
def _logger_stays_as_it_was() -> Iterator[None]:
    """A connector sends our log where vLLM's goes, out of the reach of the next test's caplog."""
    logger = logging.getLogger("tiercache")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture(autouse=True, scope="session")
def _segments_stay_out_of_the_way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers that tests start write their segments here, and leave them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIERCACHE_DIR", str(tmp_path_factory.mktemp("segments")))
        patch.delenv("TIERCACHE_POOL", raising=False)
        patch.delenv("TIERCACHE_STATS", raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_shared_file_outlives_the_tests() -> Iterator[None]:
    before = _shared_files()
    yield
    _check_shared_files(before)


def _check_threads(before: set[threading.Thread]) -> None:
    started = set(threading.enumerate()) - before
    for thread in started:
        thread.join(JOIN_S)
    if alive := [thread.name for thread in started if thread.is_alive()]:
        pytest.fail(f"threads left running: {', '.join(alive)}")


def _check_descriptors(before: set[tuple[int, str]]) -> None:
    if _descriptors() <= before:
        return
    gc.collect()  # what only a cycle keeps open was not leaked by the test
    if opened := sorted(_descriptors() - before):
        pytest.fail(f"file descriptors left open: {opened}")


def _descriptors() -> set[tuple[int, str]]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            found.add((int(descriptor.name), str(descriptor.readlink())))
    return found


def _check_shared_files(before: dict[Path, int]) -> None:
    if not _shared_files().keys() - before.keys():
        return
    gc.collect()
    after, foreign = _shared_files(), _mapped_by_others()
    if left := sorted(p for p, inode in after.items() if p not in before and inode not in foreign):
        pytest.fail(f"files left in {SHARED_MEMORY}: {', '.join(map(str, left))}")


def _shared_files() -> dict[Path, int]:
    """Every file in shared memory and its inode."""
    found = {}
    for path in SHARED_MEMORY.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                found[path] = path.stat().st_ino
    return found


def _mapped_by_others() -> set[int]:
    """Inodes that another process has mapped: somebody else runs a server on this machine.

    By inode, because a semaphore is mapped before it gets its name.
    """
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        if maps.parent.name == str(os.getpid()):
            continue
        with suppress(OSError):  # gone, or another user's
            for line in maps.read_text().splitlines():
                if str(SHARED_MEMORY) in line:
                    mapped.add(int(line.split()[4]))
    return mapped
