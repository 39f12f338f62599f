# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from tests.core_helpers import full, state
from tiercache.policies import make_policy
from tiercache.probe.owners import Owners
from tiercache.slots import SlotPool

SLOTS = 12


def owners() -> Owners:
    return Owners(
        {g: SlotPool(spec, SLOTS, make_policy("lru", SLOTS)) for g, spec in SPECS.items()}
    )


SPECS = {0: full(0), 3: state(3)}


def test_nobody_has_anything_at_first() -> None:
    assert [owners().of(3, slot) for slot in range(SLOTS)] == [0] * SLOTS


def test_groups_are_apart() -> None:
    those = owners()
    those.take(0, [4], 7)
    assert (those.of(0, 4), those.of(3, 4)) == (7, 0)


slots = st.lists(st.integers(0, SLOTS - 1), min_size=1, unique=True)
runs = st.tuples(st.integers(0, SLOTS - 1), st.integers(1, 4)).map(
    lambda run: list(range(run[0], min(run[0] + run[1], SLOTS)))
)


@given(st.lists(st.tuples(slots | runs, st.integers(0, 2**32 - 1))))
def test_as_a_dictionary_would(taken: list[tuple[list[int], int]]) -> None:
    those, model = owners(), dict.fromkeys(range(SLOTS), 0)
    for some, number in taken:
        assert set(those.those(0, some)) == {model[slot] for slot in some}
        those.take(0, some, number)
        model.update(dict.fromkeys(some, number))
    assert {slot: those.of(0, slot) for slot in range(SLOTS)} == model
