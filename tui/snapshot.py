# SPDX-License-Identifier: Apache-2.0
"""What a cache says about itself at one moment.

Covers the values only; where they come from is ``sources``, what is made of them ``view``.
A number that nobody reports is None, never 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tiercache.slots import SlotCounts


class Counters(NamedTuple):
    """What happened in a group since its server started."""

    demotions: int | None = None
    stranded: int | None = None
    evicted_demoted: int | None = None
    evicted_live: int | None = None
    stored_bytes: int | None = None
    restored_bytes: int | None = None
    reserve_failures: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """One KV-cache group of one engine."""

    engine: str
    name: str
    kind: str
    slots: SlotCounts
    counters: Counters

    @property
    def capacity(self) -> int:
        return sum(self.slots)

    @property
    def spare(self) -> int:
        return self.slots.spare


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything read at ``taken`` (seconds since the epoch).

    ``groups`` is empty while the engine has not reported yet: it does so with its first step.
    """

    taken: float
    models: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    restored_tokens: int | None = None
    lost_tokens: int | None = None

    def totals(self) -> Mapping[str, int | None]:
        """The counters of all groups together, by name, and those that belong to no group."""
        counters = [group.counters for group in self.groups]
        return {
            **{name: _sum([c[i] for c in counters]) for i, name in enumerate(Counters._fields)},
            "restored_tokens": self.restored_tokens,
            "lost_tokens": self.lost_tokens,
        }


def _sum(numbers: Sequence[int | None]) -> int | None:
    """The sum, or None when there is no number or one of them is unknown."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None
