# SPDX-License-Identifier: Apache-2.0
"""The connector by itself: start-up, what the API server is told, and what the engine is told."""

import logging
import pickle
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the connector is vLLM's")

import prometheus_client
import vllm
from vllm.config import ModelConfig
from vllm.distributed.kv_events import BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from tests.vllm.conftest import Start
from tests.vllm.setups import Setup, attention, group, kv_cache_config, qwen3_next, vllm_config
from tests.vllm.test_scheduler import again, tokens
from tiercache.errors import ConfigError, UnsupportedError
from tiercache.vllm.connector import SPEC, ArenaMetadata, TierCacheConnector
from tiercache.vllm.geometry import BLUEPRINT
from tiercache.vllm.spec import TierCacheSpec

HYBRID = Setup(qwen3_next(), [60, 10, 10, 10])
FULL = Setup([group(attention())], [60])


def connect(model: ModelConfig, setup: Setup, role: KVConnectorRole) -> TierCacheConnector:
    config = vllm_config(setup, model)
    return TierCacheConnector(config, role, kv_cache_config(setup, config))


# --- start-up


@pytest.mark.parametrize("role", list(KVConnectorRole), ids=lambda role: role.name.lower())
def test_vllm_is_given_our_spec_and_what_it_needs(
    model: ModelConfig, role: KVConnectorRole
) -> None:
    config = vllm_config(HYBRID, model)
    TierCacheConnector(config, role, kv_cache_config(HYBRID, config))
    assert config.kv_transfer_config is not None
    assert SPEC.items() <= config.kv_transfer_config.kv_connector_extra_config.items()
    assert BLUEPRINT.get(None) is None


def test_a_refusal_leaves_nothing_behind(model: ModelConfig) -> None:
    with pytest.raises(ConfigError):
        connect(model, replace(HYBRID, slots=[10**9, 1, 1, 1]), KVConnectorRole.SCHEDULER)
    assert BLUEPRINT.get(None) is None


def test_the_spec_under_vllms_own_connector_is_refused_with_advice(model: ModelConfig) -> None:
    config = vllm_config(FULL, model)
    assert config.kv_transfer_config is not None
    config.kv_transfer_config.kv_connector_extra_config.update(SPEC)
    found = kv_cache_config(FULL, config)
    with pytest.raises(UnsupportedError, match=r"choose kv_connector 'TierCacheConnector'.*module"):
        OffloadingConnector(config, KVConnectorRole.SCHEDULER, found)


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0"])
def test_another_vllm_is_refused_wherever_it_is_met_first(
    model: ModelConfig, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    config = vllm_config(FULL, model)
    found = kv_cache_config(FULL, config)
    monkeypatch.setattr(vllm, "__version__", version)
    with pytest.raises(UnsupportedError, match=version):
        TierCacheConnector.get_required_kvcache_layout(config)
    with pytest.raises(UnsupportedError, match=version):
        TierCacheConnector(config, KVConnectorRole.WORKER, found)


def test_good_settings_pass_the_early_checks(model: ModelConfig) -> None:
    config = vllm_config(FULL, model)
    assert config.kv_transfer_config is not None
    settings = config.kv_transfer_config.kv_connector_extra_config
    assert TierCacheConnector.get_required_kvcache_layout(config) is not None
    assert TierCacheConnector.requires_piecewise_for_cudagraph(settings) is False


def test_the_geometry_is_logged_once_for_the_scheduler(
    model: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="tiercache"):
        for role in KVConnectorRole:
            connect(model, HYBRID, role)
    lines = [r.getMessage() for r in caplog.records if "pools:" in r.getMessage()]
    assert len(lines) == 1
    assert "60 token slots" in lines[0]
    assert "10 state slots in each of 3 state groups" in lines[0]


def test_a_model_without_states_is_said_to_be_plain_lru(
    model: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="tiercache"):
        connect(model, FULL, KVConnectorRole.SCHEDULER)
    assert "no recurrent layers, plain lru" in caplog.text


def test_workers_tell_the_scheduler_what_they_made(model: ModelConfig) -> None:
    worker = connect(model, HYBRID, KVConnectorRole.WORKER)
    scheduler = connect(model, HYBRID, KVConnectorRole.SCHEDULER)
    sent = pickle.loads(pickle.dumps(worker.get_handshake_metadata()))
    scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): sent, (0, 1): sent})
    other = ArenaMetadata({**sent.slots, 0: 59}, None)
    with pytest.raises(UnsupportedError, match=r"worker 1 made .*0: 59.*counts on .*0: 60"):
        scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): sent, (0, 1): other})
    scheduler.shutdown()


# --- the API server


