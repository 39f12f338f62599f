# SPDX-License-Identifier: Apache-2.0
"""End-to-end tests: a real vLLM in this process, shared by the tests of a file.

A file defines the fixture ``engine`` and runs in a process of its own. With ``sound``, every test
ends with a look at the books and at the bytes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.engine import Engine
from lab.witness import Witness

HERE = Path(__file__).parent
SHARED_MEMORY = Path("/dev/shm")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """vLLM and what it brings along warn when imported and now and then later."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("default"))


@contextmanager
def removing(is_theirs: Callable[[str], bool]) -> Iterator[None]:
    """At the end, unlink new files in shared memory whose names are not ours but ``is_theirs``."""
    before = set(SHARED_MEMORY.iterdir())
    yield
    for file in set(SHARED_MEMORY.iterdir()) - before:
        if is_theirs(file.name):
            file.unlink()


@pytest.fixture(scope="module")
def witness(engine: Engine) -> Witness:
    return Witness(engine)


@pytest.fixture
def sound(engine: Engine, witness: Witness) -> Iterator[None]:
    """Afterwards: the manager is well, nothing is in flight, all invariants and bytes hold."""
    yield
    engine.rest()
    manager = engine.manager
    assert not manager.sick
    manager.cache.validate()
    counts = manager.cache.counts().values()
    assert sum(group.storing + group.pinned for group in counts) == 0
    assert witness.wrong == []
