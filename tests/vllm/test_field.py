# SPDX-License-Identifier: Apache-2.0
"""Faults that users of other caches met in vLLM's scheduler, tried on ours.

The numbers are those of ``docs/field-reports.md``, which says where each was reported.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the harness drives vLLM's scheduler")

import torch
from vllm.config import ModelConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.kv_cache_interface import CircularBufferSpec
from vllm.v1.request import Request

from tests.vllm.conftest import Start
from tests.vllm.fake_engine import FakeEngine, Runner
from tests.vllm.setups import Setup, attention, group, kv_cache_config, recurrent, vllm_config
from tests.vllm.test_scheduler import FULL, HYBRID, again, nothing, tokens
from tests.vllm.test_scheduler_speculative import speculative
from tiercache.tiers.nvme.namespace import namespace
from tiercache.vllm.fingerprint import fingerprint
from tiercache.vllm.geometry import make_blueprint


def scratch() -> Any:
    """A group that is no part of a prefix, with blocks smaller than those that are hashed."""
    return CircularBufferSpec(block_size=4, num_kv_heads=1, head_size=16, dtype=torch.bfloat16)


def test_c10_a_group_with_smaller_blocks_than_are_hashed_is_left_out(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = Runner._compute

    def compute_what_lasts(self: Runner, row: Any, group_id: int, spec: Any, *rest: Any) -> None:
        if spec.prefix_cacheable:
            compute(self, row, group_id, spec, *rest)

    monkeypatch.setattr(Runner, "_compute", compute_what_lasts)
    groups = [
        group(recurrent(), "gdn0"),
        group(scratch(), "indexer"),
        group(attention(), "attention"),
        group(recurrent(), "gdn1"),
    ]
    engine = start(Setup(groups, None))
    assert sorted(engine.manager.cache.counts()) == [0, 2, 3]
    prompt = tokens(200)
    cold = engine.ask("a", prompt, 20)
    assert again(engine, "b", prompt) == 192
    assert engine.answers["b"].tokens == cold.tokens[:4]


@pytest.mark.parametrize("drafts", [0, 1, 2, 5])
def test_c11_what_is_stored_of_a_prompt_has_no_hole(start: Start, drafts: int) -> None:
    """A prompt of four steps, with drafts: the last block of each step is stored as well."""
    setup = speculative(drafts) if drafts else HYBRID
    engine, prompt = start(replace(setup, batched_tokens=64)), tokens(256)
    engine.ask("a", prompt)
    request = engine.add("probe", prompt)
    ready = engine.manager.cache.primary.pools[0].ready
    stored = [key[:-4] in {k[:-4] for k in ready} for key in map(_padded, request.block_hashes)]
    engine.abort("probe")
    assert stored == [True] * 16


def _padded(block_hash: bytes) -> bytes:
    return bytes(block_hash) + bytes(4)


def test_c41_a_copy_that_is_late_still_reads_what_it_was_given(start: Start) -> None:
    """Two requests store in consecutive steps, and both have ended before anything moves."""
    engine = start(replace(HYBRID, slots=[60, 20, 20, 20]))
    engine.worker.pace = nothing
    prompts = {"a": tokens(100, "a"), "b": tokens(100, "b")}
    for name, prompt in prompts.items():
        engine.add(name, prompt, 1)
        engine.step()
    while engine.scheduler.requests.keys() & prompts.keys():
        engine.step()
    engine.worker.pace = lambda running: min(1, running)
    engine.run()
    assert [again(engine, f"{name} again", prompts[name]) for name in prompts] == [96, 96]


# --- C64: whose bytes they are


def salted(engine: FakeEngine, name: str, prompt: list[int], **who: Any) -> int:
    """As ``again``, for a request of somebody: with a salt, or an adapter."""
    engine.reset_device()
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    params.update_from_generation_config({}, 1)
    engine.scheduler.add_request(
        Request(
            request_id=name,
            prompt_token_ids=prompt,
            sampling_params=params,
            pooling_params=None,
            block_hasher=engine._hasher,
            **who,
        )
    )
    engine.run()
    return engine.answers[name].restored


def test_c64_a_salt_is_a_cache_of_its_own(start: Start) -> None:
    """So that nobody finds out by the time of an answer what somebody else has asked."""
    engine, prompt = start(FULL), tokens(100)
    assert salted(engine, "a", prompt, cache_salt="alice") == 0
    assert salted(engine, "b", prompt, cache_salt="bob") == 0
    assert salted(engine, "c", prompt) == 0
    assert salted(engine, "d", prompt, cache_salt="alice") == 96


def test_c64_an_adapter_is_a_cache_of_its_own(start: Start) -> None:
    engine, prompt = start(FULL), tokens(100)
    one, other = (LoRARequest(f"adapter {n}", n, f"/nowhere/{n}") for n in (1, 2))
    assert salted(engine, "a", prompt, lora_request=one) == 0
    assert salted(engine, "b", prompt, lora_request=other) == 0
    assert salted(engine, "c", prompt) == 0
    assert salted(engine, "d", prompt, lora_request=one) == 96


Change = Callable[[Any], None]


def put(path: str, value: Any) -> Change:
    """Set an attribute of a configuration, given by its path."""

    def change(config: Any) -> None:
        *parents, name = path.split(".")
        for parent in parents:
            config = getattr(config, parent)
        setattr(config, name, value)

    return change


CHANGES: dict[str, Change] = {
    "model": put("model_config.model", "another"),
    "revision": put("model_config.revision", "2"),
    "quantization": put("model_config.quantization", "fp8"),
    "dtype": put("model_config.dtype", torch.float16),
    "cache dtype": put("cache_config.cache_dtype", "fp8"),
    "state dtype": put("cache_config.mamba_cache_dtype", "float32"),
    "recurrent dtype": put("cache_config.mamba_ssm_cache_dtype", "float16"),
    "hash algorithm": put("cache_config.prefix_caching_hash_algo", "sha256_cbor"),
    "tensor parallelism": put("parallel_config.tensor_parallel_size", 2),
    "data parallel rank": put("parallel_config.data_parallel_rank", 1),
    "backend": put("attention_config.backend", "FLEX_ATTENTION"),
    "layout": put("cache_config.kv_cache_layout", "HND"),
    "draft model": put(
        "speculative_config", SimpleNamespace(method="eagle", model="nowhere/drafter")
    ),
}


def named(config: Any, setup: Setup, tokens_per_hash: int = 16) -> str:
    blueprint = make_blueprint(config, kv_cache_config(setup, config))
    return namespace(fingerprint(config, blueprint, tokens_per_hash))


@pytest.fixture
def config(model: ModelConfig) -> Any:
    config = vllm_config(HYBRID, model)
    for part in ("model_config", "cache_config", "parallel_config", "attention_config"):
        setattr(config, part, copy.copy(getattr(config, part)))
    return config


def test_c64_the_same_configuration_has_the_same_name(config: Any) -> None:
    assert named(config, HYBRID) == named(copy.copy(config), HYBRID)


@pytest.mark.parametrize("what", CHANGES)
def test_c64_whatever_changes_the_bytes_changes_the_name(config: Any, what: str) -> None:
    blueprint = make_blueprint(config, kv_cache_config(HYBRID, config))
    before = namespace(fingerprint(config, blueprint, 16))
    CHANGES[what](config)
    assert namespace(fingerprint(config, blueprint, 16)) != before


def test_c64_other_groups_and_blocks_have_other_names(config: Any, model: ModelConfig) -> None:
    fewer = replace(HYBRID, groups=HYBRID.groups[:-1], slots=[60, 10, 10])
    names = {named(config, HYBRID), named(config, HYBRID, 32)}
    names.add(named(vllm_config(fewer, model), fewer))
    assert len(names) == 3


def test_c64_weights_that_were_trained_further_have_another_name(
    config: Any, tmp_path: Any
) -> None:
    config.model_config.model = str(tmp_path)
    file = tmp_path / "model.safetensors"
    names = set()
    for content in ("", "a", "ab"):
        file.write_text(content)
        names.add(named(config, HYBRID))
    assert len(names) == 3


def test_c64_the_seed_of_the_hashes_is_in_the_name(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = set()
    for seed in ("0", "1"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        names.add(named(config, HYBRID))
    assert len(names) == 2
