# SPDX-License-Identifier: Apache-2.0
from tiercache.tui.remembering import remembering


def test_the_same_object_is_looked_at_once() -> None:
    asked: list[tuple[int, ...]] = []

    @remembering
    def total(numbers: tuple[int, ...]) -> int:
        asked.append(numbers)
        return sum(numbers)

    first = (1, 2)
    equal = (*first,)
    assert [total(first), total(first), total(equal), total((5,)), total(first)] == [3, 3, 3, 5, 3]
    assert asked == [first, equal, (5,), first]
