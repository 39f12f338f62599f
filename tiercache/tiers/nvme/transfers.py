# SPDX-License-Identifier: Apache-2.0
"""A batch on its way between memory and disk, and what became of a part of it.

Covers what the scheduler's thread and the I/O threads tell each other; decides nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tiercache.blocks import Key
from tiercache.tiers.base import Batch


@dataclass(eq=False, slots=True)
class Job:
    """A batch on its way: how many parts are still out, and what became of the others."""

    batch: Batch
    keys: list[Key]
    """Those of the batch that are on their way, to or from the slots ``disk``."""
    disk: list[int]
    loads: bool
    era: int
    started: float
    parts: int = 1
    failed: list[Key] = field(default_factory=list)


class Outcome(NamedTuple):
    """What an I/O thread reports of a part of a job: its ``keys``, and those that ``failed``."""

    job: Job
    keys: Sequence[Key]
    failed: Sequence[Key] = ()
    error: Exception | None = None
    checksums: Sequence[int] = ()
