# SPDX-License-Identifier: Apache-2.0
"""vLLM's real scheduler and connector around a model runner that computes tags.

The runner does with its blocks what vLLM's runner does with them, at the same moments, and looks
at every tag that a model would read: `FakeEngine.wrong` lists what was not what it had to be.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

pytest.importorskip("vllm", reason="the harness drives vLLM's scheduler")

from vllm.config import ModelConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from tests.vllm.setups import Setup, kv_cache_config, vllm_config
from tests.vllm.tags import Device, TaggedWorker, chain
from tiercache.vllm.connector import TierCacheConnector
from tiercache.vllm.manager import TierCacheManager

VOCABULARY = 512
#: A prompt is computed in some ten steps; what takes this many never ends.
PATIENCE = 3000


class Answer(NamedTuple):
    """What came of a request: its tokens, and how much of its prompt came from where."""

    tokens: list[int]
    restored: int
    on_device: int


@dataclass
class Row:
    """What the runner keeps of one request."""

    tokens: list[int]
    tables: list[list[int]]
    computed: int
    tags: list[int] = field(default_factory=lambda: [0])
    state_column: int | None = None
    """Column of the running state, None before the first step."""
    accepted: int = 1
    """How many of the columns from there on hold a state that counts."""

    def prefix(self, drafts: Sequence[int] = ()) -> list[int]:
        """Tags of all prefixes, with ``drafts`` taken for accepted."""
        if len(self.tags) <= len(self.tokens):
            self.tags = chain(self.tokens, self.tags)
        return chain([*self.tokens, *drafts], self.tags) if drafts else self.tags


class Runner:
    """Computes tags for the requests of a step."""

    def __init__(self, groups: Sequence[Any], device: Device, drafts: int) -> None:
        self.wrong: list[str] = []
        self.luck = iter(()) if not drafts else _alternating()
        self._groups = groups
        self._device = device
        self._drafts = drafts
        self._rows: dict[str, Row] = {}

    def update(self, step: SchedulerOutput) -> None:
        """Take over what the scheduler says of blocks and requests."""
        for request_id in step.finished_req_ids:
            self._rows.pop(request_id, None)
        for block_id in step.new_block_ids_to_zero or ():
            self._device.zero(block_id)
        for copy in step.kv_cache_block_copies or ():
            self._device.copy(copy.src_block_id, copy.dst_block_id)
        for new in step.scheduled_new_reqs:
            tables = [list(ids) for ids in new.block_ids]
            tokens = list(new.prefill_token_ids or new.prompt_token_ids or ())
            self._rows[new.req_id] = Row(tokens, tables, new.num_computed_tokens)
        cached = step.scheduled_cached_reqs
        for i, request_id in enumerate(cached.req_ids):
            row, blocks = self._rows[request_id], cached.new_block_ids[i]
            row.computed = cached.num_computed_tokens[i]
            if request_id in cached.resumed_req_ids:
                tables = [list(ids) for ids in blocks or ()]
                tokens = list(cached.all_token_ids[request_id])
                self._rows[request_id] = Row(tokens, tables, cached.num_computed_tokens[i])
            else:
                for table, ids in zip(row.tables, blocks or (), strict=False):
                    table.extend(ids)

    def run(self, step: SchedulerOutput) -> list[list[int]]:
        """Check and compute every request of the step; returns the tokens of each."""
        return [
            self._run(request_id, count, step.scheduled_spec_decode_tokens.get(request_id, []))
            for request_id, count in step.num_scheduled_tokens.items()
        ]

    def _run(self, request_id: str, count: int, drafts: Sequence[int]) -> list[int]:
        row = self._rows[request_id]
        tags = row.prefix(drafts)
        for group_id, group in enumerate(self._groups):
            self._check(request_id, row, group_id, group.kv_cache_spec, tags)
            self._compute(row, group_id, group.kv_cache_spec, tags, count, len(drafts))
        certain = row.computed + count - len(drafts)
        if certain < len(row.tokens):
            self._settle(row, certain, count - len(drafts), accepted=1, drafts=len(drafts))
            return []
        sampled = self._sample(row, drafts)
        row.tokens += sampled
        self._settle(row, certain, count - len(drafts), accepted=len(sampled), drafts=len(drafts))
        return sampled

    def _sample(self, row: Row, drafts: Sequence[int]) -> list[int]:
        tags = row.prefix()
        tag, sampled = tags[-1], [following(tags[-1])]
        for draft in drafts:
            if draft != sampled[-1]:
                break
            tag = hash((tag, draft))
            sampled.append(following(tag))
        return sampled

    def propose(self) -> DraftTokenIds:
        """Drafts for every request: what it will say, or not."""
        proposed = []
        for row in self._rows.values():
            tag, drafts = row.prefix()[-1], list[int]()
            for _ in range(self._drafts):
                drafts.append((following(tag) + (not next(self.luck))) % VOCABULARY)
                tag = hash((tag, drafts[-1]))
            proposed.append(drafts)
        return DraftTokenIds(list(self._rows), proposed)

    # --- what is read

    def _check(self, request_id: str, row: Row, group_id: int, spec: Any, tags: list[int]) -> None:
        """Note what is not what the tokens before ``row.computed`` make of it."""
        if not spec.prefix_cacheable or not row.computed:
            return
        if isinstance(spec, MambaSpec):
            column = (row.computed - 1) // spec.block_size
            if row.state_column is not None:
                column = row.state_column + row.accepted - 1
            expected = [(column, 0, tags[row.computed])]
        else:
            start = 0
            if isinstance(spec, SlidingWindowSpec):
                start = max(0, row.computed - spec.sliding_window + 1)
            elif isinstance(spec, ChunkedLocalAttentionSpec):
                start = row.computed - row.computed % spec.attention_chunk_size
            expected = [
                (*divmod(position, spec.block_size), tags[position + 1])
                for position in range(start, row.computed)
            ]
        for column, position, tag in expected:
            block = self._device.read(row.tables[group_id][column])
            if block is None or block.group_id != group_id or block.tags[position] != tag:
                self.wrong.append(
                    f"{request_id} at {row.computed} tokens: group {group_id}, "
                    f"block {column}, position {position}"
                )
                return

    # --- what is written

    def _compute(  # noqa: PLR0917 - what one step of one request and group is made of
        self, row: Row, group_id: int, spec: Any, tags: list[int], count: int, drafts: int
    ) -> None:
        table, end = row.tables[group_id], row.computed + count
        if isinstance(spec, MambaSpec):
            column = -(-end // spec.block_size) - 1
            for ahead in range(drafts + 1):
                tag = tags[end - drafts + ahead]
                self._device.tag(table[column + ahead], group_id, 0, tag, positions=1)
            return
        for position in range(row.computed, end):
            column, offset = divmod(position, spec.block_size)
            self._device.tag(
                table[column], group_id, offset, tags[position + 1], positions=spec.block_size
            )

    def _settle(self, row: Row, certain: int, count: int, *, accepted: int, drafts: int) -> None:
        """Find the running state again, and leave the one at a block's end in that block."""
        for group_id, group in enumerate(self._groups):
            spec = group.kv_cache_spec
            if not isinstance(spec, MambaSpec):
                continue
            column = -(-(certain + drafts) // spec.block_size) - 1
            row.state_column, row.accepted = column, accepted
            aligned = (certain + accepted - 1) // spec.block_size * spec.block_size
            if aligned >= certain:
                target = aligned // spec.block_size - 1
                source = column + aligned - certain
                if source != target:
                    self._device.copy(row.tables[group_id][source], row.tables[group_id][target])
                if column == target:
                    row.accepted = 1


def following(tag: int) -> int:
    """The token that comes after a prefix."""
    return tag % VOCABULARY


def _alternating() -> Iterator[bool]:
    while True:
        yield True
        yield False


class FakeEngine:
    """Scheduler, connector and runner, stepped by hand."""

    def __init__(self, setup: Setup, model: ModelConfig) -> None:
        self.setup = setup
        self.config = vllm_config(setup, model)
        self.kv_cache_config = kv_cache_config(setup, self.config)
        block, unit = resolve_kv_cache_block_sizes(self.kv_cache_config, self.config)
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(unit, sha256)
        self.scheduler = (AsyncScheduler if setup.asynchronous else Scheduler)(
            vllm_config=self.config,
            kv_cache_config=self.kv_cache_config,
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=block,
            hash_block_size=unit,
            log_stats=True,
        )
        self.scheduler.use_v2_model_runner = setup.second_runner
        self.device = Device()
        self.runner = Runner(setup.groups, self.device, setup.drafts)
        self._remote = TierCacheConnector(self.config, KVConnectorRole.WORKER, self.kv_cache_config)
        geometry = self._remote._blueprint.geometry
        self.worker = TaggedWorker(
            self.device,
            dict(geometry.slots),
            blocks_per_chunk=self._remote._blueprint.blocks_per_chunk,
        )
        assert self._remote.connector_worker is not None
        self._remote.connector_worker.worker = self.worker
        self.answers: dict[str, Answer] = {}
        self.stats: list[Any] = []
        self._ahead: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()

    @property
    def connector(self) -> TierCacheConnector:
        connector = self.scheduler.connector
        assert isinstance(connector, TierCacheConnector)
        return connector

    @property
    def manager(self) -> TierCacheManager:
        return self.connector.manager

    @property
    def wrong(self) -> list[str]:
        return self.runner.wrong

    # --- requests

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int = 4,
        *,
        resumable: bool = False,
        **extra: Any,
    ) -> Request:
        """Send a prompt; ``extra`` goes to its kv_transfer_params.

        More of a ``resumable`` one may follow under the same name; what follows last is not.
        """
        params = SamplingParams(
            max_tokens=max_tokens,
            ignore_eos=True,
            extra_args={"kv_transfer_params": extra} if extra else None,
        )
        params.update_from_generation_config({}, 1)
        request = Request(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling_params=params,
            pooling_params=None,
            block_hasher=self._hasher,
            resumable=resumable,
        )
        self.scheduler.add_request(request)
        return request

    def abort(self, request_id: str) -> None:
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def ask(self, request_id: str, prompt: Sequence[int], max_tokens: int = 4) -> Answer:
        """Send a prompt and run until nothing is left to do."""
        self.add(request_id, prompt, max_tokens)
        self.run()
        return self.answers[request_id]

    def run(self) -> None:
        """Step until the engine would sleep."""
        for _ in range(PATIENCE):
            if not self.scheduler.has_requests() and not self._ahead:
                return
            self.step()
        pytest.fail("the engine never comes to rest")

    def reset_device(self) -> None:
        assert self.scheduler.reset_prefix_cache()

    # --- steps

    def step(self) -> None:
        """One step of vLLM's engine core, or, if asynchronous, one step ahead of its output."""
        if self.scheduler.has_requests():
            step = self.scheduler.schedule()
            self._ahead.append((step, self._execute(step)))
        if len(self._ahead) > self.setup.asynchronous or not self.scheduler.has_requests():
            self._update(*self._ahead.popleft())

    def _execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        self._remote.handle_preemptions(step.kv_connector_metadata)
        self.runner.update(step)
        with self._transfers(step) as transfers:
            sampled = self.runner.run(step)
        request_ids = list(step.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=request_ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(request_ids)},
            sampled_token_ids=sampled,
            kv_connector_output=transfers,
        )

    @contextmanager
    def _transfers(self, step: SchedulerOutput) -> Iterator[KVConnectorOutput]:
        """As vLLM's runners surround the forward pass."""
        remote, output = self._remote, KVConnectorOutput()
        remote.bind_connector_metadata(step.kv_connector_metadata)
        if step.has_sync_kv_loads:
            remote.start_load_kv(None)
        yield output
        if not step.has_sync_kv_loads:
            remote.start_load_kv(None)
        remote.wait_for_save()
        results = remote.get_transfer_results(step.finished_req_ids)
        output.finished_sending = results.finished_sending
        output.finished_recving = results.finished_recving
        output.kv_connector_worker_meta = remote.build_connector_worker_meta()
        remote.clear_connector_metadata()

    def _update(self, step: SchedulerOutput, output: ModelRunnerOutput) -> None:
        for results in self.scheduler.update_from_output(step, output).values():
            for result in results.outputs:
                self._note(result)
            if results.scheduler_stats and results.scheduler_stats.kv_connector_stats:
                self.stats.append(results.scheduler_stats.kv_connector_stats)
        if self.setup.drafts and step.total_num_scheduled_tokens:
            self.scheduler.update_draft_token_ids(self.runner.propose())

    def _note(self, result: Any) -> None:
        before = self.answers.get(result.request_id, Answer([], 0, 0))
        prefill = result.prefill_stats
        self.answers[result.request_id] = Answer(
            before.tokens + list(result.new_token_ids),
            prefill.num_external_cached_tokens if prefill else before.restored,
            prefill.num_local_cached_tokens if prefill else before.on_device,
        )

    def check(self) -> None:
        """At rest: nothing wrong was read, nothing is in flight, the books are right."""
        assert self.wrong == []
        assert not self.manager.sick
        self.manager.cache.validate()
        counts = self.manager.cache.counts().values()
        assert sum(group.storing + group.pinned for group in counts) == 0
