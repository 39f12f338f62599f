# SPDX-License-Identifier: Apache-2.0
"""Engines without a model: started by a test, checked and closed after it."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.vllm.fake_engine import FakeEngine
    from tests.vllm.setups import Setup

Start = Callable[["Setup"], "FakeEngine"]


@pytest.fixture(autouse=True)
def _own_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connectors leave the log as it is, so that caplog sees it."""
    monkeypatch.setattr("tiercache.vllm.connector.join_vllm_log", lambda: None)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tests.vllm.setups import model_config

    return model_config(tmp_path_factory.mktemp("model"))


@pytest.fixture
def start(model: Any) -> Iterator[Start]:
    """Start an engine; when the test is over it comes to rest, and everything must be right."""
    from tests.vllm.fake_engine import FakeEngine

    started: list[FakeEngine] = []

    def begin(setup: "Setup") -> FakeEngine:
        started.append(FakeEngine(setup, model))
        return started[-1]

    yield begin
    for engine in started:
        engine.worker.pace = lambda running: running
        engine.run()
        engine.check()
        engine.connector.shutdown()
