# SPDX-License-Identifier: Apache-2.0
"""tiercache's log lines in vLLM's log."""

import logging


def join_vllm_log() -> None:
    """Send what tiercache logs where vLLM's log goes, at vLLM's level.

    vLLM configures the logger ``vllm`` only, so that without this the geometry line of the
    start-up and the reasons of lookups would be lost. Does nothing if somebody has configured the
    logger ``tiercache``.
    """
    ours, theirs = logging.getLogger("tiercache"), logging.getLogger("vllm")
    if ours.handlers or ours.level != logging.NOTSET:
        return
    for handler in theirs.handlers:
        ours.addHandler(handler)
    ours.setLevel(theirs.getEffectiveLevel())
    # The root logger of an engine process has a handler of its own: every line would come twice.
    ours.propagate = False
