# SPDX-License-Identifier: Apache-2.0
"""The restore plan: how much of a prefix can be served, and what ended it.

Pure: it sees the groups, a lineage and what is present, moves nothing and pins nothing.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from math import lcm
from typing import NamedTuple

from tiercache.blocks import GroupKind, GroupSpec, Key, Lineage

#: Boundaries at which states are or will be present, up to one in tokens, the deepest first.
Checkpoints = Callable[[int], Iterable[int]]


#: How many of a prompt's keys from an index on come before the first that is not there.
Leading = Callable[[list[Key], int], int]

#: Keys of a prompt that are made and looked for at first; then as many again as were there.
FIRST_KEYS = 64


class Elsewhere(NamedTuple):
    """What tiers have that a request is not served from."""

    has: Callable[[Key], bool]
    leading: Leading


NOWHERE = Elsewhere(lambda _: False, lambda _, __: 0)


class Lookup(NamedTuple):
    """What is known of the keys of one group."""

    ready: Leading
    storing: Container[Key]
    """What is being written,"""
    without: Container[Key]
    """and which of that does not count."""
    elsewhere: Leading
    """What makes up for a key that is neither ready nor storing."""


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What one request can get. All lengths are tokens from the start of its prompt."""

    start: int
    """What the device has already."""
    boundary: int
    """Where the restored prefix ends; ``start`` if there is nothing to restore."""
    attention: int
    """Where the attention prefix ends that is present, servable or not."""
    pending: bool
    """Whether something that the boundary needs is still being written."""
    ended_by: int | None
    """Group that kept the boundary from going further, None if nothing did."""

    @property
    def restored(self) -> int:
        return self.boundary - self.start

    @property
    def lost(self) -> int:
        """Tokens whose attention blocks are there but that no checkpoint serves."""
        return self.attention - self.boundary


class Planner:
    """Makes restore plans for one set of groups."""

    def __init__(self, groups: Sequence[GroupSpec]) -> None:
        self._full = [group for group in groups if group.kind is GroupKind.FULL]
        self._window = [group for group in groups if group.kind is GroupKind.WINDOW]
        self._state = [group for group in groups if group.kind is GroupKind.STATE]

    def plan(
        self,
        lineage: Lineage,
        lookups: Mapping[int, Lookup],
        checkpoints: Checkpoints,
        *,
        start: int,
        limit: int,
    ) -> RestorePlan:
        """Find the deepest boundary in ``(start, limit]`` that every group can serve.

        A full group needs every block from ``start`` on, a window group its trailing ones, a
        state group the one state at the boundary.

        Args:
            lineage: the request's block hashes.
            lookups: per group id, what is known of its keys.
            checkpoints: not asked for a model without state groups.
            start: tokens that the device has already.
            limit: tokens that can be restored at most.
        """
        seen = _Seen(lineage, lookups)
        limit -= limit % lineage.tokens_per_hash
        reach = {group: seen.reach(group, start, limit) for group in self._full}
        attention = max(start, min(reach.values(), default=limit))
        if self._state:
            within = takewhile(start.__lt__, checkpoints(_covered(reach, limit)))
            boundary, ended_by = self._checkpoint(seen, start, within)
        else:
            boundary, ended_by = self._windowed(seen, start, attention), None
        pending = boundary > start and self._pending(seen, start, boundary)
        if ended_by is None and boundary < attention:
            ended_by = self._missing_at(seen, start, self._end(attention))
        if ended_by is None:
            ended_by = _shortest(reach, limit)
        if not self._full or boundary > attention:
            attention = boundary
        return RestorePlan(start, boundary, attention, pending, ended_by)

    def _checkpoint(
        self, seen: "_Seen", start: int, boundaries: Iterable[int]
    ) -> tuple[int, int | None]:
        """The deepest boundary that can be served, and what kept a deeper one from it."""
        ended_by = None
        for boundary in boundaries:
            lacking = self._lacking(seen, start, boundary)
            if lacking is None:
                return boundary, ended_by
            ended_by = lacking if ended_by is None else ended_by
        return start, ended_by

    def _lacking(self, seen: "_Seen", start: int, boundary: int) -> int | None:
        """The first group whose state, partial block or window is not there at ``boundary``."""
        for group in [*self._state, *(g for g in self._full if boundary % g.tokens_per_chunk)]:
            if not seen.has(group, boundary):
                return group.group_id
        return self._gap(seen, start, boundary)

    def _gap(self, seen: "_Seen", start: int, boundary: int) -> int | None:
        """The first window group that cannot serve ``boundary``."""
        gaps = (g for g in self._window if _window_gap(seen, g, start, boundary) is not None)
        return next((group.group_id for group in gaps), None)

    def _windowed(self, seen: "_Seen", start: int, boundary: int) -> int:
        """Deepest boundary that all window groups serve and all full groups can end at."""
        while boundary > start:
            before = boundary
            for group in self._window:
                boundary = _window_end(seen, group, start, boundary)
            boundary = self._end(boundary)
            if boundary == before:
                return boundary
        return start

    def _end(self, boundary: int) -> int:
        """The deepest boundary up to ``boundary`` that a prefix can end at, windows aside."""
        steps = () if self._state else (group.tokens_per_chunk for group in self._full)
        return boundary - boundary % lcm(*steps)

    def _pending(self, seen: "_Seen", start: int, boundary: int) -> bool:
        storing = seen.storing
        return bool(storing) and not storing.isdisjoint(self._needed(seen.lineage, start, boundary))

    def needed(self, lineage: Lineage, plan: RestorePlan) -> list[Key]:
        """Keys of all that ``plan`` restores, and of what a lookup asks for beyond it.

        Group by group, each in prefix order. Keys beyond the lineage's hashes are left out.
        """
        return list(self._needed(lineage, plan.start, plan.boundary)) if plan.restored else []

    def _needed(self, lineage: Lineage, start: int, boundary: int) -> Iterator[Key]:
        """What a restore to ``boundary`` looks at."""
        ends = self._needed_ends(start, boundary)
        return chain.from_iterable(lineage.keys(group.group_id, part) for group, part in ends)

    def _needed_ends(self, start: int, boundary: int) -> Iterator[tuple[GroupSpec, range]]:
        at_boundary = range(boundary, boundary + 1)
        for group in self._state:
            yield group, at_boundary
        for group in self._full:
            step = group.tokens_per_chunk
            whole = boundary - boundary % step
            yield group, _ends(group, start, whole)
            if boundary % step:
                yield group, at_boundary
            if group.lookahead:
                yield group, range(whole + step, whole + step + 1)
        for group in self._window:
            step, chunks = group.tokens_per_chunk, _window(group, start, boundary)[::-1]
            yield group, range(chunks.start * step, chunks.stop * step, step)

    def _missing_at(self, seen: "_Seen", start: int, boundary: int) -> int | None:
        """The first state or window group that cannot serve ``boundary``."""
        for group in self._state:
            if not seen.has(group, boundary - boundary % group.tokens_per_chunk):
                return group.group_id
        return self._gap(seen, start, boundary)


