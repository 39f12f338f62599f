# SPDX-License-Identifier: Apache-2.0
"""The queue behind the cost policy: in order, and how much it moves for one change."""

import math
from collections.abc import Iterator
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.core_helpers import key
from tiercache.blocks import Key
from tiercache.policies.cost import Cost
from tiercache.policies.places import Place, Queue

KEYS = 100_000
#: Moves of places for one change: up or down the heap once, and the removed one's place.
MOST_MOVES = math.ceil(math.log2(KEYS)) + 2


class Moves(dict[Key, int]):
    """Where keys are; counts how often one is put somewhere."""

    made = 0

    def __setitem__(self, one: Key, index: int) -> None:
        self.made += 1
        super().__setitem__(one, index)


def in_order(queue: Queue) -> Iterator[Key]:
    while len(queue):
        yield queue[0].key
        queue.remove(queue[0].key)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5), st.booleans())))
def test_any_changes_keep_the_order(changes: list[tuple[int, int, bool]]) -> None:
    queue, model = Queue(), dict[Key, Place]()
    for turn, (name, since, stays) in enumerate(changes):
        one = key(str(name))
        if one in model and stays:
            model[one] = Place(model[one].since + since, turn, one)
            queue.put_off(model[one])
        elif one in model:
            queue.remove(one)
            del model[one]
        else:
            model[one] = Place(since, turn, one)
            queue.add(model[one])
        assert len(queue) == len(model)
        below = [child for index in range(len(queue)) for child in queue.below(index)]
        assert sorted(below) == list(range(1, len(queue)))
    assert list(in_order(queue)) == [place.key for place in sorted(model.values())]


def test_no_change_moves_more_than_one_path() -> None:
    random, queue, moves = Random(7), Queue(), Moves()
    queue._at = moves
    keys = [key(str(number)) for number in range(KEYS)]
    worst = 0
    for turn, one in enumerate(keys):
        before = moves.made
        queue.add(Place(random.random(), turn, one))
        worst = max(worst, moves.made - before)
    for turn in range(20_000):
        # The head in every other turn, which is what an eviction removes.
        one = random.choice(keys) if turn % 2 else queue[0].key
        before = moves.made
        queue.remove(one)
        worst = max(worst, moves.made - before)
        before = moves.made
        queue.add(Place(random.choice([0.0, 1.0, random.random()]), KEYS + turn, one))
        worst = max(worst, moves.made - before)
    assert worst <= MOST_MOVES


def test_no_call_of_the_policy_makes_up_for_the_others() -> None:
    """However many changes went before: a call per key moves no more than two paths do."""
    cost, random = Cost(KEYS), Random(7)
    keys = [key(str(number)) for number in range(KEYS)]
    cost.insert(keys)
    moves = Moves(cost._queues[0.0]._at)
    cost._queues[0.0]._at = moves
    for turn in range(3 * KEYS):
        cost.tell(turn)
        before = moves.made
        cost.touch([random.choice(keys)])
        assert moves.made - before <= 2 * MOST_MOVES
    before = moves.made
    victims = cost.evict(2)
    assert victims is not None
    assert moves.made - before <= 2 * MOST_MOVES
