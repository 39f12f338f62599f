# SPDX-License-Identifier: Apache-2.0
"""The environment variables under which vLLM starts fast and reliably on a CPU.

`apply` must run before torch, transformers or vllm are imported: each reads its part at import.
"""

import os
import sys

#: Offline, and without a word to anybody.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
#: What makes the difference between half a minute and three seconds.
FAST = {
    "TORCHDYNAMO_DISABLE": "1",
    # Engine and worker live in the caller's process, where a test can reach them.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Two threads on a busy two-core machine turned requests of 0.1 s into 1 to 12 s.
    "OMP_NUM_THREADS": "1",
    # Adds POST /reset_prefix_cache to the server.
    "VLLM_SERVER_DEV_MODE": "1",
}
VARIABLES = QUIET | FAST
_TOO_LATE = ("torch", "transformers", "vllm")


def apply() -> None:
    """Set what the caller's environment leaves open.

    Raises:
        RuntimeError: a library that reads these variables at import is there already.
    """
    missing = {name: value for name, value in VARIABLES.items() if name not in os.environ}
    early = [name for name in _TOO_LATE if name in sys.modules]
    if missing and early:
        raise RuntimeError(f"set {', '.join(missing)} before importing {', '.join(early)}")
    os.environ.update(missing)
