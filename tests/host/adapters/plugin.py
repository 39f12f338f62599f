# SPDX-License-Identifier: Apache-2.0
"""Loaded into the process that runs vLLM's tests: puts ours in place, and notes what came of them.

Covers the fixtures that those tests expect of their surroundings, and the report: per test how it
ended, whether it made anything of ours, and why it failed.
"""

import importlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

#: Which modules of this package put ours in place.
ADAPTERS = "HOST_ADAPTERS"
#: Where the report goes.
REPORT = "HOST_REPORT"

_made: Counter[str] = Counter()
_report: dict[str, dict[str, Any]] = {}


def counted(cls: type) -> None:
    """Note in the report of a test whenever it makes one of ``cls``."""
    begin: Callable[..., None] = cls.__dict__["__init__"]

    @wraps(begin)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        _made[cls.__name__] += 1
        begin(self, *args, **kwargs)

    setattr(cls, "__init__", init)  # noqa: B010 - mypy would not have it assigned


def pytest_configure() -> None:
    modules = [
        importlib.import_module(f"adapters.{name}") for name in os.environ[ADAPTERS].split(",")
    ]
    for cls in {cls for module in modules for cls in module.OURS}:
        counted(cls)
    for module in modules:
        module.install()


def pytest_runtest_setup() -> None:
    _made.clear()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    entry = _report.setdefault(report.nodeid, {"outcome": "passed", "why": "", "made": []})
    entry["made"] = sorted({*entry["made"], *_made})
    if report.outcome != "passed":
        entry["outcome"] = report.outcome
        entry["why"] = _why(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _report[report.nodeid] = {"outcome": "failed", "why": report.longreprtext, "made": []}


def pytest_sessionfinish() -> None:
    Path(os.environ[REPORT]).write_text(json.dumps(_report))


def _why(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)[:2000]


@pytest.fixture
def default_vllm_config() -> Iterator[Any]:
    from vllm.config import VllmConfig, set_current_vllm_config

    config = VllmConfig()
    with set_current_vllm_config(config):
        yield config


@pytest.fixture
def caplog_vllm(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    return caplog
