# SPDX-License-Identifier: Apache-2.0
"""The Mooncake tier: what it knows of the store, its jobs, and when it leaves the store alone.

Covers the decisions and the books, all in the scheduler's thread. The calls are made by ``records``
in threads of their own; what came of them comes back through ``poll`` and ``seek``.
"""

import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import filterfalse
from math import inf
from typing import NamedTuple

from tiercache.blocks import Key
from tiercache.errors import TierCacheError
from tiercache.tierconfig import MooncakeConfig
from tiercache.tiers.base import Batch, Done, SecondaryTier, SlotMemory, TierStats
from tiercache.tiers.mooncake.client import Client, connect, is_unreached
from tiercache.tiers.mooncake.known import Known
from tiercache.tiers.mooncake.link import Link
from tiercache.tiers.mooncake.questions import Question, Questions
from tiercache.tiers.mooncake.records import Records, Result
from tiercache.tiers.nvme.breaker import Breaker
from tiercache.tiers.nvme.io import IOEngine, in_thread
from tiercache.tiers.nvme.namespace import namespace

logger = logging.getLogger(__name__)

#: Version of the objects and of their names.
FORMAT = 1
#: How long ``close`` lets waiting stores go on, and then running ones.
CLOSE_S = 3.0
REPORT_INTERVAL_S = 10.0


@dataclass(eq=False, slots=True)
class Job:
    """A batch that has not ended."""

    batch: Batch
    loads: bool
    era: int
    started: float
    parts: int = 1
    """Calls whose outcome has not been heard."""
    failed: list[Key] = field(default_factory=list)


class Outcome(NamedTuple):
    """What a call came to."""

    job: Job
    result: Result
    error: Exception | None = None
    asked: bool = True
    """Whether the store was asked at all."""


