# SPDX-License-Identifier: Apache-2.0
"""What differs between the vLLM versions that are supported, and the refusal of all others."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import vllm
from packaging.version import Version
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.base import OffloadingManager, OffloadingSpec, OffloadingWorker, ReqContext

from tiercache.errors import UnsupportedError

OLDEST = Version("0.32")
NEWEST = Version("0.34")
"""Exclusive."""

#: Names of the parameters, without ``self``, of what we override or call. A version may append
#: parameters that have defaults.
CONTRACT: Mapping[Callable[..., Any], tuple[str, ...]] = {
    OffloadingConnector.__init__: ("vllm_config", "role", "kv_cache_config"),
    OffloadingConnector.on_new_request: ("request",),
    OffloadingConnector.get_num_new_matched_tokens: ("request", "num_computed_tokens"),
    OffloadingConnector.update_state_after_alloc: ("request", "blocks", "num_external_tokens"),
    OffloadingConnector.build_connector_meta: ("scheduler_output",),
    OffloadingConnector.build_prom_metrics: (
        "vllm_config",
        "metric_types",
        "labelnames",
        "per_engine_labelvalues",
    ),
    OffloadingConnector.get_required_kvcache_layout: ("vllm_config",),
    OffloadingConnector.requires_piecewise_for_cudagraph: ("extra_config",),
    OffloadingConnector.get_handshake_metadata: (),
    OffloadingConnector.set_xfer_handshake_metadata: ("metadata",),
    OffloadingManager.lookup: ("key", "req_context"),
    OffloadingManager.get_load_source: ("key", "req_context"),
    OffloadingManager.prepare_load: ("keys", "req_context"),
    OffloadingManager.complete_load: ("keys", "req_context"),
    OffloadingManager.prepare_store: ("keys", "req_context"),
    OffloadingManager.complete_store: ("keys", "req_context", "success"),
    OffloadingManager.on_new_request: ("req_context",),
    OffloadingManager.on_request_finished: ("req_context",),
    OffloadingManager.take_events: (),
    OffloadingManager.reset_cache: (),
    OffloadingManager.get_stats: (),
    OffloadingManager.has_pending_work: (),
    OffloadingManager.shutdown: (),
    OffloadingSpec.__init__: ("config",),
    OffloadingSpec.get_manager: (),
    OffloadingSpec.get_worker: ("kv_caches",),
    OffloadingSpec.build_metric_definitions: ("extra_config",),
    OffloadingWorker.submit_store: ("job_id", "src_spec", "dst_spec"),
    OffloadingWorker.submit_load: ("job_id", "src_spec", "dst_spec"),
    OffloadingWorker.get_finished: (),
    OffloadingWorker.wait: ("job_ids",),
    ReqContext.get_state: ("cls",),
    ReqContext.set_state: ("val",),
    ReqContext.get_offload_key_position: ("key",),
}


def check_version(version: str | None = None) -> None:
    """Refuse a vLLM outside the supported range.

    Raises:
        UnsupportedError: names the version found and the range.
    """
    found = vllm.__version__ if version is None else version
    if not OLDEST <= _release(found) < NEWEST:
        raise UnsupportedError(f"vLLM {found} is not supported; supported: >= {OLDEST}, < {NEWEST}")


def stores_torn_chunks() -> bool:
    """Whether vLLM stores chunks of a sliding window that has left their first blocks behind.

    Up to 0.32 what is restored of such a chunk holds blocks that were never stored.
    """
    return _release(vllm.__version__) < Version("0.33")


def mistakes_blocks_of_sessions() -> bool:
    """Whether vLLM stores wrong blocks of a request whose input streams in.

    Up to 0.32 the connector appends the whole block table to what it has of it at every input.
    """
    return _release(vllm.__version__) < Version("0.33")


def _release(version: str) -> Version:
    """A version without what marks it as a build of its own or as one before its release."""
    return Version(Version(version).base_version)


def broken_contracts(
    contract: Mapping[Callable[..., Any], tuple[str, ...]] = CONTRACT,
) -> list[str]:
    """What the installed vLLM declares otherwise than this package was written for."""
    return [
        problem
        for function, names in contract.items()
        if (problem := _difference(function, names)) is not None
    ]


def _difference(function: Callable[..., Any], names: tuple[str, ...]) -> str | None:
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name == "self":
        parameters.pop(0)
    found = tuple(p.name for p in parameters)
    appended = parameters[len(names) :]
    if found[: len(names)] == names and all(p.default is not p.empty for p in appended):
        return None
    return f"{function.__qualname__}{found} where {names} is expected"
