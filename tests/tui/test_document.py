# SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Callable
from dataclasses import replace

from tiercache.tui.document import document
from tiercache.tui.feed import State, Status
from tiercache.tui.frame import Frame


def test_everything_that_is_known(live: Frame, golden: Callable[[str, str], None]) -> None:
    golden("live.json", json.dumps(document(live), indent=2) + "\n")


def test_nothing_is_known_yet(live: Frame, golden: Callable[[str, str], None]) -> None:
    status = Status(State.NO_TIERCACHE, live.now, "none")
    frame = replace(live, status=status, history=())
    golden("no-tiercache.json", json.dumps(document(frame), indent=2) + "\n")
