# SPDX-License-Identifier: Apache-2.0
"""The primary tier: the pools of all groups together, and the checkpoints across them.

Covers reserve, commit, fail, pin and finish. It moves no bytes and knows no engine; what goes
first is decided in ``demotion`` and the policies, how far a prefix can be restored in ``restore``.
"""

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from tiercache.blocks import (
    BlockHash,
    GroupKind,
    GroupSpec,
    Key,
    Lineage,
    by_group,
    key_group,
    key_hash,
)
from tiercache.checkpoints import CheckpointTree
from tiercache.demotion import Demoter
from tiercache.errors import InvariantError
from tiercache.events import EventKind, Journal
from tiercache.policies import make_policy
from tiercache.requests import Request
from tiercache.restore import NOWHERE, Elsewhere, Lookup, Planner, RestorePlan
from tiercache.slots import Evicted, Located, Presence, SlotCounts, SlotPool

Has = Callable[[Key], bool]


class Reservation(NamedTuple):
    """New slots: ``slots[i]`` of its group is to be filled with the block of ``keys[i]``."""

    keys: list[Key]
    slots: list[int]
    evicted: list[Key]


class PrimaryTier:
    """All groups of the primary tier.

    Args:
        groups: the groups that are cached.
        slots: slots per group id.
        tokens_per_hash: tokens that one block hash stands for.
        policy: name of the eviction policy of every pool.
        demote: whether superseded states are demoted.
        keep_blocks: how many blocks before the newest state keep theirs.
        demote_forks: whether a checkpoint with several continuations can be superseded.
        clock: seconds; used to remember when an entry was evicted.

    Locking: none; the caller holds one lock across every lookup and the pin that follows it.
    """

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        slots: Mapping[int, int],
        *,
        tokens_per_hash: int,
        policy: str = "lru",
        demote: bool = True,
        keep_blocks: int = 3,
        demote_forks: bool = False,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.pools = {
            group.group_id: SlotPool(group, capacity, make_policy(policy, capacity, group.kind))
            for group in groups
            for capacity in (slots[group.group_id],)
        }
        self.journal = Journal(clock)
        self.tokens_per_hash = tokens_per_hash
        self._planner = Planner(groups)
        self._demoter = Demoter(
            self.pools.values(),
            self.journal,
            tokens_per_hash=tokens_per_hash,
            demote=demote,
            keep_blocks=keep_blocks,
            demote_forks=demote_forks,
        )
        self._open: set[Request] = set()
        self._writers: dict[Key, Request] = {}
        self._arriving: Counter[BlockHash] = Counter()

    def _by_group(self, keys: Collection[Key]) -> Iterable[tuple[SlotPool, Collection[Key]]]:
        """Keys of each group, with its pool."""
        if len(self.pools) == 1:
            return ((pool, keys) for pool in self.pools.values())
        return ((self.pools[group_id], run) for group_id, run in by_group(keys).items())

    # --- requests

    @property
    def tree(self) -> CheckpointTree:
        """The complete checkpoints."""
        return self._demoter.tree

    @property
    def reused(self) -> int:
        """Demoted checkpoints that were used again."""
        return self._demoter.reused

    def keep_what(self, elsewhere: Has) -> None:
        """A state that is ``elsewhere`` is not lost when it is evicted here."""
        self._demoter.elsewhere = elsewhere

    def open(self, request_id: str, hashes: Sequence[BlockHash]) -> Request:
        """Begin a request whose block hashes are, or will grow to be, ``hashes``."""
        request = Request(request_id, Lineage(hashes, self.tokens_per_hash))
        self._open.add(request)
        self._demoter.tell_time()
        return request

    def finish(self, request: Request) -> None:
        """Commit the recency of what the request used; then demote what it superseded.

        Both wait until none of its stores is in flight: a block that became readable afterwards
        would be out of order, and only a state that is readable supersedes.
        """
        request.finished = True
        if not request.storing:
            self._conclude(request)

    def plan(
        self,
        request: Request,
        *,
        start: int,
        limit: int,
        elsewhere: Elsewhere = NOWHERE,
        without: Container[Key] = (),
    ) -> RestorePlan:
        """How far beyond ``start`` tokens the request can be restored, at most to ``limit``.

        With ``elsewhere``, what other tiers have: how far it could be if that was brought here.
        What is ``without``, in flight, does not count as here.
        """
        lookups = {
            group_id: Lookup(pool.ready.leading, pool.storing, without, elsewhere.leading)
            for group_id, pool in self.pools.items()
        }
        boundaries = partial(self._boundaries, request.lineage, elsewhere)
        return self._planner.plan(request.lineage, lookups, boundaries, start=start, limit=limit)

    def needed(self, request: Request, plan: RestorePlan) -> list[Key]:
        """Keys of all that ``plan`` restores, here or not."""
        return self._planner.needed(request.lineage, plan)

    def _boundaries(self, lineage: Lineage, elsewhere: Elsewhere, limit: int) -> Iterator[int]:
        """Boundaries in tokens at which there is or will be a checkpoint, the deepest first."""
        step = self.tokens_per_hash
        hashes = lineage.hashes[: max(limit, 0) // step]
        arriving, complete = self._arriving, self.tree.hashes
        for behind, block_hash in enumerate(reversed(hashes)):
            known = block_hash in complete or block_hash in arriving
            if known or (
                elsewhere is not NOWHERE and self._demoter.is_reachable(block_hash, elsewhere.has)
            ):
                yield (len(hashes) - behind) * step

    # --- stores

    def state(self, key: Key) -> Presence:
        pool = self.pools.get(key_group(key))
        return pool.state(key) if pool is not None else Presence.MISSING

    def reserve(self, request: Request, keys: Collection[Key]) -> Reservation | None:
        """Reserve a slot for every key that has none, evicting by policy.

        All or nothing over all groups: None, and nothing evicted, if one of them has no room.
        No key of this call is evicted by it, nor an attention block that the request has used. The
        result is sorted by group, each in the order given.
        """
        self._demoter.tell_time()
        wanted = []
        for pool, offered in self._by_group(keys):
            distinct = list(dict.fromkeys(offered))
            missing = pool.missing(distinct)
            request.use(pool.spec.group_id, distinct)
            wanted.append((pool, missing, _difference(distinct, missing)))
        for pool, missing, held in wanted:
            if not pool.fits(len(missing), self._protected(request, pool, held)):
                self._record(EventKind.REFUSED, pool, missing, request)
                return None
        reservation = Reservation([], [], [])
        for pool, missing, held in wanted:
            slots, evicted = pool.reserve(missing, self._protected(request, pool, held))
            reservation.keys.extend(missing)
            reservation.slots.extend(slots)
            reservation.evicted.extend(evicted.keys)
            self._demoter.revive(pool, held)
            self._reserved(request, pool, missing)
            self._evicted(request, pool, evicted)
        return reservation

    def _protected(self, request: Request, pool: SlotPool, held: list[Key]) -> Collection[Key]:
        """What a request must not evict: what it offers and, of attention, its own beginning."""
        if pool.spec.kind is GroupKind.FULL:
            return request.used[pool.spec.group_id]
        return frozenset(held)

    def _reserved(self, request: Request, pool: SlotPool, keys: list[Key]) -> None:
        request.insert(pool.spec.group_id, keys)
        request.storing += len(keys)
        self._writers.update(dict.fromkeys(keys, request))
        if pool.spec.kind is GroupKind.STATE:
            hashes = [key_hash(key) for key in keys]
            request.states.extend(hashes)
            self._arriving.update(hashes)

    def writer(self, key: Key) -> Request:
        """The request that reserved ``key``, until its commit is recorded. Raises KeyError."""
        return self._writers[key]

    def commit(self, keys: Collection[Key], kind: EventKind = EventKind.STORED) -> None:
        """Make reserved keys readable; keys that are not in flight are ignored.

        ``kind`` is ``PROMOTED`` for what came from another tier.
        """
        for pool, group_keys in self._by_group(keys):
            stored = pool.commit(group_keys)
            self._record(kind, pool, stored)
            self._arrived(pool, stored)

    def fail(self, keys: Collection[Key]) -> None:
        """Free the slots of reserved keys; keys that are not in flight are ignored."""
        for pool, group_keys in self._by_group(keys):
            failed = pool.fail(group_keys)
            self._record(EventKind.FAILED, pool, failed)
            self._arrived(pool, failed)

    def _arrived(self, pool: SlotPool, keys: list[Key]) -> None:
        """Keys are no longer in flight: complete their checkpoints, conclude their requests."""
        if pool.spec.kind is GroupKind.STATE:
            for key in keys:
                block_hash = key_hash(key)
                self._arriving[block_hash] -= 1
                if not self._arriving[block_hash]:
                    del self._arriving[block_hash]
                self._demoter.complete(self._writers[key], block_hash)
        for request, arrived in Counter(map(self._writers.pop, keys)).items():
            request.storing -= arrived
            if request.finished and not request.storing:
                self._conclude(request)

    # --- loads

    def pin(self, request: Request, keys: Collection[Key]) -> list[int]:
        """Pin ready keys for a load; returns their slots, sorted by group as by ``reserve``.

        A hit undoes the demotion of what it consumes. Raises KeyError, and pins nothing, if a key
        is not ready.
        """
        located = self._locate(keys)
        for pool, group_keys, slots in located:
            pool.pin(slots, hit=True)
            request.use(pool.spec.group_id, group_keys)
            self._record(EventKind.RESTORED, pool, group_keys, request)
            if pool.spec.kind is GroupKind.STATE:
                self._demoter.revive(pool, group_keys)
        request.loads.append(located)
        return list(chain.from_iterable(slots.tolist() for _, _, slots in located))

    def hold(self, keys: Collection[Key]) -> list[int]:
        """Pin ready keys that another tier reads or a restore waits for: no use, no hit.

        Returns their slots as ``pin`` does, and raises KeyError as it does.
        """
        located = self._locate(keys)
        for pool, _, slots in located:
            pool.pin(slots, hit=False)
        return list(chain.from_iterable(slots.tolist() for _, _, slots in located))

    def _locate(self, keys: Collection[Key]) -> list[Located]:
        """Keys and their slots by pool; KeyError before anything is done with one of them."""
        grouped = ((pool, list(group_keys)) for pool, group_keys in self._by_group(keys))
        return [Located(pool, run, pool.locate(run)) for pool, run in grouped]

    def release(self, request: Request, keys: Collection[Key]) -> None:
        """End a load: undo one ``pin`` of each key."""
        load = request.loaded(keys)
        if load is None:
            self.unpin(keys)
            return
        for pool, _, slots in load:
            pool.unpin_slots(slots)

    def unpin(self, keys: Collection[Key], *, hit: bool = True) -> None:
        """Undo one ``pin`` of each key, or one ``hold``, which was no hit.

        Keys that are not pinned are ignored.
        """
        for pool, group_keys in self._by_group(keys):
            pool.unpin(group_keys, hit=hit)

    # --- endings

    def _conclude(self, request: Request) -> None:
        """Settle what a finished request leaves behind; none of its stores is in flight."""
        self._open.discard(request)
        for group_id, used in request.used.items():
            pool = self.pools[group_id]
            if pool.spec.kind is GroupKind.STATE:
                # What was demoted since it was used is superseded: recency must not revive it.
                for key in pool.demoted(used):
                    del used[key]
            pool.settle(used)
        for block_hash in dict.fromkeys(request.states):
            if self.tree.get(block_hash) is None and block_hash not in self._arriving:
                self._demoter.discard(request, block_hash)
        request.forget()
        self._demoter.supersede(request)

    def _evicted(self, request: Request, pool: SlotPool, evicted: Evicted) -> None:
        demoted, live = evicted.keys[: evicted.demoted], evicted.keys[evicted.demoted :]
        self._record(EventKind.EVICTED_DEMOTED, pool, demoted, request)
        self._record(EventKind.EVICTED_LIVE, pool, live, request)
        if pool.spec.kind is GroupKind.STATE:
            for key in evicted.keys:
                self._demoter.lose(request, key_hash(key), self._open)
        elif pool.spec.kind is GroupKind.FULL:
            self._demoter.cut(request, evicted.keys)

    def _record(
        self, kind: EventKind, pool: SlotPool, keys: list[Key], request: Request | None = None
    ) -> None:
        request_id = "" if request is None else request.request_id
        self.journal.record(kind, pool.spec.group_id, keys, request_id)

    # --- the whole tier

    def counts(self) -> dict[int, SlotCounts]:
        """Slots by state, per group."""
        return {group_id: pool.counts() for group_id, pool in self.pools.items()}

    def reset(self, foreign: Mapping[int, Collection[int]] = MappingProxyType({})) -> None:
        """Drop every entry, whatever its state; running requests go on from nothing.

        ``foreign`` are slots per group id that another tier still writes to: see `SlotPool.clear`.
        """
        for group_id, pool in self.pools.items():
            self._record(EventKind.RESET, pool, list(pool.ready))
            pool.clear(foreign.get(group_id, ()))
        self.tree.clear()
        self._writers.clear()
        self._arriving.clear()
        for request in self._open:
            request.forget()
        self._open = {request for request in self._open if not request.finished}

    def validate(self) -> None:
        """Check every invariant in O(slots); raises InvariantError."""
        for pool in self.pools.values():
            pool.validate()
        self.tree.validate()
        states = [p for p in self.pools.values() if p.spec.kind is GroupKind.STATE]
        storing = {key for pool in self.pools.values() for key in pool.storing}
        arriving = (key_hash(key) for pool in states for key in pool.storing)
        boundaries = {key_hash(key) for pool in states for key in pool.ready}
        complete = set(filter(self._demoter.is_complete, boundaries))
        checks = {
            "every key in flight has a writer": storing == self._writers.keys(),
            "requests know how much of them is in flight": dict(Counter(self._writers.values()))
            == {request: request.storing for request in self._open if request.storing},
            "boundaries in flight are counted": self._arriving == Counter(arriving),
            "the tree holds the complete checkpoints": complete == self.tree.hashes,
            "a demoted checkpoint has demoted members": all(
                node.demoted <= bool(pool.demoted((key,)))
                for node in self.tree
                for pool, key in self._demoter.members(node.block_hash)
            ),
            "a fork is live": self._demoter.demote_forks
            or not any(node.demoted and node.is_fork for node in self.tree),
        }
        for invariant, holds in checks.items():
            if not holds:
                raise InvariantError(f"{invariant}: violated")


def _difference(keys: list[Key], without: list[Key]) -> list[Key]:
    """Keys that are not in ``without``, which is a part of them in the same order."""
    if not without:
        return keys
    if len(without) == len(keys):
        return []
    absent = frozenset(without)
    return [key for key in keys if key not in absent]
