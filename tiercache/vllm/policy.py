# SPDX-License-Identifier: Apache-2.0
"""Our LRU with demotion as an eviction policy of vLLM's own managers.

Covers what a policy can see there: the keys of a request with their positions, and which of them
are stored together. It is told neither settings nor what a group of the model is, so that it has
to find out for itself which groups hold recurrent states. Slots are vLLM's business.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus, order_request_keys
from vllm.v1.kv_offload.cpu.policies.factory import CachePolicyFactory

from tiercache.blocks import Key, by_group, group_suffix, key_hash
from tiercache.keytable import KeyTable
from tiercache.policies.lru import LRU
from tiercache.vllm.compat import check_version

#: How many blocks, counted back from the newest state, keep theirs.
KEEP_BLOCKS = 3

#: Names of the parameters of what is overridden or called here: see ``compat.CONTRACT``. Not
#: ``insert``, which is told the request from 0.33 on.
CONTRACT: Mapping[Callable[..., Any], tuple[str, ...]] = {
    CachePolicyFactory.get_cache_policy_cls: ("name", "module_path"),
    CachePolicy.__init__: ("cache_capacity",),
    CachePolicy.get: ("key",),
    CachePolicy.remove: ("key",),
    CachePolicy.touch: ("keys", "req_context"),
    CachePolicy.on_store_miss: ("keys", "req_context"),
    CachePolicy.on_request_finished: (
        "key_groups",
        "insertion_only_keys",
        "reused_keys",
        "req_context",
    ),
    CachePolicy.evict: ("n", "protected"),
    CachePolicy.clear: (),
    CachePolicy.mark_evictable: ("key",),
    CachePolicy.mark_non_evictable: ("key",),
    ReqContext.get_offload_key_position: ("key",),
    order_request_keys: ("key_groups", "req_context"),
}


class DemotingLRU(CachePolicy):
    """Evicts states that a newer one of their conversation replaces, then by recency.

    vLLM stores the attention blocks of a step together and every recurrent state alone. So a group
    is one of states until two of its blocks were stored at once, and as long as that was never
    seen of any group nothing is demoted. Where states of one conversation lie follows from the
    hashes of its other blocks. Where conversations part, a state is kept.

    Locking: none, as vLLM's manager calls it under its own. Raises: UnsupportedError when made, if
    the vLLM version is not supported; KeyError for a key that is not there, where vLLM's do.
    """

    def __init__(self, cache_capacity: int) -> None:
        check_version()
        super().__init__(cache_capacity)
        self._chunks: dict[Key, ChunkStatus] = {}
        self._number()
        self._together: dict[int, bool] = {}
        """Per group: whether two of its blocks were stored at once."""
        self._next: defaultdict[Key, set[bytes]] = defaultdict(set)
        """The blocks that came after a state, by their hashes: one, or two where it is a fork."""

    # --- what is there

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self._chunks.get(Key(key))

    def insert(
        self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext | None = None
    ) -> None:
        self._chunks[Key(key)] = chunk
        numbers = [self._free.pop()]
        self._numbers.put((Key(key),), numbers)
        self._order.insert(numbers, (Key(key),))
        if chunk.ref_cnt:
            self.mark_non_evictable(key)

    def remove(self, key: OffloadKey) -> None:
        self._order.remove(self._numbers.find((Key(key),)))
        self._forget(Key(key))

    def clear(self) -> None:
        self._number()
        self._chunks.clear()
        self._next.clear()

    def _number(self) -> None:
        """Begin anew with what the order knows a key by: a number of ours, as for a slot."""
        self._order = LRU(self.cache_capacity)
        self._numbers = KeyTable(self.cache_capacity)
        self._free = list(range(self.cache_capacity))

    def _forget(self, key: Key) -> ChunkStatus:
        self._next.pop(key, None)
        self._free += self._numbers.take((key,))
        return self._chunks.pop(key)

    # --- eviction

    def evict(
        self, n: int, protected: set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        victims = self._order.evict(n, frozenset(self._numbers.find(map(Key, protected))))
        if victims is None:
            return None
        keys = self._numbers.keys_in(victims.slots)
        return [(OffloadKey(key), self._forget(key)) for key in keys]

    def mark_evictable(self, key: OffloadKey) -> None:
        self._order.unpin(self._numbers.find((Key(key),)))

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """It keeps its place: vLLM does not say whether this is for a load; recency follows."""
        self._order.pin(self._numbers.find((Key(key),)), hit=False)

    # --- use

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self._order.touch(self._numbers.find(map(Key, reversed(list(keys)))))

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Learn from what is stored together; ranks nothing, as a key that is new has no rank."""
        for group_id, run in by_group(map(Key, keys)).items():
            self._together[group_id] = self._together.get(group_id, False) or len(run) > 1

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],
        reused_keys: set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        keys = order_request_keys(key_groups, req_context)
        self.touch(keys, req_context)
        if not any(self._together.values()):
            return
        hashes = _hashes(keys, req_context)
        old = [
            (at, key)
            for group_id, together in self._together.items()
            if not together
            for at, key in self._superseded(hashes, group_suffix(group_id))
        ]
        self._order.demote(self._numbers.find(key for _, key in sorted(old)))

    def _superseded(self, hashes: Sequence[bytes], suffix: bytes) -> list[tuple[int, Key]]:
        """States of a group that its newest one on the request replaces, each with its place."""
        places = [Key(block_hash + suffix) for block_hash in hashes]
        held = [at for at, key in enumerate(places) if key in self._chunks]
        old = [at for at in held if at < held[-1] - KEEP_BLOCKS]
        for at in old:
            following = self._next[places[at]]
            if len(following) < 2:
                following.add(hashes[at + 1])
        forks = [at for at in old if len(self._next[places[at]]) == 2]
        self._order.touch(self._numbers.find(places[at] for at in forks))
        return [(at, places[at]) for at in old if at not in forks]


def _hashes(keys: Iterable[OffloadKey], ctx: ReqContext) -> list[bytes]:
    """Hashes of the blocks of a request, the oldest first; not those that have no place in it."""
    ends = {ctx.get_offload_key_position(key): key_hash(Key(key)) for key in keys}
    return [ends[end] for end in sorted(end for end in ends if end is not None)]
