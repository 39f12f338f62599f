# SPDX-License-Identifier: Apache-2.0
"""Servers with a Mooncake tier, closed after the test."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.mooncake_helpers import Server, until

Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Makes servers: takes what `Server` takes."""
    made: list[Server] = []

    def make(*arguments: Any, **more: Any) -> Server:
        made.append(Server(*arguments, **more))
        return made[-1]

    yield make
    for server in made:
        until(partial(_asks_nothing, server))  # else it would be left open
        server.tier.close()


def _asks_nothing(server: Server) -> bool:
    return not server.tier._questions.pending
