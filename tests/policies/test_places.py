# SPDX-License-Identifier: Apache-2.0
"""The queue behind the cost policy: in order, and how much it moves for one change."""

import math
from collections.abc import Iterator
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.core_helpers import key
from tiercache.policies.cost import Cost
from tiercache.policies.places import Place, Queue

SLOTS = 100_000
#: Moves of places for one change: up or down the heap once, and the removed slot's place.
MOST_MOVES = math.ceil(math.log2(SLOTS)) + 2


class Moves(dict[int, int]):
    """Where slots are; counts how often one is put somewhere."""

    made = 0

    def __setitem__(self, slot: int, index: int) -> None:
        self.made += 1
        super().__setitem__(slot, index)


def in_order(queue: Queue) -> Iterator[int]:
    while len(queue):
        yield queue[0].slot
        queue.remove(queue[0].slot)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5), st.booleans())))
def test_any_changes_keep_the_order(changes: list[tuple[int, int, bool]]) -> None:
    queue, model = Queue(), dict[int, Place]()
    for turn, (slot, since, stays) in enumerate(changes):
        if slot in model and stays:
            model[slot] = Place(model[slot].since + since, turn, slot)
            queue.put_off(model[slot])
        elif slot in model:
            queue.remove(slot)
            del model[slot]
        else:
            model[slot] = Place(since, turn, slot)
            queue.add(model[slot])
        assert len(queue) == len(model)
        below = [child for index in range(len(queue)) for child in queue.below(index)]
        assert sorted(below) == list(range(1, len(queue)))
    assert list(in_order(queue)) == [place.slot for place in sorted(model.values())]


def test_no_change_moves_more_than_one_path() -> None:
    random, queue, moves = Random(7), Queue(), Moves()
    queue._at = moves
    worst = 0
    for slot in range(SLOTS):
        before = moves.made
        queue.add(Place(random.random(), slot, slot))
        worst = max(worst, moves.made - before)
    for turn in range(20_000):
        # The head in every other turn, which is what an eviction removes.
        slot = random.randrange(SLOTS) if turn % 2 else queue[0].slot
        before = moves.made
        queue.remove(slot)
        worst = max(worst, moves.made - before)
        before = moves.made
        queue.add(Place(random.choice([0.0, 1.0, random.random()]), SLOTS + turn, slot))
        worst = max(worst, moves.made - before)
    assert worst <= MOST_MOVES


def test_no_call_of_the_policy_makes_up_for_the_others() -> None:
    """However many changes went before: a call per slot moves no more than two paths do."""
    cost, random = Cost(SLOTS), Random(7)
    cost.insert(range(SLOTS), [key("any")] * SLOTS)
    moves = Moves(cost._queues[0.0]._at)
    cost._queues[0.0]._at = moves
    for turn in range(3 * SLOTS):
        cost.tell(turn)
        before = moves.made
        cost.touch([random.randrange(SLOTS)])
        assert moves.made - before <= 2 * MOST_MOVES
    before = moves.made
    victims = cost.evict(2)
    assert victims is not None
    assert moves.made - before <= 2 * MOST_MOVES
