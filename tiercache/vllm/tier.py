# SPDX-License-Identifier: Apache-2.0
"""Our NVMe tier behind vLLM's own tiering manager, ``TieringOffloadingSpec``.

Covers the translation: vLLM's keys, rows and jobs to records, slots and batches, and back. What
vLLM's manager does not tell a tier, the tier cannot use: it is written through, evicts by recency
alone, and brings back what is asked for, block by block.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from os import environ
from pathlib import Path
from typing import Any, ClassVar

import vllm
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingSpec,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

from tiercache.blocks import GROUP_SUFFIX_BYTES, GroupKind, GroupSpec, Key, group_suffix
from tiercache.errors import ConfigError
from tiercache.tierconfig import TierConfig, parse_tier
from tiercache.tiers.base import Batch, Done, SlotMemory
from tiercache.tiers.factory import open_tiers
from tiercache.vllm.compat import check_version
from tiercache.vllm.fingerprint import weights
from tiercache.vllm.logs import join_vllm_log

#: Bytes that are stored as one piece: several go to the disk at once.
PIECE_BYTES = 64 << 20
#: The only group on disk: vLLM's rows are all of one size, and it ranks them in one order.
GROUP = 0
_SUFFIX = group_suffix(GROUP)

#: Names of the parameters of what is overridden or called here: see ``compat.CONTRACT``.
CONTRACT: Mapping[Callable[..., Any], tuple[str, ...]] = {
    SecondaryTierFactory.create_secondary_tier: (
        "tier_config",
        "primary_kv_view",
        "offloading_spec",
    ),
    SecondaryTierManager.__init__: (
        "offloading_spec",
        "primary_kv_view",
        "tier_type",
        "backpressure_detector",
    ),
    SecondaryTierManager.lookup: ("key", "req_context"),
    SecondaryTierManager.submit_store: ("job_metadata",),
    SecondaryTierManager.submit_load: ("job_metadata",),
    SecondaryTierManager.get_finished_jobs: (),
    SecondaryTierManager.touch: ("keys", "req_context"),
    SecondaryTierManager.on_new_request: ("req_context",),
    SecondaryTierManager.drain_jobs: (),
    SecondaryTierManager.shutdown: (),
    TransferJob: ("job_id", "keys", "chunk_ids", "is_promotion", "req_context"),
    JobResult: ("job_id", "success", "successful_keys", "transfer_time", "transfer_bytes"),
}


@dataclass(slots=True)
class _Job:
    """A job of vLLM's, and what has come of it so far."""

    job_id: int
    slot_of: dict[Key, int]
    open: int = 1
    """Pieces that have not ended, and 1 as long as more may begin."""
    failed: set[Key] = field(default_factory=set)
    nbytes: int = 0
    seconds: float = 0.0

    def result(self) -> JobResult:
        good = [_theirs(key) for key in self.slot_of if key not in self.failed]
        return JobResult(
            job_id=self.job_id,
            success=not self.failed,
            successful_keys=good if self.failed and good else None,
            transfer_time=self.seconds,
            transfer_bytes=self.nbytes,
        )


