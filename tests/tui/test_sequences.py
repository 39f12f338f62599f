# SPDX-License-Identifier: Apache-2.0
"""In which order conversations are listed."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tui.scenes import LOSS, NOW, conversation, live
from tiercache.stats.model import Sequence, Where
from tiercache.tui import reasons
from tiercache.tui.views import sequences

lengths = st.sampled_from([0, 16, 32, 64, 65, 128])
conversations = st.builds(
    lambda idle, cached, restorable, loss, where: conversation(
        1, 2, idle, cached, restorable, loss=loss, where=where
    ),
    st.sampled_from([0.0, 1.0, 5.0, 60.0]),
    lengths,
    lengths,
    st.sampled_from([None, LOSS]),
    st.sampled_from([Where.RAM_BLOCKS, Where.RUNNING]),
)


def expected(one: Sequence) -> tuple[bool, bool, float]:
    """Those that cannot be restored, then those of less than half, the largest losses first."""
    halved = reasons.is_halved(one)
    return not one.is_stranded, not halved, -one.stranded if halved else NOW - one.last_used


@settings(deadline=None, max_examples=40)
@given(st.lists(conversations, max_size=10))
def test_those_in_trouble_come_first(found: list[Sequence]) -> None:
    numbered = tuple(replace(one, number=i) for i, one in enumerate(found))
    frame = live()
    frame = replace(frame, history=(replace(frame.history[-1], sequences=numbered),))
    shown, _ = sequences.listed(frame)
    assert shown == sorted(numbered, key=expected)
