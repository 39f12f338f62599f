# SPDX-License-Identifier: Apache-2.0
"""Why a restore ended where it did, in one sentence for a person."""

import time
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import NamedTuple

from tiercache.blocks import GroupKind, GroupSpec, Key, Lineage
from tiercache.events import Fate
from tiercache.restore import RestorePlan

FateOf = Callable[[Key], Fate | None]


class Missing(NamedTuple):
    """The entry whose absence ended a restore: it would have ended at ``end`` tokens."""

    group: GroupSpec
    end: int
    fate: Fate | None

    def __str__(self) -> str:
        what = "state" if self.group.kind is GroupKind.STATE else "block"
        return f"{what} of group {self.group.group_id} at {self.end:,} tokens {_told(self.fate)}"


def missing(
    plan: RestorePlan, lineage: Lineage, groups: Mapping[int, GroupSpec], fate_of: FateOf
) -> Missing | None:
    """What kept ``plan`` from going further, or None if nothing was missing.

    For a full group that is the first block that is not there. For the other kinds it is the
    deepest entry within the attention prefix that was there once, in any group of the kind; if
    none was, the one at the prefix's end.
    """
    if plan.ended_by is None:
        return None
    group = groups[plan.ended_by]
    if group.kind is GroupKind.FULL:
        step = group.tokens_per_chunk
        end = plan.attention - plan.attention % step + step
        return Missing(group, end, _fate(lineage, group, end, fate_of))
    kin = [group, *(g for g in groups.values() if g.kind is group.kind and g is not group)]
    found = [
        Missing(g, end, _fate(lineage, g, end, fate_of)) for g in kin for end in _ends(plan, g)
    ]
    lost = [entry for entry in found if entry.fate]
    return max(lost, key=attrgetter("end")) if lost else next(iter(found), None)


def _ends(plan: RestorePlan, group: GroupSpec) -> range:
    """Where entries of a group end that would have served more, the deepest first."""
    step = group.tokens_per_chunk
    return range(plan.attention - plan.attention % step, plan.boundary, -step)


def explain(
    plan: RestorePlan, lineage: Lineage, groups: Mapping[int, GroupSpec], fate_of: FateOf
) -> str:
    """One sentence: what the request gets and what ended it."""
    gets = f"restores {plan.restored:,} tokens up to {plan.boundary:,}"
    if plan.pending:
        gets += " once they are written"
    entry = missing(plan, lineage, groups, fate_of)
    if entry is None:
        return f"{gets}; nothing was missing"
    lost = f"; {plan.lost:,} tokens of attention cannot be served" if plan.lost else ""
    return f"{gets}: {entry}{lost}"


def _fate(lineage: Lineage, group: GroupSpec, end: int, fate_of: FateOf) -> Fate | None:
    key = lineage.key(group.group_id, end)
    return None if key is None else fate_of(key)


def _told(fate: Fate | None) -> str:
    if fate is None:
        return "was never stored"
    when = time.strftime("%H:%M:%S", time.localtime(fate.when))
    if fate.unreadable:
        return f"could not be read from {fate.by} {when}"
    return f"was evicted {when} by a store of {fate.by or 'an unknown request'}"
