# SPDX-License-Identifier: Apache-2.0
"""A real vLLM in this process: started small, asked with token ids, closed cleanly.

vllm is imported when an engine is started, not with this module: that takes 5 s, and the
environment has to be prepared first.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from lab import environment
from lab.arguments import engine_arguments
from lab.models import model_path
from lab.recipes import Recipe
from lab.said import CHOICES, Said
from lab.transfers import Transfer

SETTLE_PROMPT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Answer(Said):
    """What came back for one prompt, and what vLLM did not have to compute for it.

    ``ttft_ms`` is vLLM's own figure: from the arrival of the prompt to its first token, queueing
    and restoring included.
    """

    prompt_tokens: int
    cached_tokens: int
    ttft_ms: float


class Engine:
    """A running engine, ``llm`` inside; every method returns when it is idle again."""

    def __init__(self, llm: Any, recipe: Recipe) -> None:
        self.llm = llm
        self.recipe = recipe
        self._settling = count()

    @property
    def core(self) -> Any:
        """vLLM's engine core."""
        return self.llm.llm_engine.engine_core.engine_core

    @property
    def scheduler(self) -> Any:
        """vLLM's scheduler."""
        return self.core.scheduler

    @property
    def manager(self) -> Any:
        """The offloading manager: the scheduler's side of the connector."""
        return self.scheduler.connector.connector_scheduler.manager

    @property
    def worker(self) -> Any:
        """The offloading worker: the side that copies."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group().connector_worker.worker

    @property
    def arena(self) -> Any:
        """The host memory of tiercache's worker."""
        return self.worker._arena  # noqa: SLF001 - the tests look at the bytes

    def ask(self, prompt: Sequence[int], max_tokens: int = 20) -> Answer:
        """Greedy continuation of one prompt."""
        return self.ask_all([prompt], max_tokens)[0]

    def ask_all(self, prompts: Sequence[Sequence[int]], max_tokens: int = 20) -> list[Answer]:
        """Greedy continuations of several prompts, in flight together."""
        outputs = self.llm.generate(
            [_prompt(prompt) for prompt in prompts], _greedy(max_tokens), use_tqdm=False
        )
        return [_answer(output) for output in outputs]

    def begin(self, request_id: str, prompt: Sequence[int], max_tokens: int = 20) -> None:
        """Send a prompt without waiting; `step` drives it, `abort` ends it."""
        self.llm.llm_engine.add_request(request_id, _prompt(prompt), _greedy(max_tokens))

    def step(self) -> None:
        """One step of the engine."""
        self.llm.llm_engine.step()

    def abort(self, request_id: str) -> None:
        """Drop a request that was begun, as when its client goes away."""
        self.llm.llm_engine.abort_request([request_id])

    def settle(self) -> None:
        """Let the last stores finish: they are submitted a step after their blocks were computed.

        Each call sends a prompt of its own, shorter than a block, so nothing of it is kept.
        """
        number = next(self._settling)
        low, high = number % 256, number // 256
        self.ask([3 + low, 3 + high] * (SETTLE_PROMPT_TOKENS // 2), max_tokens=4)

    def rest(self) -> None:
        """Let everything come to an end that is on its way between tiers."""
        self.settle()
        while self.manager.has_pending_work():
            self.settle()

    def reset_device(self) -> None:
        """Empty the device cache; what was offloaded stays."""
        self.settle()
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("the device cache is in use")

    def reset_all(self) -> None:
        """Empty the device cache and the connector's tiers."""
        self.settle()
        if not self.llm.reset_prefix_cache(reset_connector=True):
            raise RuntimeError("the caches are in use")

    def metrics(self) -> dict[str, float]:
        """Every vLLM metric, written as in the Prometheus text format without engine labels."""
        return dict(_samples(self.llm.get_metrics()))


@contextmanager
def engine(
    recipe: Recipe,
    transfer: Transfer | None = None,
    *,
    models: Path | None = None,
    **arguments: Any,
) -> Iterator[Engine]:
    """Start an engine for ``recipe``; ``arguments`` replace the lab's engine arguments."""
    environment.apply()
    from vllm import LLM

    if recipe.mamba2:
        _drop_prefill_checkpoints()
    settings = engine_arguments(recipe, model_path(recipe, models)) | arguments
    try:
        llm = LLM(**settings, kv_transfer_config=transfer, disable_log_stats=False)
    except BaseException:
        _forget_half_an_engine()
        raise
    try:
        yield Engine(llm, recipe)
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def _forget_half_an_engine() -> None:
    """Tear down what an engine that did not start has left in vLLM's globals."""
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

    ensure_kv_transfer_shutdown()
    cleanup_dist_env_and_memory()


def _drop_prefill_checkpoints() -> None:
    from vllm.model_executor.layers.mamba.abstract import MambaBase
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

    MambaMixer2.get_kv_cache_spec = MambaBase.get_kv_cache_spec


def _prompt(tokens: Sequence[int]) -> Any:
    from vllm import TokensPrompt

    return TokensPrompt(prompt_token_ids=list(tokens))


def _greedy(max_tokens: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, logprobs=CHOICES)


def _answer(output: Any) -> Answer:
    said = output.outputs[0]
    return Answer(
        tokens=tuple(said.token_ids),
        prompt_tokens=len(output.prompt_token_ids),
        cached_tokens=output.num_cached_tokens,
        ttft_ms=output.metrics.first_token_latency * 1e3,
        choices=tuple({token: each.logprob for token, each in at.items()} for at in said.logprobs),
    )


def _samples(metrics: Sequence[Any]) -> Iterator[tuple[str, float]]:
    from vllm.v1.metrics.reader import Counter, Gauge, Histogram

    for metric in metrics:
        labels = _labels(metric.labels)
        if isinstance(metric, Counter | Gauge):
            yield metric.name + labels, metric.value
        elif isinstance(metric, Histogram):
            yield metric.name + "_count" + labels, metric.count
            yield metric.name + "_sum" + labels, metric.sum


def _labels(labels: dict[str, str]) -> str:
    shown = sorted((k, v) for k, v in labels.items() if k not in ("model_name", "engine"))
    return "{" + ",".join(f'{k}="{v}"' for k, v in shown) + "}" if shown else ""