class NvmeTier(SecondaryTierManager):
    """Made by vLLM's factory; ``settings`` are those of a tier of the type ``nvme``.

    Locking: none, as vLLM's manager calls it under its own. Raises at start-up only:
        ConfigError: a setting is wrong, or the path cannot be used.
        TierCacheError: what lies there cannot be opened.
        UnsupportedError: the vLLM version is not supported.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        **settings: object,
    ) -> None:
        join_vllm_log()
        check_version()
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = Locality.LOCAL
        self._pieces: dict[int, _Job] = {}
        self._ids = count()
        self._finished: list[JobResult] = []
        group = GroupSpec(GROUP, GroupKind.FULL, 1, self.block_size_bytes)
        config = _parse(tier_type, settings)
        self._memory = SlotMemory([group], {GROUP: [primary_kv_view.cast("B")]})
        try:
            (self._tier,) = open_tiers(
                [config],
                self._memory,
                [group],
                {GROUP: len(primary_kv_view)},
                stock_fingerprint(offloading_spec.config),
            )
        except BaseException:
            self._let_go()
            raise

    # --- what is there

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return LookupResult.HIT if self._tier.has(_ours(key)) else LookupResult.MISS

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._tier.touch(list(map(_ours, keys)))

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    # --- jobs

    def submit_store(self, job_metadata: TransferJob) -> None:
        job = _begin(job_metadata)
        for keys in self._divide(self._tier.missing(job.slot_of)):
            batch = self._batch(job, keys)
            if not self._tier.store(batch):
                self._end(Done(batch.job_id, keys, 0, 0.0))
        self._settle(job)

    def submit_load(self, job_metadata: TransferJob) -> None:
        job = _begin(job_metadata)
        self._tier.touch(job.slot_of)
        self._tier.load(self._batch(job, list(job.slot_of)))
        self._settle(job)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        for done in self._tier.poll():
            self._end(done)
        finished, self._finished = self._finished, []
        return finished

    def drain_jobs(self) -> None:
        """Wait for the disk, however long it takes: a slot that it still fills must not be used."""
        while self._pieces:
            for done in self._tier.poll():
                self._end(done)
            time.sleep(0.001)

    def _divide(self, keys: Sequence[Key]) -> Iterator[list[Key]]:
        step = max(1, PIECE_BYTES // self.block_size_bytes)
        return (list(keys[first : first + step]) for first in range(0, len(keys), step))

    def _batch(self, job: _Job, keys: list[Key]) -> Batch:
        batch = Batch(next(self._ids), GROUP, keys, [job.slot_of[key] for key in keys])
        self._pieces[batch.job_id] = job
        job.open += 1
        return batch

    def _end(self, done: Done) -> None:
        job = self._pieces.pop(done.job_id)
        job.failed.update(done.failed)
        job.nbytes += done.nbytes
        job.seconds = max(job.seconds, done.seconds)
        self._settle(job)

    def _settle(self, job: _Job) -> None:
        job.open -= 1
        if not job.open:
            self._finished.append(job.result())

    # --- the end

    def shutdown(self) -> None:
        """Finish what runs, drop what waits, let go of vLLM's memory. May be called twice."""
        self._tier.close()
        self._let_go()

    def _let_go(self) -> None:
        """Whoever hangs keeps views of its own, without which vLLM cannot unmap the rows."""
        for region in self._memory.regions():
            region.release()


def _begin(job: TransferJob) -> _Job:
    slots = map(int, job.chunk_ids)
    return _Job(job.job_id, dict(zip(map(_ours, job.keys), slots, strict=True)))


def _ours(key: OffloadKey) -> Key:
    """vLLM's key as one of our only group, its own group ahead: a checksum starts from there."""
    return Key(key[-GROUP_SUFFIX_BYTES:] + key[:-GROUP_SUFFIX_BYTES] + _SUFFIX)


def _theirs(key: Key) -> OffloadKey:
    return OffloadKey(key[GROUP_SUFFIX_BYTES:-GROUP_SUFFIX_BYTES] + key[:GROUP_SUFFIX_BYTES])


def _parse(tier_type: str, settings: Mapping[str, object]) -> TierConfig:
    if settings.get("spill", "on_store") != "on_store":
        allowed = "'on_store': vLLM's manager says nothing of what it evicts"
        raise ConfigError(f"{tier_type}.spill", settings["spill"], allowed)
    return parse_tier(tier_type, {"type": "nvme", **settings})


def stock_fingerprint(config: OffloadingConfig) -> dict[str, object]:
    """All that vLLM tells its tiers of what changes the bytes of a block.

    Less than ``fingerprint.fingerprint`` knows: a model is its name, and if that is a directory
    the weights in it. Not its revision, the attention backend, or the types of states.
    """
    return {
        "engine": f"vllm {vllm.__version__}",
        "device": f"{current_platform.device_type} {current_platform.get_device_name()}",
        "manager": "TieringOffloadingSpec",
        "model": config.model.name,
        "weights": weights(Path(config.model.name)),
        "dtype": config.model.dtype,
        "kv_layout": config.kv_cache_layout,
        "canonical_layout": config.canonical_layout,
        "replicated_layout": config.replicated_layout,
        "worker_bytes_per_block": config.worker_kv_bytes_per_block,
        "cache": asdict(config.cache),
        "groups": [asdict(group) for group in config.groups],
        "parallel": asdict(config.parallel),
        "hash_seed": f"PYTHONHASHSEED={environ.get('PYTHONHASHSEED')}",
    }
