# SPDX-License-Identifier: Apache-2.0
"""What an engine's KV connector is configured with: tiercache, or vLLM's own manager.

Plain JSON values, so that the same settings serve the in-process engine and the server's flags.
"""

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
