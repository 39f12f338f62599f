# SPDX-License-Identifier: Apache-2.0
"""Ghosts against an ordered dict, and that they have no table as large as that."""

import gc
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import sha256
from itertools import chain, product
from types import ModuleType

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.core_helpers import key
from tiercache.blocks import Key, make_key
from tiercache.ghosts import Ghosts, short_names
from tiercache.keytable import PARTS


def test_short_hashes_of_a_group_have_names_of_their_own() -> None:
    hashes = ["".join(word) for length in (1, 2, 3) for word in product("01ab?", repeat=length)]
    names = short_names([key(each) for each in hashes]).tolist()
    assert len(set(names)) == len(hashes)


def test_a_long_hash_is_named_by_its_first_8_bytes() -> None:
    one, same, other = short_names(map(key, ["12345678", "123456789", "12345679"])).tolist()
    assert one == same != other


def test_a_hash_of_zeros_is_remembered_too() -> None:
    ghosts, names = Ghosts(1), short_names([make_key(bytes(32), 0)])
    ghosts.remember(names)
    assert ghosts.recall(names).tolist() == [True]


class AgainstModel(RuleBasedStateMachine):
    """Names may be given twice, and more of them than are remembered."""

    some = st.lists(st.sampled_from(list(map(key, "abcdefghijkl"))), max_size=15)

    @initialize(n=st.integers(0, 9))
    def begin(self, n: int) -> None:
        self.n = n
        self.ghosts = Ghosts(n)
        self.model: OrderedDict[Key, None] = OrderedDict()

    @rule(some=some)
    def remember(self, some: list[Key]) -> None:
        self.ghosts.remember(short_names(some))
        for k in some:
            self.model[k] = None
            self.model.move_to_end(k)
            if len(self.model) > self.n:
                self.model.popitem(last=False)

    @rule(some=some)
    def recall(self, some: list[Key]) -> None:
        assert self.ghosts.recall(short_names(some)).tolist() == [k in self.model for k in some]
        for k in some:
            self.model.pop(k, None)

    @invariant()
    def same_order(self) -> None:
        order = list(chain.from_iterable(self.ghosts._order))
        assert self.ghosts._place_of.keys_in(order) == short_names(self.model).tolist()
        assert sorted(order) == list(range(self.n))
        assert len(self.ghosts) == len(self.model)


TestAgainstModel = AgainstModel.TestCase


def everything_in(thing: object) -> Iterator[object]:
    """What a garbage collection finds from here, but for classes and modules."""
    found, reached = {id(thing): thing}, [thing]
    while reached:
        yield (each := reached.pop())
        new = [it for it in gc.get_referents(each) if not isinstance(it, type | ModuleType)]
        reached += [it for it in new if id(it) not in found]
        found |= {id(it): it for it in new}


def test_no_table_is_built_again_that_holds_more_than_a_part_of_the_names() -> None:
    n = 64 * PARTS
    ghosts = Ghosts(n)
    hashes = [sha256(str(i).encode()).digest() for i in range(2 * n)]
    for at in range(0, 2 * n, 512):
        ghosts.remember(short_names(make_key(each, 0) for each in hashes[at : at + 512]))
    tables = [len(it) for it in everything_in(ghosts) if isinstance(it, dict | set)]
    assert n <= sum(tables)
    assert max(tables) < 2 * n / PARTS
