# SPDX-License-Identifier: Apache-2.0
"""From bytes to slots per group.

Covers how a worker's budget is divided, by the states that the engine keeps of a request. Not the
memory itself (``arena``), nor whether the machine has that much of it (``hostmem``).
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tiercache.blocks import GroupKind, GroupSpec
from tiercache.config import REFERENCE_TOKENS_ALLOWED
from tiercache.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Geometry:
    """Slots per group, and what they were worked out from."""

    groups: tuple[GroupSpec, ...]
    slots: Mapping[int, int]
    """Slots by group id."""
    budget_bytes: int
    """Bytes per worker that the slots had to fit into."""
    retention: int | None
    """Tokens between two states that the engine keeps; see ``states_per_request``."""
    reference_tokens: int
    """Tokens of the request that the state slots were sized for."""

    @property
    def token_page(self) -> int:
        """Bytes of one slot of every full and window group together."""
        return _page(_token_groups(self.groups))

    @property
    def state_page(self) -> int:
        """Bytes of one slot of every state group together."""
        return _page(_state_groups(self.groups))

    @property
    def token_slots(self) -> int:
        """Slots of the full or window group that has fewest; 0 without such groups."""
        return self._fewest(_token_groups(self.groups))

    @property
    def state_slots(self) -> int:
        """Slots of the state group that has fewest; 0 without state groups."""
        return self._fewest(_state_groups(self.groups))

    @property
    def used_bytes(self) -> int:
        """Bytes of all slots per worker, at most ``budget_bytes``."""
        return sum(self.slots[group.group_id] * group.slot_bytes for group in self.groups)

    def describe(self) -> str:
        """Say everything in one line, for the log; differing slots are listed as 40/30/30."""
        tokens, states = _token_groups(self.groups), _state_groups(self.groups)
        retention = "every block" if self.retention is None else f"{self.retention} tokens"
        return (
            f"{self._counts(tokens)} token slots of {self.token_page} bytes, "
            f"{self._counts(states)} state slots in each of {len(states)} state groups, "
            f"{self.state_page} bytes for one of each; "
            f"budget {self.budget_bytes} bytes ({self.budget_bytes / 2**30:.2f} GiB) per worker, "
            f"retention {retention}, reference request {self.reference_tokens} tokens"
        )

    def _fewest(self, groups: Iterable[GroupSpec]) -> int:
        return min((self.slots[group.group_id] for group in groups), default=0)

    def _counts(self, groups: Iterable[GroupSpec]) -> str:
        counts = [self.slots[group.group_id] for group in groups] or [0]
        return "/".join(map(str, counts if len(set(counts)) > 1 else counts[:1]))


def plan_geometry(
    groups: Sequence[GroupSpec],
    *,
    budget_bytes: int,
    retention: int | None,
    reference_tokens: int,
    replay_boundaries: int = 1,
    group_slots: Mapping[int, int] = {},
) -> Geometry:
    """Divide ``budget_bytes``, those of one worker, among ``groups``.

    Let C be the most tokens per chunk of any full or window group, and N the slots of that group:
    they cover N * C tokens. Every other group has the slots that as many tokens need. With T the
    group's own tokens per chunk and b = ceil(N * C / T), these are

        full, window    b
        state           min(b, ceil(b / ceil(R / T)) * (states_per_request + 1))

    where ceil(R / T) is the blocks of the reference request and the 1 is for a junction. N is the
    largest integer whose slots fit. Where every group has the same T, b = N. Without full and
    window groups there is no request to size for, and every state group has N slots.

    Every group has a slot, and every state group a second one if all fit, as a new state needs
    room beside the one that it replaces. The slots given in ``group_slots`` are paid for first;
    the rest is divided as if the other groups were all.

    Args:
        groups: all groups of the engine.
        budget_bytes: bytes per worker.
        retention: as in ``states_per_request``.
        reference_tokens: R, the tokens of the request to size for.
        replay_boundaries: as in ``states_per_request``.
        group_slots: slots by group id that are not to be worked out.

    Raises:
        ConfigError: a number is out of range, ``group_slots`` names a group that does not exist or
            exceeds the budget, or the budget does not hold one slot of every group.
    """
    _check_request(retention, reference_tokens)
    given = _given_bytes(groups, group_slots, budget_bytes)
    others = [group for group in groups if group.group_id not in group_slots]
    request = _Request(reference_tokens, retention, replay_boundaries)
    sized = _size(others, budget_bytes - given, request)
    if sized is None:
        least = f"at least {given + _page(others)} bytes per worker: one slot of every group"
        beside = f", beside the {given} bytes of group_slots" if given else ""
        raise ConfigError("cpu_bytes_to_use", budget_bytes, least + beside)
    slots = {**group_slots, **sized}
    return Geometry(
        groups=tuple(groups),
        slots={group.group_id: slots[group.group_id] for group in groups},
        budget_bytes=budget_bytes,
        retention=retention,
        reference_tokens=reference_tokens,
    )


def states_per_request(
    reference_tokens: int, tokens_per_block: int, retention: int | None, replay_boundaries: int
) -> int | None:
    """How many states the engine keeps of one request; None for one at every block.

    With a ``retention`` of 0 tokens these are the ``replay_boundaries``: the last block boundary
    before the request's end, where a repeated request continues, and with speculative decoding
    one more. A retention of k tokens adds a state every k tokens, of which one may be the replay
    boundary. (vLLM's ``prefix_cache_retention_interval`` and ``reachable_block_mask``.)
    """
    if not retention:
        return None if retention is None else replay_boundaries
    replay = (reference_tokens - 1) // tokens_per_block * tokens_per_block
    return reference_tokens // retention + (replay % retention != 0) + replay_boundaries - 1


@dataclass(frozen=True, slots=True)
class _Request:
    """The reference request."""

    tokens: int
    retention: int | None
    replay_boundaries: int

    def state_slots(self, boundaries: int, tokens_per_block: int) -> int:
        """State slots for as many such requests as have ``boundaries`` block boundaries."""
        states = states_per_request(
            self.tokens, tokens_per_block, self.retention, self.replay_boundaries
        )
        if states is None:
            return boundaries
        requests = _ceil_div(boundaries, _ceil_div(self.tokens, tokens_per_block))
        return min(boundaries, requests * (states + 1))


@dataclass(frozen=True, slots=True)
class _Curve:
    """Slots of every group as they grow with N; never fewer for a greater N."""

    groups: Sequence[GroupSpec]
    request: _Request
    least_states: int

    def slots(self, n: int) -> dict[int, int]:
        chunks = [group.tokens_per_chunk for group in _token_groups(self.groups)]
        if not chunks:
            return {group.group_id: max(n, self.least_states) for group in self.groups}
        tokens = n * max(chunks)
        return {group.group_id: self._group_slots(group, tokens) for group in self.groups}

    def _group_slots(self, group: GroupSpec, tokens: int) -> int:
        chunks = _ceil_div(tokens, group.tokens_per_chunk)
        if group.kind is not GroupKind.STATE:
            return max(chunks, 1)
        return max(self.request.state_slots(chunks, group.tokens_per_chunk), self.least_states)

    def used(self, n: int) -> int:
        slots = self.slots(n)
        return sum(slots[group.group_id] * group.slot_bytes for group in self.groups)


def _size(
    groups: Sequence[GroupSpec], budget_bytes: int, request: _Request
) -> dict[int, int] | None:
    """Return the most slots that fit, or None if not even one of every group does."""
    if not groups:
        return {}
    # Some group has N slots, so that this N is too great.
    too_many = budget_bytes // min(group.slot_bytes for group in groups) + 1
    for least_states in (2, 1):
        curve = _Curve(groups, request, least_states)
        fitting = bisect_right(range(too_many), budget_bytes, key=curve.used)
        if fitting:
            return curve.slots(fitting - 1)
    return None


def _check_request(retention: int | None, reference_tokens: int) -> None:
    if retention is not None and retention < 0:
        raise ConfigError("prefix_cache_retention_interval", retention, "None or at least 0 tokens")
    if reference_tokens <= 0:
        key = "mamba_state_slots_reference_tokens"
        raise ConfigError(key, reference_tokens, REFERENCE_TOKENS_ALLOWED)


def _given_bytes(
    groups: Iterable[GroupSpec], group_slots: Mapping[int, int], budget_bytes: int
) -> int:
    """Bytes of the slots that are given; raises ConfigError if they cannot be."""
    sizes = {group.group_id: group.slot_bytes for group in groups}
    for group_id, slots in group_slots.items():
        if group_id not in sizes:
            known = f"group ids {', '.join(map(str, sorted(sizes)))}"
            raise ConfigError("group_slots", {group_id: slots}, known)
    given = sum(sizes[group_id] * slots for group_id, slots in group_slots.items())
    if group_slots and given > budget_bytes:
        allowed = f"slots of at most {budget_bytes} bytes per worker; these take {given} bytes"
        raise ConfigError("group_slots", dict(group_slots), allowed)
    return given


def _token_groups(groups: Iterable[GroupSpec]) -> list[GroupSpec]:
    return [group for group in groups if group.kind is not GroupKind.STATE]


def _state_groups(groups: Iterable[GroupSpec]) -> list[GroupSpec]:
    return [group for group in groups if group.kind is GroupKind.STATE]


def _page(groups: Iterable[GroupSpec]) -> int:
    return sum(group.slot_bytes for group in groups)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