class MooncakeTier(SecondaryTier):
    """Blocks in the memory of many machines, found by every server of the same fingerprint.

    Args:
        name: what the tier is called in logs and metrics.
        memory: the primary tier's slots.
        config: the settings.
        fingerprint: all that changes what the bytes of a block mean.
        clock: seconds that only grow.
        connect: makes the client.

    ``clear`` leaves the namespace that this server shares: the others' blocks may not be ours any
    more, and ours not theirs. Raises: TierCacheError if it cannot be opened; nothing afterwards.
    """

    kind = "mooncake"
    seeks = True

    def __init__(
        self,
        name: str,
        memory: SlotMemory,
        *,
        config: MooncakeConfig,
        fingerprint: Mapping[str, object],
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[str, MooncakeConfig], Client] = connect,
    ) -> None:
        super().__init__(name, memory, spill=config.spill)
        self._config = config
        self._now = clock
        self._space = f"tiercache/{_namespace(fingerprint, memory)}"
        self._era = 0
        self._counters: Counter[str] = Counter()
        self._jobs: dict[Job, None] = {}
        self._outcomes: deque[Outcome] = deque()
        self._known = Known(memory.record_bytes, config.capacity)
        self._readable: Collection[Key] = self._known.confirmed
        """What can be loaded: all that is known, or nothing while the store is left alone."""
        self._link, self._storing, self._loading = Link(), Breaker(), Breaker()
        self._rate: float | None = None
        self._next_report = self._heard = -inf
        self._closed = False
        self._client = connect(name, config)
        try:
            self._open(config)
        except BaseException:
            self._client.close()
            raise
        logger.info("tiercache tier %s: store at %s, %s", name, config.master, self._space)

    def _open(self, config: MooncakeConfig) -> None:
        self._records = Records(self._client, self.memory, config.queue_depth)
        name = f"tiercache-{self.name}"
        self._copies = IOEngine(config.queue_depth, name, config.switch_interval)
        try:
            self._questions = Questions(f"{name}-asks", self._records.exist)
        except BaseException:
            self._copies.close(CLOSE_S)
            raise

    # --- what is there

    def has(self, key: Key) -> bool:
        return key in self._readable

    def missing(self, keys: Collection[Key]) -> list[Key]:
        return self._known.missing(keys)

    def touch(self, keys: Collection[Key]) -> None:
        self._known.touch(keys)

    def demote(self, keys: Collection[Key]) -> None:
        self._known.demote(keys)

    def seek(self, keys: Collection[Key]) -> Callable[[], bool] | None:
        now = self._now()
        keys = self._known.doubtful(keys, now) if self._link.up and not self._closed else ()
        if not keys:
            return None
        question = Question(keys, self._space, now, self._config.capacity)
        return partial(self._is_waiting, question) if self._questions.ask(question) else None

    def _is_waiting(self, question: Question) -> bool:
        self._hear()
        if question.done or not self._link.up:
            return False
        now = self._now()
        if self._questions.answered or now - question.asked < self._config.lookup_timeout_s:
            return True
        self._lose(f"no answer within {self._config.lookup_timeout_s:g} s", now)
        return False

    def _hear(self) -> None:
        """Take in what was answered, as much as one step has time for."""
        now = self._now()
        for answer in self._questions.hear():
            question = answer.question
            in_time = now - question.asked < self._config.lookup_timeout_s
            question.asked, question.done = now, answer.last
            if not question.keys:
                self._pinged(now, well=in_time and not answer.lost)
            elif answer.lost:
                self._lose("the master does not answer", now)
            elif question.space == self._space and self._link.up:
                self._link.answered()
                question.room = self._known.found(answer.found, now, question.room)
                self._counters["found"] += len(answer.found)

    # --- jobs

    def store(self, batch: Batch) -> bool:
        now = self._now()
        taken = (
            self._link.up
            and not self._closed
            and self._storing.allows(now)
            and self._known.begin(batch.group_id, batch.keys)
        )
        if taken:
            job = Job(batch, loads=False, era=self._era, started=now)
            copy = partial(self._records.store, forks=frozenset(batch.forks))
            call = partial(self._call, job, copy, batch.keys, batch.slots)
            taken = self._copies.submit(partial(call, self._space), urgent=False)
            if taken:
                self._jobs[job] = None
            else:
                self._known.end(batch.keys, batch.keys, now)
        self._counters["declined"] += 0 if taken else len(batch.keys)
        return taken

    def load(self, batch: Batch) -> None:
        pairs = zip(batch.keys, batch.slots, strict=True)
        here = {key: slot for key, slot in pairs if self.has(key)}
        keys, slots = list(here), list(here.values())
        job = Job(batch, loads=True, era=self._era, started=self._now())
        self._jobs[job] = None
        absent = [key for key in batch.keys if key not in here]
        self._outcomes.append(Outcome(job, Result(absent), asked=False))
        for part in self._records.calls(batch.group_id, len(keys)):
            job.parts += 1
            call = partial(self._call, job, self._records.load, keys[part], slots[part])
            if not self._copies.submit(partial(call, self._space), urgent=True):
                error = TierCacheError("the tier is closed")
                self._outcomes.append(Outcome(job, Result(keys[part]), error, asked=False))

    async def _call(
        self,
        job: Job,
        copy: Callable[[str, int, Sequence[Key], Sequence[int]], Result],
        keys: list[Key],
        slots: Sequence[int],
        space: str,
    ) -> None:
        try:
            result = await in_thread(copy, space, job.batch.group_id, keys, slots)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing was copied
            self._outcomes.append(Outcome(job, Result(keys), error))
        else:
            self._outcomes.append(Outcome(job, result))

    # --- what came of them

    def poll(self) -> list[Done]:
        self._hear()
        now = self._now()
        ended = []
        while self._outcomes:
            outcome = self._outcomes.popleft()
            outcome.job.parts -= 1
            outcome.job.failed += outcome.result.failed
            if outcome.asked:
                self._heard = now
                self._judge(outcome, now)
            if not outcome.job.parts:
                ended.append(self._end(outcome.job, now))
        if self._jobs:
            waited = now - max(self._heard, next(iter(self._jobs)).started)
            if waited > self._config.timeout_s:
                self._lose(f"no copy ended for {self._config.timeout_s:g} s", now)
        if not self._closed and self._link.ping(now):
            self._begin_ping(now)
        allowed = self._link.up and self._loading.allows(now)
        self._readable = self._known.confirmed if allowed else ()
        return ended

    def _begin_ping(self, now: float) -> None:
        if not self._questions.ask(Question((), self._space, now, 0)):
            self._link.pinged(now, well=False)

    def _pinged(self, now: float, *, well: bool) -> None:
        if self._link.pinged(now, well=well):
            logger.info("tiercache tier %s: the store answers again", self.name)

    def _lose(self, why: str, now: float) -> None:
        """Leave the store alone. What is known of it may not be true when it is back."""
        self._known.doubt()
        if self._link.lose(now):
            logger.warning("tiercache tier %s rests for a while: %s", self.name, why)

    def _judge(self, outcome: Outcome, now: float) -> None:
        """Tell a store that is gone from one that has no room, and from bad records."""
        job, result = outcome.job, outcome.result
        if result.corrupt:
            self._counters["corrupt"] += result.corrupt
            self._report("%d blocks do not match their checksums", result.corrupt)
        failed = len(result.failed) - result.corrupt - len(result.gone)
        self._counters["failed"] += failed
        if is_unreached(result.code):
            self._lose(f"error {result.code}", now)
            return
        if job.loads and job.era == self._era:
            useless = filterfalse(frozenset(result.gone).__contains__, result.failed)
            self._known.distrust(useless, now)
        breaker = self._loading if job.loads else self._storing
        verb = "loaded" if job.loads else "stored"
        if not failed:
            breaker.succeeded()
            return
        reason = outcome.error or f"error {result.code}"
        self._report("%d blocks were not %s: %s", failed, verb, reason)
        # Some that came show that the store is well: the others lay on a machine that is gone.
        if failed == len(job.batch.keys) and breaker.failed(now):
            logger.warning("tiercache tier %s: blocks are not %s for a while", self.name, verb)

    def _report(self, text: str, *args: object) -> None:
        now = self._now()
        if now >= self._next_report:
            self._next_report = now + REPORT_INTERVAL_S
            logger.warning("tiercache tier %s: " + text, self.name, *args)  # noqa: G003

    def _end(self, job: Job, now: float) -> Done:
        del self._jobs[job]
        failed = frozenset(job.failed)
        if job.era == self._era:
            if job.loads:
                self._known.drop(failed)
            else:
                self._known.end(job.batch.keys, failed, now)
        elif not job.loads:
            failed = frozenset(job.batch.keys)
        nbytes = (len(job.batch.keys) - len(failed)) * self.memory.record_bytes[job.batch.group_id]
        what = "loaded" if job.loads else "stored"
        count = len(job.batch.keys) - len(failed)
        self._counters.update({what: count, f"{what}_bytes": nbytes})
        seconds = max(0.0, now - job.started)
        if job.loads and nbytes and seconds:
            rate = nbytes / seconds
            self._rate = rate if self._rate is None else self._rate + (rate - self._rate) / 8
        return Done(job.batch.job_id, failed, nbytes, seconds)

    # --- the whole tier

    def clear(self) -> None:
        self._era += 1
        self._known.clear()
        self._space = f"{self._space.partition('+')[0]}+{secrets.token_hex(8)}"
        text = "tiercache tier %s: cleared, it shares nothing with other servers any more"
        logger.info(text, self.name)

    @property
    def load_rate(self) -> float | None:
        return self._rate

    def stats(self) -> TierStats:
        now = self._now()
        self._counters["evicted"] = self._known.evicted
        return TierStats(
            capacity=self._config.capacity,
            used=self._known.used,
            entries=len(self._known.confirmed),
            jobs=len(self._jobs),
            healthy=self._link.up and self._storing.allows(now) and self._loading.allows(now),
            counters=self._counters,
        )

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._known.doubt()
        self._readable = ()
        deadline = time.monotonic() + CLOSE_S
        while self._copies.pending and self._link.up and time.monotonic() < deadline:
            time.sleep(0.001)
        ended = [each.close(CLOSE_S) for each in (self._copies, self._questions)]
        if not all(ended):
            # A call that hangs owns its memory: it is neither taken back nor unmapped before.
            logger.warning("tiercache tier %s: the store hangs, left to its last call", self.name)
        self._client.close()


def _namespace(fingerprint: Mapping[str, object], memory: SlotMemory) -> str:
    records = {str(group_id): size for group_id, size in memory.record_bytes.items()}
    return namespace({**fingerprint, "record_bytes": records, "mooncake_format": FORMAT})
