# SPDX-License-Identifier: Apache-2.0
"""Every state machine of the tests, played for minutes on examples that nobody has seen.

    TIERCACHE_LONG_RUN_S=300 scripts/test --soak tests/test_long_runs.py -s
    TIERCACHE_LONG_RUN_SEED=1234 scripts/test --soak tests/test_long_runs.py -k Cost

The first plays each for five minutes instead of two; the second plays again what a failure named.
The machine of all tiers needs their fixtures, and has its long run in ``test_conformance_machine``.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests import (
    long_runs,
    test_checkpoints_machine,
    test_ghosts,
    test_keytable,
    test_slotqueue,
    test_slots,
)
from tests.policies import test_arc, test_conformance, test_cost, test_lru
from tests.primary import test_machine as test_primary
from tests.tiering import test_machine as test_tiering
from tests.tiering import test_restarts_machine
from tests.tiers import test_conformance_machine
from tests.tiers.nvme import test_machine as test_nvme
from tests.tiers.nvme import test_policy, test_space_machine

TESTS = Path(__file__).parent
MACHINES: dict[str, type[RuleBasedStateMachine]] = {
    "Checkpoints": test_checkpoints_machine.Words,
    "Policies": test_conformance.AnyPolicy,
    "LRU": test_lru.AgainstModel,
    "ARC": test_arc.AgainstModel,
    "Cost": test_cost.Model,
    "DiskPolicies": test_policy.AgainstModel,
    "KeyTable": test_keytable.AgainstDict,
    "SlotQueue": test_slotqueue.AgainstList,
    "Ghosts": test_ghosts.AgainstModel,
    "SlotPool": test_slots.Slots,
    "PrimaryTier": test_primary.Conversations,
    "TieredCache": test_tiering.Conversations,
    "TieredCacheOnDisk": test_restarts_machine.Restarts,
    "SlotTable": test_space_machine.AgainstModel,
    "FreeSlots": test_space_machine.Runs,
    "NvmeTier": test_nvme.NvmeServers,
}
#: Played where its fixtures are.
ELSEWHERE: list[type[RuleBasedStateMachine]] = [test_conformance_machine.AnyTier]


@pytest.mark.soak
@pytest.mark.timeout(long_runs.SECONDS + long_runs.SHRINKING_S)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", MACHINES)
def test_nothing_breaks_in_a_long_run(name: str, request: pytest.FixtureRequest) -> None:
    played = long_runs.play(MACHINES[name], long_runs.chosen_seed(request))
    assert played.steps > played.examples


def machines_in(file: Path) -> Iterator[str]:
    """Names of the state machines that a file defines."""
    pattern = r"^class (\w+)\((?:RuleBasedStateMachine|Conversations)\)"
    for name in re.findall(pattern, file.read_text(), re.MULTILINE):
        yield f"{file.relative_to(TESTS).with_suffix('')}:{name}"


def test_no_machine_is_left_out() -> None:
    defined = {name for file in TESTS.rglob("test_*.py") for name in machines_in(file)}
    played = {
        f"{machine.__module__.removeprefix('tests.').replace('.', '/')}:{machine.__name__}"
        for machine in [*MACHINES.values(), *ELSEWHERE]
    }
    assert played == defined


def test_a_seed_names_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers are drawn again, and others for another seed."""
    monkeypatch.setattr(long_runs, "EXAMPLES", 3)
    monkeypatch.setattr(long_runs, "STEPS", 10)
    drawn: list[list[int]] = []

    class Dice(RuleBasedStateMachine):
        @rule(number=st.integers(1, 1000))
        def throw(self, number: int) -> None:
            drawn[-1].append(number)

    for seed in (1, 1, 2):
        drawn.append([])
        played = long_runs.play(Dice, seed, seconds=0)
        assert (played.rounds, played.examples, played.steps - 3) == (1, 3, len(drawn[-1]))
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_failure_names_its_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(RuleBasedStateMachine):
        @rule()
        def fail(self) -> None:
            raise ArithmeticError

    with pytest.raises(ArithmeticError) as failure:
        long_runs.play(Broken, 77, seconds=0)
    assert any("round 0 of a run with TIERCACHE_LONG_RUN_SEED=77" in n for n in notes(failure))
    assert "Broken: 0 s, TIERCACHE_LONG_RUN_SEED=77" in capsys.readouterr().err


def notes(failure: pytest.ExceptionInfo[BaseException]) -> list[str]:
    return failure.value.__notes__
