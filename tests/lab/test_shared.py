# SPDX-License-Identifier: Apache-2.0
"""The demo of a shared store, with stand-ins for the servers: what it prints and how it ends."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab import demo, shared

GAUGES = """\
vllm:tiercache_slots{group="0",state="live"} 3.0
vllm:tiercache_tier_entries{tier="mooncake0"} 3.0
vllm:tiercache_tier_jobs{tier="mooncake0"} 0.0
"""


class Stand:
    """A server in small: it finds what any other one was asked, if there is a store."""

    asked: set[tuple[int, ...]]
    broken = False

    def complete(self, prompt: Sequence[int], max_tokens: int = 20) -> dict[str, Any]:
        key = tuple(prompt)
        cached = len(prompt) - 28 if key in self.asked else 0
        self.asked.add(key)
        tokens = [max_tokens, cached if self.broken else 0]
        details = {"cached_tokens": cached}
        usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": details}
        logprobs = {"top_logprobs": [{f"token_id:{token}": 0.0} for token in tokens]}
        return {"choices": [{"token_ids": tokens, "logprobs": logprobs}], "usage": usage}

    def get(self, path: str) -> str:
        assert path == "/metrics"
        return GAUGES

    def stop(self) -> int:
        return 0


@contextmanager
def stand(*_: object) -> Iterator[Any]:
    class Running:
        address = "127.0.0.1:1"

    yield Running()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Stand]:
    class Fresh(Stand):
        asked: set[tuple[int, ...]] = set()  # noqa: RUF012 - what all of them share

    @contextmanager
    def server(recipe: object, transfer: object, log: Path) -> Iterator[Stand]:
        yield Fresh()

    monkeypatch.setattr(shared, "program", lambda: tmp_path)
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    monkeypatch.setattr(shared, "master", stand)
    monkeypatch.setattr(shared, "machine", stand)
    monkeypatch.setattr(shared, "server", server)
    return Fresh


def test_a_document_of_what_both_servers_answered(
    servers: type[Stand], capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main(["--shared", "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["schema"] == "tiercache.demo.shared/1"
    found = [(each["server"], each["restored_tokens"]) for each in document["answers"]]
    assert found == [("computes", 0), ("restores", 1_472)]
    assert "the second server is asked the same" in printed.err


def test_a_table(servers: type[Stand], capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--shared"]) == 0
    first, second = capsys.readouterr().out.rstrip().splitlines()[-2:]
    assert first.split()[:3] == ["computes", "0", "1,500"]
    assert second.split()[:3] == ["restores", "1,472", "1,500"]
    assert second.endswith("yes")


def test_other_tokens_are_a_failure(
    servers: type[Stand], capsys: pytest.CaptureFixture[str]
) -> None:
    servers.broken = True
    assert demo.main(["--shared"]) == 1
    assert capsys.readouterr().out.rstrip().endswith("NO")


def test_nothing_restored_is_a_failure(
    servers: type[Stand], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgetful(set[tuple[int, ...]]):
        def add(self, element: tuple[int, ...]) -> None:
            pass

    monkeypatch.setattr(servers, "asked", Forgetful())
    assert demo.main(["--shared"]) == 1


def test_a_missing_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shared, "program", lambda: None)
    assert demo.main(["--shared", "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "pip install 'tiercache-kv[mooncake]'" in printed.err
