# SPDX-License-Identifier: Apache-2.0
"""What the scheduler tells a worker about the host side of one transfer.

Covers the message only; vLLM pickles it into the output of every scheduler step. What the slots
hold is ``tiercache.vllm.copies``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.v1.kv_offload.base import LoadStoreSpec


class SlotsLoadStoreSpec(LoadStoreSpec):
    """The slots of a transfer: int32, in the order of its keys, one group after another.

    Slot ids are local to their group. How many belong to each group follows from the other side,
    vLLM's GPULoadStoreSpec.
    """

    def __init__(self, slots: Sequence[int] | NDArray[Any]) -> None:
        self.slots: NDArray[np.int32] = np.asarray(slots, dtype=np.int32)

    def __repr__(self) -> str:
        return f"SlotsLoadStoreSpec({self.slots.tolist()})"
