# SPDX-License-Identifier: Apache-2.0
"""The restore plan: how much of a prefix can be served, and what ended it.

Pure: it sees the groups, a lineage and what is present, moves nothing and pins nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tiercache.blocks import GroupKind, GroupSpec, Key, Lineage
from tiercache.slots import Presence

StateOf = Callable[[Key], Presence]


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
        state_of: StateOf,
        checkpoints: Iterable[int],
        *,
        start: int,
        limit: int,
    ) -> RestorePlan:
        """Find the deepest boundary in ``(start, limit]`` that every group can serve.

        ``checkpoints`` are the boundaries, the deepest first, at which states are or will be
        present; they are ignored for a model without state groups. A full group needs every
        block from ``start`` on, a window group its trailing ones, a state group the one state at
        the boundary.
        """
        seen = _Seen(lineage, state_of)
        reach = {group: _full_reach(seen, group, start, limit) for group in self._full}
        attention = max(start, min(reach.values(), default=limit))
        ended_by = next((g.group_id for g, end in reach.items() if _is_short(g, end, limit)), None)
        if self._state:
            within = (b for b in checkpoints if b > start and _covered(b, reach))
            boundary = next((b for b in within if self._serves(seen, start, b)), start)
        else:
            boundary = self._windowed(seen, start, attention)
        if boundary < attention:
            ended_by = (self._state or self._window)[0].group_id
        if not self._full:
            attention = boundary
        pending = boundary > start and self._pending(seen, start, boundary)
        return RestorePlan(start, boundary, max(attention, boundary), pending, ended_by)

    def _serves(self, seen: "_Seen", start: int, boundary: int) -> bool:
        """Whether states, partial attention blocks and windows are all there at ``boundary``."""
        exact = [*self._state, *(g for g in self._full if boundary % g.tokens_per_chunk)]
        return all(seen.has(group, boundary) for group in exact) and all(
            _window_end(seen, group, start, boundary) == boundary for group in self._window
        )

    def _windowed(self, seen: "_Seen", start: int, boundary: int) -> int:
        """Deepest boundary that all window groups serve and all full groups can end at."""
        while True:
            before = boundary
            for group in self._window:
                boundary = _window_end(seen, group, start, boundary)
            for group in self._full:
                boundary -= boundary % group.tokens_per_chunk
            if boundary == before or boundary <= start:
                return max(boundary, start)

    def _pending(self, seen: "_Seen", start: int, boundary: int) -> bool:
        needed = [(group, boundary) for group in self._state]
        for group in [*self._full, *self._window]:
            step = group.tokens_per_chunk
            first = start - start % step
            if group.window_chunks is not None:
                first = max(first, boundary - group.window_chunks * step)
            needed += [(group, end) for end in range(first + step, boundary + 1, step)]
        return any(seen.state(group, end) is Presence.STORING for group, end in needed)


class _Seen:
    """Presence of the blocks of one lineage."""

    def __init__(self, lineage: Lineage, state_of: StateOf) -> None:
        self.lineage = lineage
        self._state_of = state_of

    def state(self, group: GroupSpec, end: int) -> Presence:
        key = self.lineage.key(group.group_id, end)
        return Presence.MISSING if key is None else self._state_of(key)

    def has(self, group: GroupSpec, end: int) -> bool:
        return self.state(group, end) is not Presence.MISSING


def _full_reach(seen: _Seen, group: GroupSpec, start: int, limit: int) -> int:
    """Where the present whole blocks of a full group end, at most ``limit``.

    A draft group is looked up one chunk further than it serves, so its last present block does
    not count.
    """
    step = group.tokens_per_chunk
    beyond = step if group.draft else 0
    end = start - start % step
    while end + step <= limit + beyond and seen.has(group, end + step):
        end += step
    return end - beyond


def _is_short(group: GroupSpec, reach: int, limit: int) -> bool:
    return reach + group.tokens_per_chunk <= limit


def _covered(boundary: int, reach: dict[GroupSpec, int]) -> bool:
    """Whether all whole attention blocks before ``boundary`` are there."""
    return all(boundary - boundary % g.tokens_per_chunk <= end for g, end in reach.items())


def _window_end(seen: _Seen, group: GroupSpec, start: int, boundary: int) -> int:
    """Deepest boundary up to ``boundary`` whose trailing blocks are present, or ``start``.

    A missing block rules out every boundary whose window covers it, so each block is looked at
    once.
    """
    step = group.tokens_per_chunk
    assert group.window_chunks is not None
    while boundary > start:
        last = -(-boundary // step)
        first = max(start // step, last - group.window_chunks)
        gap = next((i for i in range(last, first, -1) if not seen.has(group, i * step)), None)
        if gap is None:
            return boundary
        boundary = (gap - 1) * step
    return start