class _Seen:
    """Presence of the blocks of one lineage; remembers which are still being written."""

    def __init__(self, lineage: Lineage, lookups: Mapping[int, Lookup]) -> None:
        self.lineage = lineage
        self.storing: set[Key] = set()
        self._lookups = lookups

    def has(self, group: GroupSpec, end: int) -> bool:
        return self._run(group, range(end, end + 1)) == 1

    def _run(self, group: GroupSpec, ends: range) -> int:
        """How many of the blocks that end at ``ends`` come before the first that is missing."""
        found, lookup = 0, self._lookups[group.group_id]
        while found < len(ends):
            part = ends[found : 2 * found + FIRST_KEYS]
            keys = list(self.lineage.keys(group.group_id, part))
            there = self._leading(lookup, keys)
            found += there
            if there < len(part):
                break
        return found

    def _leading(self, lookup: Lookup, keys: list[Key]) -> int:
        """How many of the keys come before the first that is missing, ready or not."""
        at = 0
        while (at := at + lookup.ready(keys, at)) < len(keys):
            if keys[at] in lookup.storing and keys[at] not in lookup.without:
                self.storing.add(keys[at])
                at += 1
            elif there := lookup.elsewhere(keys, at):
                at += there
            else:
                break
        return at

    def reach(self, group: GroupSpec, start: int, limit: int) -> int:
        """Where the present whole blocks of a full group end, at most ``limit``.

        A draft group is looked up one chunk further than it serves, so its last present block
        does not count.
        """
        step = group.tokens_per_chunk
        run = self._run(group, _ends(group, start, limit + group.lookahead))
        return start - start % step + run * step - group.lookahead


def _ends(group: GroupSpec, start: int, limit: int) -> range:
    """Where the whole blocks of a group end, from the one that ``start`` is in to ``limit``."""
    step = group.tokens_per_chunk
    return range(start - start % step + step, limit + 1, step)


def _shortest(reach: Mapping[GroupSpec, int], limit: int) -> int | None:
    """The full group with the least blocks, if one that would fit below ``limit`` is missing."""
    short = [group for group, end in reach.items() if end + group.tokens_per_chunk <= limit]
    return min(short, key=reach.__getitem__).group_id if short else None


def _covered(reach: Mapping[GroupSpec, int], limit: int) -> int:
    """The deepest boundary before which all whole attention blocks are there."""
    ends = (end + group.tokens_per_chunk - 1 for group, end in reach.items())
    return min([limit, *ends])


def _window(group: GroupSpec, start: int, boundary: int) -> range:
    """Numbers of the chunks that a window group needs at ``boundary``, the last one first."""
    assert group.window_chunks is not None
    last = -(-boundary // group.tokens_per_chunk)
    return range(last, max(start // group.tokens_per_chunk, last - group.window_chunks), -1)


def _window_gap(seen: _Seen, group: GroupSpec, start: int, boundary: int) -> int | None:
    """Number of the last chunk that is missing from the window, or None."""
    step = group.tokens_per_chunk
    return next((i for i in _window(group, start, boundary) if not seen.has(group, i * step)), None)


def _window_end(seen: _Seen, group: GroupSpec, start: int, boundary: int) -> int:
    """Deepest boundary up to ``boundary`` whose trailing blocks are present, or ``start``.

    A missing block rules out every boundary whose window covers it.
    """
    while boundary > start:
        gap = _window_gap(seen, group, start, boundary)
        if gap is None:
            return boundary
        boundary = (gap - 1) * group.tokens_per_chunk
    return start