def test_the_api_server_knows_all_metrics_of_an_engine_it_did_not_start(
    start: Start, model: ModelConfig
) -> None:
    engine, prompt = start(HYBRID), tokens(200)
    engine.ask("a", prompt)
    again(engine, "b", prompt)
    again(engine, "c", prompt[:150])
    config = vllm_config(HYBRID, model)
    names = ["model_name", "engine"]
    metrics = TierCacheConnector.build_prom_metrics(
        config,
        {
            prometheus_client.Gauge: prometheus_client.Gauge,
            prometheus_client.Counter: prometheus_client.Counter,
            prometheus_client.Histogram: prometheus_client.Histogram,
        },
        names,
        {0: ["model", "0"]},
    )
    try:
        for report in engine.stats:
            metrics.observe(report, 0)
        value = prometheus_client.REGISTRY.get_sample_value
        labels = {"model_name": "model", "engine": "0"}
        assert value("vllm:tiercache_restored_tokens_total", labels) == 192
        assert value("vllm:tiercache_lost_to_missing_state_tokens_total", labels) == 144
        free = {**labels, "group": "1", "kind": "state", "state": "free"}
        assert value("vllm:tiercache_slots", free) == 8
    finally:
        for collector in list(prometheus_client.REGISTRY._collector_to_names):
            if any(name.startswith("vllm:") for name in _names(collector)):
                prometheus_client.REGISTRY.unregister(collector)


def _names(collector: Any) -> set[str]:
    return set(prometheus_client.REGISTRY._collector_to_names[collector])


# --- the engine


@pytest.mark.parametrize(("share", "junction"), [(True, 96), (False, 0)])
def test_a_junction_that_only_the_host_has_seen_is_made_known(
    start: Start, share: bool, junction: int
) -> None:
    engine = start(replace(HYBRID, settings={"share_junctions": share}))
    head = tokens(100, "head")
    engine.ask("a", [*head, *tokens(60, "a")])
    engine.reset_device()
    request = engine.add("b", [*head, *tokens(60, "b")])
    engine.step()
    assert request.shared_prefix_boundary == junction


def test_a_junction_further_on_that_the_engine_knows_stays(start: Start) -> None:
    engine = start(HYBRID)
    head = tokens(100, "head")
    engine.ask("a", [*head, *tokens(60, "a")])
    request = engine.add("b", [*head, *tokens(60, "b")])
    request.shared_prefix_boundary = 128
    engine.connector.get_num_new_matched_tokens(request, 0)
    assert request.shared_prefix_boundary == 128


def test_a_request_that_must_not_read_the_cache_loses_nothing(start: Start) -> None:
    """Such as one for the probabilities of its prompt."""
    engine, prompt = start(HYBRID), tokens(200)
    engine.ask("a", prompt)
    engine.reset_device()
    request = engine.add("b", prompt[:150])
    request.skip_reading_prefix_cache = True
    engine.run()
    assert engine.answers["b"].restored == 0
    assert not any("lost" in name for report in engine.stats for name in report["data"])


def test_the_reason_of_every_lookup_is_in_the_debug_log(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start(replace(HYBRID, slots=[60, 1, 1, 1]))
    engine.ask("a", tokens(200, "a"))
    engine.ask("b", tokens(200, "b"))
    engine.reset_device()
    logging.getLogger("tiercache").addHandler(caplog.handler)
    with caplog.at_level(logging.DEBUG, logger="tiercache"):
        engine.ask("c", tokens(200, "a"))
    (line,) = {r.getMessage() for r in caplog.records if "request c " in r.getMessage()}
    assert "restores 0 tokens" in line
    assert "state of group 1 at 192 tokens was evicted" in line
    assert "by a store of b" in line


@pytest.mark.parametrize("setup", [HYBRID, FULL], ids=["hybrid", "full"])
def test_the_log_level_changes_nothing(
    start: Start, caplog: pytest.LogCaptureFixture, setup: Setup
) -> None:
    restored = []
    for level in logging.WARNING, logging.DEBUG:
        with caplog.at_level(level, logger="tiercache"):
            engine, prompt = start(setup), tokens(200)
            engine.ask("a", prompt)
            restored.append([again(engine, "b", prompt), again(engine, "c", prompt[:190])])
    assert restored[0] == restored[1]


def test_kv_events_say_what_is_stored_on_the_host(start: Start) -> None:
    engine = start(replace(FULL, kv_events=True))
    events: list[Any] = []
    take_events = engine.connector.take_events

    def keep() -> list[Any]:
        taken = list(take_events())
        events.extend(taken)
        return taken

    engine.connector.take_events = keep
    engine.ask("a", tokens(100))
    stored = [event for event in events if isinstance(event, BlockStored)]
    assert sum(len(event.block_hashes) for event in stored) == 6
    assert {event.medium for event in stored} == {"CPU"}


# --- the spec


def test_a_spec_needs_the_layout_that_the_connector_hands_over(model: ModelConfig) -> None:
    config = vllm_config(FULL, model)
    found = kv_cache_config(FULL, config)
    with pytest.raises(UnsupportedError, match="needs the KV cache's layout"):
        TierCacheSpec(build_offloading_config(config, found))
