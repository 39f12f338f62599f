# SPDX-License-Identifier: Apache-2.0
"""tiercache's lines in vLLM's log."""

import logging
from collections.abc import Iterator

import pytest

pytest.importorskip("vllm", reason="the log is vLLM's")

from tiercache.vllm.logs import join_vllm_log


@pytest.fixture
def ours() -> Iterator[logging.Logger]:
    """The logger of tiercache as it is in a fresh process."""
    logger = logging.getLogger("tiercache")
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.level, logger.propagate = [], logging.NOTSET, True
    yield logger
    logger.handlers, logger.level, logger.propagate = before


def test_lines_go_where_vllms_go_and_nowhere_else(ours: logging.Logger) -> None:
    theirs = logging.getLogger("vllm")
    join_vllm_log()
    assert ours.handlers == theirs.handlers
    assert ours.level == theirs.getEffectiveLevel()
    assert not ours.propagate


def test_joining_twice_doubles_nothing(ours: logging.Logger) -> None:
    join_vllm_log()
    join_vllm_log()
    assert len(ours.handlers) == len(logging.getLogger("vllm").handlers)


def test_a_logger_that_somebody_configured_is_left_alone(ours: logging.Logger) -> None:
    ours.setLevel(logging.ERROR)
    join_vllm_log()
    assert (ours.handlers, ours.level) == ([], logging.ERROR)
