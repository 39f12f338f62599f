# SPDX-License-Identifier: Apache-2.0
"""vLLM's OpenAI server in a process of its own, asked over HTTP."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.arguments import server_flags
from lab.environment import VARIABLES
from lab.models import model_path
from lab.quiet import tail
from lab.recipes import Recipe
from lab.said import CHOICES, Said
from lab.transfers import Transfer

MODULE = "vllm.entrypoints.openai.api_server"
START_S = 120  # 25 to 56 s on an idle two-core machine
STOP_S = 60
REQUEST_S = 60


@dataclass(slots=True)
class Server:
    """A server that answers."""

    url: str
    model: str
    process: subprocess.Popen[bytes]

    def complete(self, prompt: Sequence[int], max_tokens: int = 20) -> dict[str, Any]:
        """Greedy completion of token ids: the answer as the server gives it."""
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "logprobs": CHOICES,
            "return_tokens_as_token_ids": True,
        }
        answer: dict[str, Any] = json.loads(self.post("/v1/completions", body))
        return answer

    def post(self, path: str, body: object = None) -> str:
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        return _read(request)

    def get(self, path: str) -> str:
        return _read(urllib.request.Request(self.url + path))

    def stop(self) -> int:
        """Interrupt the server, as Ctrl-C does, and wait for it to end: its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_S)


@contextmanager
def server(recipe: Recipe, transfer: Transfer, log: Path) -> Iterator[Server]:
    """Start a server that writes to ``log``; what is left of it at the end is killed."""
    port = _free_port()
    flags = server_flags(recipe, model_path(recipe), transfer, port)
    command = [sys.executable, "-m", MODULE, *(part for flag in flags for part in flag)]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, stdout=sink, stderr=sink, env=VARIABLES | os.environ, start_new_session=True
        )
    try:
        running = Server(f"http://127.0.0.1:{port}", recipe.name, process)
        _await_health(running, log)
        yield running
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_health(running: Server, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if running.process.poll() is not None:
            raise RuntimeError(f"the server ended early:\n{tail(log)}")
        try:
            running.get("/health")
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.25)
        else:
            return
    raise TimeoutError(f"the server is not healthy after {START_S} s:\n{tail(log)}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _read(request: urllib.request.Request) -> str:
    with urllib.request.urlopen(request, timeout=REQUEST_S) as response:
        text: bytes = response.read()
        return text.decode()


def said(answer: dict[str, Any]) -> Said:
    """What a completion says."""
    choice = answer["choices"][0]
    choices = (
        {int(name.removeprefix("token_id:")): each for name, each in at.items()}
        for at in choice["logprobs"]["top_logprobs"]
    )
    return Said(tuple(choice["token_ids"]), tuple(choices))
