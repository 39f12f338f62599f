# SPDX-License-Identifier: Apache-2.0
"""In words: which group is in need, which conversation cannot be restored, and why.

Covers the judgement and the sentences; where they stand on the screen is for the views.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Rows

from tiercache.stats.model import (
    SEQUENCE_DIGITS,
    Group,
    Loss,
    Sequence,
    SlotClass,
    Snapshot,
    Victim,
)
from tiercache.tui import text
from tiercache.tui.remembering import remembering

#: What gives a group of checkpoints more room.
CURE = "raise mamba_state_slots_reference_tokens or enable demotion"


def name(sequence: int | None) -> str:
    """A conversation as it is shown everywhere: six hexadecimal digits."""
    return text.UNKNOWN if sequence is None else f"{sequence:0{SEQUENCE_DIGITS}x}"


def is_halved(sequence: Sequence) -> bool:
    """Whether less than half of what is cached can be restored."""
    return 2 * sequence.restorable < sequence.cached


@remembering
def stranded(sequences: Rows[Sequence]) -> Rows[Sequence]:
    """The conversations that cannot be restored, the largest loss first."""
    empty = [sequence for sequence in sequences if sequence.restorable <= 0]
    found = [sequence for sequence in empty if sequence.is_stranded]
    return sorted(found, key=lambda sequence: -sequence.stranded)


def holds_checkpoints(group: Group) -> bool:
    """Whether a restore hangs on single entries of the group: all kinds but full attention."""
    return group.kind != "full"


def entry(group: Group | None) -> str:
    """What an entry of a group is called."""
    if group is None:
        return "entry"
    return {"state": "checkpoint", "full": "attention block"}.get(group.kind, "block")


def is_alarming(group: Group) -> bool:
    """Whether the next store evicts a live checkpoint.

    Groups of full attention are not meant: a full cache lives from evicting their oldest blocks.
    """
    return holds_checkpoints(group) and group.slots.spare <= 0 and group.slots.live > 0


def neediest(groups: Rows[Group]) -> Group | None:
    """The group that loses a live checkpoint next: with the fewest spare slots."""
    having = [group for group in groups if group.slots.capacity > 0]
    candidates = [group for group in having if holds_checkpoints(group)] or having
    return min(candidates, key=lambda group: group.slots.spare, default=None)


def equals(groups: Rows[Group], one: Group) -> str:
    """``one`` and all of its kind with as few spare slots: ``g1-g6``."""
    return span([g.name for g in groups if (g.kind, g.slots.spare) == (one.kind, one.slots.spare)])


def span(names: Rows[str]) -> str:
    """Names of groups in short: ``g1-g6`` where they are consecutive, else ``g1+2``."""
    if len(names) < 2:
        return "".join(names)
    ends = [name.rpartition("g") for name in names]
    numbers = [int(end) if end.isdecimal() and end.isascii() else -1 for _, _, end in ends]
    engines = {engine for engine, _, _ in ends}
    if len(engines) == 1 and numbers == list(range(numbers[0], numbers[0] + len(names))):
        return f"{names[0]}-g{ends[-1][2]}"
    return f"{names[0]}+{len(names) - 1}"


def next_loss(groups: Rows[Group]) -> str:
    """Who loses a live entry next, in one sentence; empty without groups."""
    group = neediest(groups)
    if group is None:
        return ""
    spare, lost, which = group.slots.spare, entry(group), equals(groups, group)
    verb = "loses" if which == group.name else "lose"
    if group.slots.live <= 0:
        return f"{which}: nothing live to lose yet"
    if spare <= 0:
        return f"{which} {verb} a live {lost} at the next store"
    return f"{which} {verb} a live {lost} in {text.count(spare + 1)} stores"


def least_spare(groups: Rows[Group]) -> str:
    """The same of numbers that are not fresh: what was, not what will be."""
    group = neediest(groups)
    if group is None:
        return ""
    return f"{equals(groups, group)} had the least spare: {text.count(group.slots.spare)}"


def next_victim(group: Group) -> str:
    """What the next store in a group takes."""
    slots = group.slots
    if slots.free > 0:
        return "free"
    if slots.demoted > 0:
        return "demoted"
    if slots.live > 0:
        return "LIVE" if holds_checkpoints(group) else "live"
    return "none" if slots.capacity > 0 else text.UNKNOWN


def short(sequence: Sequence) -> str:
    """Why a conversation cannot be restored further, in a few words."""
    loss = sequence.loss
    if loss is None:
        return "no checkpoint" if sequence.is_stranded else text.UNKNOWN
    if loss.unreadable:
        return f"{loss.group} unreadable on disk"
    if loss.by is not None:
        return f"{loss.group} lost to {name(loss.by)}"
    if loss.when is not None:
        return f"{loss.group} evicted {text.clock(loss.when)}"
    return f"{loss.group} not stored"


def sentences(sequence: Sequence, snapshot: Snapshot) -> list[str]:
    """What can be restored of a conversation, and why not more."""
    who, cached = name(sequence.number), text.tokens(sequence.cached)
    if sequence.stranded == 0:
        return [
            f"All {cached} cached tokens of {who} can be restored.",
            *_cause(sequence, snapshot),
        ]
    rest = text.tokens(sequence.stranded)
    if sequence.restorable <= 0:
        first = (
            f"{who} cannot be restored: {cached} tokens of attention blocks are kept, "
            "but no checkpoint to go with them is left."
        )
    else:
        restorable = text.tokens(sequence.restorable)
        first = f"{restorable} of {cached} cached tokens of {who} can be restored."
    cost = f"Its next turn computes these {rest} tokens again."
    return [first, *_cause(sequence, snapshot), cost]


def _cause(sequence: Sequence, snapshot: Snapshot) -> list[str]:
    loss = sequence.loss
    if loss is None:
        return []
    group = next((group for group in snapshot.groups if group.name == loss.group), None)
    return [
        f"The {entry(group)} of {loss.group} at token {text.tokens(loss.tokens)} {_fate(loss)}."
    ]


def _fate(loss: Loss) -> str:
    if loss.unreadable:
        return "was on a tier and did not verify"
    if loss.when is None and loss.by is None:
        return "was never stored, or that is not remembered"
    when = "" if loss.when is None else f" at {text.clock(loss.when)}"
    by = "" if loss.by is None else f" by a store of {name(loss.by)}"
    return f"was evicted{when}{by}"


def places(snapshot: Snapshot | None) -> Iterator[tuple[str, int, Victim]]:
    """Every slot that can go, with its group and how many stores take it: 0 is the next one."""
    if snapshot is None:
        return
    free = {group.name: group.slots.free for group in snapshot.groups}
    passed: dict[str, int] = {}
    for victim in snapshot.victims:
        if victim.slot_class is SlotClass.PINNED:
            continue
        place = passed.get(victim.group, free.get(victim.group, 0))
        passed[victim.group] = place + 1
        yield victim.group, place, victim
