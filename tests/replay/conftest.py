# SPDX-License-Identifier: Apache-2.0
"""Real traces, where they lie beside the project."""

from pathlib import Path

import pytest

TRACES = Path(__file__).parents[3] / "shared" / "data"


def _trace(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"there is no {name} in ../shared/data")
    return path


@pytest.fixture
def coding_trace() -> Path:
    return _trace("coding_assistant.jsonl.gz")


@pytest.fixture
def chat_trace() -> Path:
    return _trace("mooncake_conversation.jsonl.gz")
