# SPDX-License-Identifier: Apache-2.0
"""vLLM's server with tiercache: asked over HTTP, scraped, interrupted; it leaves nothing behind."""

from pathlib import Path

from lab import transfers
from lab.conversation import random_tokens
from lab.recipes import QWEN3_NEXT
from lab.server import Server, said, server

SHARED_MEMORY = Path("/dev/shm")
PROMPT = random_tokens(1_500, "server")
BOUNDARY = 1_472


def cached(answer: dict[str, dict[str, dict[str, int]]]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_server(tmp_path: Path) -> None:
    before = set(SHARED_MEMORY.rglob("*"))
    with server(QWEN3_NEXT, transfers.tiercache("64MiB"), tmp_path / "log") as running:
        restores(running)
        shows_metrics(running)
        assert running.stop() == 0
    assert set(SHARED_MEMORY.rglob("*")) <= before


def restores(running: Server) -> None:
    cold = running.complete(PROMPT)
    running.complete(random_tokens(8, "settle"))
    running.post("/reset_prefix_cache")
    restored = running.complete(PROMPT)
    assert cached(restored) == BOUNDARY
    assert said(restored).agrees(said(cold))


def shows_metrics(running: Server) -> None:
    lines = running.get("/metrics").splitlines()
    ours = [line for line in lines if line.startswith("vllm:tiercache_")]
    tokens = [line for line in ours if line.startswith("vllm:tiercache_restored_tokens_total")]
    assert [float(line.rsplit(maxsplit=1)[1]) for line in tokens] == [BOUNDARY]
    assert any(line.startswith("vllm:tiercache_slots{") for line in ours)
