# SPDX-License-Identifier: Apache-2.0
"""Plays a state machine for as long as one likes, with random examples that can be had again.

A run consists of rounds, and each has a seed of its own: the run's, plus the number of the round.
The seed of a run is printed before it begins and in what is said of a failure. Covers playing and
counting; which machines there are is known to ``test_long_runs``.
"""

import os
import random
import sys
import time
from dataclasses import dataclass
from typing import Final

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

#: Seconds for which each machine is played, and the seed of the run.
SECONDS_VARIABLE: Final = "TIERCACHE_LONG_RUN_S"
SEED_VARIABLE: Final = "TIERCACHE_LONG_RUN_SEED"
SECONDS: Final = float(os.environ.get(SECONDS_VARIABLE, "120"))
#: A failure is made smaller before it is shown, and Hypothesis takes up to five minutes for that.
SHRINKING_S: Final = 900
#: Rules of an example, and examples of a round.
STEPS, EXAMPLES = 100, 25


@dataclass(slots=True)
class Played:
    """What was played, and for how many seconds of this process' time."""

    rounds: int = 0
    examples: int = 0
    steps: int = 0
    cpu_s: float = 0.0


def chosen_seed(request: pytest.FixtureRequest) -> int:
    """From ``--hypothesis-seed`` or the environment; else a new one."""
    given = request.config.getoption("--hypothesis-seed") or os.environ.get(SEED_VARIABLE)
    return int(given) if given else random.SystemRandom().randrange(1 << 31)


def play(machine: type[RuleBasedStateMachine], first_seed: int, seconds: float = SECONDS) -> Played:
    """Play rounds until ``seconds`` are over, at least one. Raises what the machine raises."""
    played = Played()
    counted = _counted(machine, played)
    how = f"{SEED_VARIABLE}={first_seed}"
    name = f"{machine.__module__}.{machine.__qualname__}"
    _tell(f"{name}: {seconds:.0f} s, {how}")
    began, cpu = time.monotonic(), time.process_time()
    while not played.rounds or time.monotonic() - began < seconds:
        try:
            run_state_machine_as_test(
                seed(first_seed + played.rounds)(counted), settings=_settings()
            )
        except BaseException as error:
            error.add_note(f"round {played.rounds} of a run with {how}")
            raise
        played.rounds += 1
    played.cpu_s = time.process_time() - cpu
    _tell(f"{name}: {played}")
    return played


def _settings() -> settings:
    return settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )


def _counted(machine: type[RuleBasedStateMachine], played: Played) -> type[RuleBasedStateMachine]:
    class Counted(machine):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            played.examples += 1

        @invariant()
        def one_more_step(self) -> None:
            played.steps += 1

    Counted.__qualname__ = Counted.__name__ = machine.__name__
    return Counted


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
