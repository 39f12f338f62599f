# SPDX-License-Identifier: Apache-2.0
import logging
import sys
from collections.abc import Iterator

import pytest

from tests.tiers.nvme.tier_helpers import Rig
from tiercache.tiers.nvme import interpreter


@pytest.fixture(autouse=True)
def five_milliseconds() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def interval() -> float:
    return round(sys.getswitchinterval(), 6)


def test_the_shortest_holds_until_the_last_is_gone() -> None:
    for seconds, then in ((0.002, 0.002), (0.001, 0.001), (0.003, 0.001), (0.1, 0.001)):
        interpreter.ask(seconds)
        assert interval() == then
    for seconds, then in ((0.001, 0.002), (0.1, 0.002), (0.002, 0.003), (0.003, 0.005)):
        interpreter.withdraw(seconds)
        assert interval() == then


def test_a_process_that_is_quicker_already_is_left_alone() -> None:
    sys.setswitchinterval(0.0001)
    interpreter.ask(0.001)
    assert interval() == 0.0001
    interpreter.withdraw(0.001)
    assert interval() == 0.0001


def test_a_tier_asks_while_it_is_open(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tier = rig.open(switch_interval=0.002)
    assert interval() == 0.002
    assert "switch interval 0.002 s instead of 0.005 s" in caplog.text
    tier.close()
    tier.close()
    assert interval() == 0.005


def test_a_tier_that_is_told_so_leaves_it(rig: Rig) -> None:
    rig.open(switch_interval=None)
    assert interval() == 0.005


def test_a_tier_that_does_not_open_leaves_it(rig: Rig) -> None:
    rig.open()
    assert interval() == 0.001
    with pytest.raises(ValueError, match="path"):
        rig.open()
    rig.close()
    assert interval() == 0.005
