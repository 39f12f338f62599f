# SPDX-License-Identifier: Apache-2.0
"""A server is killed; the next one finds on the disk what it had."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import transfers
from lab.conversation import random_tokens
from lab.recipes import QWEN3_NEXT
from lab.server import Server, said, server
from tests.e2e.conftest import SHARED_MEMORY, removing

PROMPT = random_tokens(1_500, "restart")
BOUNDARY = 1_472
WRITTEN_S = 30


@pytest.fixture(autouse=True)
def _without_the_files_of_killed_pythons() -> Iterator[None]:
    """Semaphores and shared memory of the standard library, which vLLM's processes talk through."""
    with removing(lambda name: name.startswith(("sem.mp-", "psm_"))):
        yield


@pytest.mark.timeout(400)  # two servers start, each in up to a minute
def test_a_killed_server_loses_nothing_that_was_written(tmp_path: Path) -> None:
    transfer = transfers.with_disk("16MiB", tmp_path / "nvme")
    before = set(SHARED_MEMORY.rglob("tiercache*"))
    with server(QWEN3_NEXT, transfer, tmp_path / "first.log") as running:
        cold = running.complete(PROMPT)
        wait_until_written(running)
        os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()
    assert set(SHARED_MEMORY.rglob("tiercache*")) <= before
    with server(QWEN3_NEXT, transfer, tmp_path / "second.log") as running:
        restored = running.complete(PROMPT)
        assert running.stop() == 0
    assert restored["usage"]["prompt_tokens_details"]["cached_tokens"] == BOUNDARY
    assert said(restored).agrees(said(cold))
    assert re.search(r"[1-9]\d* blocks found", (tmp_path / "second.log").read_text())


def wait_until_written(running: Server) -> None:
    """Until nothing is on its way to the disk any more, the state of the prompt included."""
    deadline = time.monotonic() + WRITTEN_S
    while time.monotonic() < deadline:
        running.complete(random_tokens(8, "settle"), max_tokens=2)
        entries = gauge(running, "tier_entries")
        live = sum(gauges(running, r'slots\{.*state="live"'))
        if entries >= live > 0 and gauge(running, "tier_jobs") == 0:
            return
        time.sleep(0.2)
    raise TimeoutError("the prompt was not written")


def gauge(running: Server, name: str) -> float:
    return sum(gauges(running, name))


def gauges(running: Server, pattern: str) -> list[float]:
    lines = running.get("/metrics").splitlines()
    found = (line for line in lines if re.match("vllm:tiercache_" + pattern, line))
    return [float(line.rsplit(maxsplit=1)[1]) for line in found]
