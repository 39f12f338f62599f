# SPDX-License-Identifier: Apache-2.0
"""Who stored what is in each slot: numbers of sequences, four bytes per slot.

Covers whole runs of slots at once, as a prompt of ten thousand blocks is stored in one call.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from tiercache.slots import SlotPool


class Owners:
    """The sequence of the latest entry of each slot of every group; 0 for nobody's."""

    def __init__(self, pools: Mapping[int, SlotPool]) -> None:
        self._numbers = {g: array("I", bytes(4 * pool.capacity)) for g, pool in pools.items()}

    def of(self, group_id: int, slot: int) -> int:
        return self._numbers[group_id][slot]

    def those(self, group_id: int, slots: Sequence[int]) -> Iterable[int]:
        """Who has ``slots``, each named at least once."""
        numbers = self._numbers[group_id]
        if len(slots) == 1:
            return (numbers[slots[0]],)
        run = _run(slots)
        return set(itemgetter(*slots)(numbers) if run is None else numbers[run])

    def take(self, group_id: int, slots: Sequence[int], number: int) -> None:
        """``slots`` are filled by the sequence of this number."""
        numbers = self._numbers[group_id]
        run = _run(slots) if len(slots) > 1 else None
        if run is not None:
            numbers[run] = array("I", [number]) * len(slots)
            return
        for slot in slots:
            numbers[slot] = number


def _run(slots: Sequence[int]) -> slice | None:
    """The slots as a slice, if they are ascending neighbours."""
    first = slots[0]
    run = range(first, first + len(slots))
    return slice(run.start, run.stop) if slots[-1] == run[-1] and slots == list(run) else None
