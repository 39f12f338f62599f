# SPDX-License-Identifier: Apache-2.0
"""The shared store: one server computes a prompt, another one restores it.

Two real servers of one model and a Mooncake store, all on this machine. Covers playing it; the
options are the demo's.
"""

import contextlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab import transfers
from lab.conversation import random_tokens
from lab.recipes import QWEN3_NEXT
from lab.said import Said
from lab.server import Server, said, server
from lab.store import machine, master, program

SCHEMA = "tiercache.demo.shared/1"
PROMPT_TOKENS = 1_500
SENT_S = 60.0
MISSING = "demo: --shared needs a package: pip install 'tiercache-kv[mooncake]'"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server made of the prompt."""

    server: str
    restored_tokens: int
    prompt_tokens: int
    seconds: float
    """From the request to the end of the answer."""
    tokens_equal: bool
    """Whether the answer is that of the server that computed everything."""


def main(*, as_json: bool) -> int:
    """Play it and print it. Exit code 0: restored, with the same answer; 1: not; 2: no package."""
    if program() is None:
        print(MISSING, file=sys.stderr)
        return 2
    logs = Path(tempfile.mkdtemp(prefix="tiercache-demo-"))
    print(f"demo: the servers' output goes to {logs}", file=sys.stderr)
    answers = play(logs, lambda text: print(f"demo: {text}", file=sys.stderr))
    print(_document(answers) if as_json else _table(answers))
    restored = answers[-1].restored_tokens > 0
    return 0 if restored and all(answer.tokens_equal for answer in answers) else 1


def play(logs: Path, say: Callable[[str], object]) -> list[Answer]:
    """Start a store and two servers, ask both, and stop everything."""
    prompt = random_tokens(PROMPT_TOKENS, "shared")
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(master())
        stack.enter_context(machine(running))
        transfer = transfers.with_store("16MiB", running.address)
        servers: list[Server] = []
        for name in ("first", "second"):
            say(f"starting the {name} server")
            servers.append(stack.enter_context(server(QWEN3_NEXT, transfer, logs / f"{name}.log")))
            # What the first request of a server costs is no matter of the cache.
            servers[-1].complete(random_tokens(PROMPT_TOKENS, f"warm {name}"), max_tokens=2)
        say("the first server computes the prompt")
        cold, cold_s = _ask(servers[0], prompt)
        wait_until_sent(servers[0])
        say("the second server is asked the same")
        warm, warm_s = _ask(servers[1], prompt)
        for each in servers:
            each.stop()
    expected = said(cold)
    return [
        _answer("computes", cold, cold_s, expected),
        _answer("restores", warm, warm_s, expected),
    ]


def _ask(running: Server, prompt: list[int]) -> tuple[dict[str, Any], float]:
    start = time.monotonic()
    answer = running.complete(prompt)
    return answer, time.monotonic() - start


def _answer(name: str, answer: dict[str, Any], seconds: float, expected: Said) -> Answer:
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    equal = said(answer).agrees(expected)
    return Answer(name, cached, answer["usage"]["prompt_tokens"], seconds, equal)


def wait_until_sent(running: Server) -> None:
    """Until nothing is on its way to another tier any more. Raises TimeoutError."""
    deadline = time.monotonic() + SENT_S
    while time.monotonic() < deadline:
        running.complete(random_tokens(8, "settle"), max_tokens=2)
        live = sum(_gauges(running, r'slots\{.*state="live"'))
        entries, jobs = (sum(_gauges(running, name)) for name in ("tier_entries", "tier_jobs"))
        if entries >= live > 0 == jobs:
            return
        time.sleep(0.2)
    raise TimeoutError(f"the prompt was not stored within {SENT_S:.0f} s")


def _gauges(running: Server, pattern: str) -> list[float]:
    lines = running.get("/metrics").splitlines()
    found = (line for line in lines if re.match("vllm:tiercache_" + pattern, line))
    return [float(line.rsplit(maxsplit=1)[1]) for line in found]


def _document(answers: list[Answer]) -> str:
    return json.dumps({"schema": SCHEMA, "answers": [asdict(answer) for answer in answers]})


def _table(answers: list[Answer]) -> str:
    rows = [("server", "restored", "of", "answered in", "same tokens")]
    rows += [
        (
            answer.server,
            f"{answer.restored_tokens:,}",
            f"{answer.prompt_tokens:,}",
            f"{answer.seconds * 1e3:.0f} ms",
            "yes" if answer.tokens_equal else "NO",
        )
        for answer in answers
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )
    return "\n".join(["", "Two servers on this machine share a Mooncake store:", *lines, ""])
