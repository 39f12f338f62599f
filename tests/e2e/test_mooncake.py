# SPDX-License-Identifier: Apache-2.0
"""Two servers share what they compute through a Mooncake store; its master may come and go."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import demo, transfers
from lab.conversation import random_tokens
from lab.recipes import QWEN3_NEXT
from lab.server import Server, said, server
from lab.store import Master, machine
from tests import mooncake_helpers
from tests.e2e.conftest import removing
from tests.e2e.test_nvme_restart import gauge, wait_until_written

PROMPT = random_tokens(1_500, "shared")
BOUNDARY = 1_472


@pytest.fixture(autouse=True)
def _without_the_files_of_pythons() -> Iterator[None]:
    """Semaphores and shared memory of the standard library, which vLLM's processes talk through."""
    with removing(lambda name: name.startswith(("sem.mp-", "psm_"))):
        yield


@pytest.fixture
def master() -> Iterator[Master]:
    with mooncake_helpers.master() as running:
        yield running


def cached(answer: dict[str, dict[str, dict[str, int]]]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.timeout(400)  # two servers start, each in up to a minute
def test_one_server_restores_what_another_has_computed(master: Master, tmp_path: Path) -> None:
    logs = tmp_path / "first.log", tmp_path / "second.log"
    with (
        machine(master),
        server(QWEN3_NEXT, transfers.with_store("16MiB", master.address), logs[0]) as first,
        server(QWEN3_NEXT, transfers.with_store("16MiB", master.address), logs[1]) as second,
    ):
        computed = first.complete(PROMPT)
        wait_until_written(first)
        restored = second.complete(PROMPT)
        assert (cached(computed), cached(restored)) == (0, BOUNDARY)
        assert said(restored).agrees(said(computed))
        master.kill()
        assert_serves(second, "without a master")
        assert gauge(second, r"tier_loaded_bytes_total\{.*mooncake0") > 0
        master.start()
        assert_serves(second, "with a new one")
        assert (first.stop(), second.stop()) == (0, 0)


def assert_serves(running: Server, name: str) -> None:
    """A prompt is computed, and restored from host memory."""
    prompt = random_tokens(1_500, name)
    computed = running.complete(prompt)
    running.post("/reset_prefix_cache")
    again = running.complete(prompt)
    assert (cached(computed), cached(again)) == (0, BOUNDARY)
    assert said(again).agrees(said(computed))


@pytest.mark.timeout(400)  # two servers start, each in up to a minute
def test_the_demo_of_a_shared_store(capfd: pytest.CaptureFixture[str]) -> None:
    mooncake_helpers.skip_without_package()
    assert demo.main(["--shared", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["schema"] == "tiercache.demo.shared/1"
    answers = document["answers"]
    assert [answer["server"] for answer in answers] == ["computes", "restores"]
    assert [answer["restored_tokens"] for answer in answers] == [0, BOUNDARY]
    assert all(answer["tokens_equal"] and answer["seconds"] > 0 for answer in answers)
