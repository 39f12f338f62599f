# SPDX-License-Identifier: Apache-2.0
"""A secondary tier of tags, as slow as chance will have it, that now and then fails."""

import random
from collections import Counter
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("vllm", reason="the harness drives vLLM's scheduler")

from tests.vllm.tags import Block, TaggedWorker
from tiercache.blocks import Key
from tiercache.tiers.base import Batch, Done, SecondaryTier, Spill, TierStats

Chunk = list[Block | None]


class Started(NamedTuple):
    batch: Batch
    loads: bool
    fails: bool


class TagTier(SecondaryTier):
    """Copies chunks of ``worker``'s host memory at the very end of each job.

    What is being loaded holds nothing until then, and afterwards, too, if the job fails.
    """

    kind = "tags"

    def __init__(
        self, worker: TaggedWorker, luck: random.Random, *, entries: int, spill: Spill
    ) -> None:
        memory: Any = SimpleNamespace(record_bytes=Counter[int]())
        for group_id in worker.slots:
            memory.record_bytes[group_id] = 16 << 20  # some entries a job
        super().__init__("tags0", memory, spill=spill)
        self.loaded = 0
        self.failed = 0
        self._worker = worker
        self._luck = luck
        self._entries = entries
        self._chunks: dict[Key, Chunk] = {}
        self._started: list[Started] = []

    def has(self, key: Key) -> bool:
        return key in self._chunks

    def missing(self, keys: Collection[Key]) -> list[Key]:
        storing = {key for job in self._started if not job.loads for key in job.batch.keys}
        return [key for key in keys if key not in self._chunks and key not in storing]

    def store(self, batch: Batch) -> bool:
        if self._luck.random() < 0.05:
            return False
        self._started.append(Started(batch, loads=False, fails=self._luck.random() < 0.05))
        return True

    def load(self, batch: Batch) -> None:
        for slot in batch.slots:
            self._worker.host[batch.group_id, slot] = self._nothing()
        self._started.append(Started(batch, loads=True, fails=self._luck.random() < 0.1))

    def _nothing(self) -> Chunk:
        return [None] * self._worker.blocks_per_chunk

    def poll(self) -> list[Done]:
        ended = [job for job in self._started if self._luck.random() < 0.4]
        self._started = [job for job in self._started if job not in ended]
        return [self._end(job) for job in ended]

    def _end(self, job: Started) -> Done:
        failed = self._load(job) if job.loads else self._store(job)
        self.failed += len(failed)
        return Done(job.batch.job_id, failed, 1, 0.01)

    def _load(self, job: Started) -> list[Key]:
        failed = []
        for key, slot in zip(job.batch.keys, job.batch.slots, strict=True):
            chunk = None if job.fails else self._chunks.get(key)
            if chunk is None:
                self._chunks.pop(key, None)
                failed.append(key)
            else:
                self.loaded += 1
                self._worker.host[job.batch.group_id, slot] = _copy(chunk)
        return failed

    def _store(self, job: Started) -> list[Key]:
        if job.fails:
            return job.batch.keys
        for key, slot in zip(job.batch.keys, job.batch.slots, strict=True):
            while len(self._chunks) >= self._entries:
                del self._chunks[next(iter(self._chunks))]
            host = self._worker.host.get((job.batch.group_id, slot), self._nothing())
            self._chunks[key] = _copy(host)
        return []

    def touch(self, keys: Collection[Key]) -> None:
        for key in filter(self.has, keys):
            self._chunks[key] = self._chunks.pop(key)

    def demote(self, keys: Collection[Key]) -> None:
        """Keeps no order that this could change."""

    def clear(self) -> None:
        self._chunks.clear()
        self._started = [job._replace(fails=job.fails or not job.loads) for job in self._started]

    @property
    def load_rate(self) -> float | None:
        return None

    def stats(self) -> TierStats:
        entries, jobs = len(self._chunks), len(self._started)
        return TierStats(self._entries, used=entries, entries=entries, jobs=jobs, healthy=True)

    def close(self) -> None:
        self.clear()


def _copy(chunk: Chunk) -> Chunk:
    return [block and block.copy() for block in chunk]
