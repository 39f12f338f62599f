# SPDX-License-Identifier: Apache-2.0
"""What an engine's KV connector is configured with: tiercache, or vLLM's own manager.

Plain JSON values, so that the same settings serve the in-process engine and the server's flags.
"""

from pathlib import Path
from typing import Any

Transfer = dict[str, Any]


def tiercache(cpu_bytes_to_use: int | str, **settings: Any) -> Transfer:
    """tiercache with this budget; further settings go to its extra configuration."""
    return {
        "kv_connector": "TierCacheConnector",
        "kv_connector_module_path": "tiercache.vllm.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": cpu_bytes_to_use, **settings},
    }


def with_disk(cpu_bytes_to_use: int | str, path: Path, **settings: Any) -> Transfer:
    """tiercache with a small tier on disk below ``path``; further settings are that tier's."""
    tier = {"type": "nvme", "path": str(path), "capacity": "512MiB", "min_free": 0, **settings}
    # A model of this size computes faster than any disk reads.
    return tiercache(cpu_bytes_to_use, secondary_tiers=[tier], restore="always")


def with_store(cpu_bytes_to_use: int | str, master: str, **settings: Any) -> Transfer:
    """tiercache with a Mooncake store on this machine; further settings are that tier's."""
    tier = {"type": "mooncake", "master": master, "host": "127.0.0.1", "capacity": "64MiB"}
    # A machine that computes two models on two cores answers late.
    patient = {"lookup_timeout_s": 20.0, **settings}
    return tiercache(cpu_bytes_to_use, secondary_tiers=[tier | patient], restore="always")


def baseline(cpu_bytes_to_use: int, **settings: Any) -> Transfer:
    """vLLM's own CPU offload manager over the lab's torch worker."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "TorchCPUOffloadingSpec",
            "spec_module_path": "lab.baseline",
            "cpu_bytes_to_use": cpu_bytes_to_use,
            **settings,
        },
    }
