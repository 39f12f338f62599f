# SPDX-License-Identifier: Apache-2.0
"""``NvmeTier`` in the place of vLLM's tier on a file system.

Covers translation only: constructor arguments, jobs, and a file for each block. vLLM's tests look
at such a file and damage it; here it stands for a record in a segment, is there as long as the
tier has the record, and what is done to it is done to the record.
"""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, ScheduleEndContext
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob

from tiercache.blocks import GroupKind, GroupSpec, Key
from tiercache.tierconfig import NvmeConfig
from tiercache.tiers.base import Batch, Done, SlotMemory
from tiercache.tiers.nvme.index import index_bytes
from tiercache.tiers.nvme.space import slack_bytes
from tiercache.tiers.nvme.tier import NvmeTier

OURS = (NvmeTier,)
ROOM = {0: 16}
PATIENCE_S = 60


def install() -> None:
    from vllm.v1.kv_offload.tiering.fs import manager

    manager.FileSystemTierManager = HostDisk


class HostDisk(NvmeTier):
    """Takes vLLM's arguments; holds ``ROOM`` blocks."""

    events: Any = None

    def __init__(  # noqa: PLR0917 - vLLM's
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        root_dir: str,
        n_read_threads: int = 16,
        n_write_threads: int = 16,
        enable_kv_events: bool = False,
        locality: str | None = None,
        backpressure_detector: Any = None,
    ) -> None:
        strides = primary_kv_view.strides
        assert strides is not None
        group = GroupSpec(0, GroupKind.FULL, 16, strides[0])
        memory = SlotMemory([group], {0: [primary_kv_view.cast("B")]})
        room = ROOM[0] * group.slot_bytes + index_bytes(ROOM) + slack_bytes(ROOM)
        config = NvmeConfig(path=Path(root_dir), capacity=room, min_free=0)
        super().__init__(tier_type, memory, [group], ROOM, config=config, fingerprint={})
        self.file_mapper = Files(self, Path(root_dir))
        self._batches: dict[int, Batch] = {}
        self._refused: list[JobResult] = []
        # vLLM's tier looks up in threads; ours knows at once.
        answered = SimpleNamespace(empty=lambda: False)
        self._lookup_manager = SimpleNamespace(_pending_results=answered, _lookup_batch=[])

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return LookupResult.HIT if self.has(Key(key)) else LookupResult.MISS

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        pass

    def on_request_finished(self, req_context: ReqContext) -> None:
        pass

    def submit_store(self, job: TransferJob) -> None:
        self._begin(job, self.store)

    def submit_load(self, job: TransferJob) -> None:
        self.file_mapper.take_over()
        self._begin(job, self.load)

    def _begin(self, job: TransferJob, start: Callable[[Batch], bool | None]) -> None:
        slots = [int(chunk_id) for chunk_id in job.chunk_ids]
        batch = Batch(job.job_id, 0, [Key(key) for key in job.keys], slots)
        self._batches[job.job_id] = batch
        if start(batch) is False:
            self._refused.append(JobResult(job_id=job.job_id, success=False))

    def drain_jobs(self) -> None:
        """Wait; what ended meanwhile is told by ``get_finished_jobs``."""
        deadline = time.monotonic() + PATIENCE_S
        ended: list[Done] = []
        while self.stats().jobs and time.monotonic() < deadline:
            ended += self.poll()
            time.sleep(0.001)
        self._refused += map(self._result, ended)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        results = self._refused + list(map(self._result, self.poll()))
        self._refused = []
        self.file_mapper.update()
        return results

    def _result(self, done: Done) -> JobResult:
        keys = self._batches.pop(done.job_id).keys
        good = tuple(key for key in keys if key not in done.failed)
        if len(good) == len(keys):
            return JobResult(job_id=done.job_id, success=True)
        return JobResult(job_id=done.job_id, success=False, successful_keys=good or None)

    def take_events(self) -> Iterable[Any]:
        return ()

    def shutdown(self) -> None:
        self.close()


class Files:
    """A file for each block that was asked for."""

    INTACT = "a record of the tier\n"

    def __init__(self, tier: HostDisk, root: Path) -> None:
        self._tier = tier
        self._root = root
        self._files: dict[Key, Path] = {}

    def get_file_name(self, key: OffloadKey) -> str:
        path = self._root / f"{key.hex()}.block"
        self._files[Key(key)] = path
        self.update()
        return str(path)

    def update(self) -> None:
        """Let those files be there whose records the tier has."""
        for key, path in self._files.items():
            if self._tier.has(key) and not os.path.lexists(path):
                path.write_text(self.INTACT)
            elif not self._tier.has(key):
                path.unlink(missing_ok=True)

    def take_over(self) -> None:
        """Do to the records what was done to their files."""
        for key, path in self._files.items():
            if path.is_file() and path.read_text() != self.INTACT:
                self._damage(key)

    def _damage(self, key: Key) -> None:
        group = self._tier._groups[0]
        size, slot = group.records.record_bytes, group.table.slot_of[key]
        segments = sorted(self._root.rglob("*.seg"))
        per_segment = segments[0].stat().st_size // size
        number, index = divmod(slot, per_segment)
        with segments[number].open("r+b") as segment:
            segment.seek(index * size)
            segment.write(b"x" * 10)
