# SPDX-License-Identifier: Apache-2.0
"""Both ends of a copy: the engine's block tensors and the arena's regions.

Covers turning planned copies into views or addresses, and copying row by row. When that happens,
and in which order, is up to the caller.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tiercache.vllm.copies import PageCopies


class Addresses(NamedTuple):
    """Copies as addresses in bytes, and their sizes: int64, one entry per copy."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    sizes: NDArray[np.int64]


class Memory:
    """The block tensors, int8 (blocks, page bytes), and the region of each group.

    Rows of a tensor may lie further apart than they are long. Locking: none.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], regions: Mapping[int, torch.Tensor]
    ) -> None:
        self._tensors = list(tensors)
        self._regions = {group_id: region.view(-1) for group_id, region in regions.items()}

    def copy_rows(self, copies: Sequence[PageCopies], *, to_host: bool) -> None:
        """Queue the copies, one by one, on the current stream of the device."""
        # Without inference mode torch refuses to write into a tensor that was created in it.
        with torch.inference_mode():
            for page in copies:
                for device, host in self._rows(page):
                    source, target = (device, host) if to_host else (host, device)
                    target.copy_(source, non_blocking=True)

    def addresses(self, copies: Sequence[PageCopies], *, to_host: bool) -> Addresses:
        """From where to where each copy goes, in the order of ``copies`` and their rows."""
        device, host, sizes = np.empty((3, sum(len(page.rows) for page in copies)), np.int64)
        start = 0
        for page in copies:
            end = start + len(page.rows)
            tensor = self._tensors[page.tensor]
            device[start:end] = tensor.data_ptr() + page.rows * tensor.stride(0)
            host[start:end] = self._regions[page.group_id].data_ptr() + page.offsets
            sizes[start:end] = page.size
            start = end
        return Addresses(device, host, sizes) if to_host else Addresses(host, device, sizes)

    def clear(self) -> None:
        """Let go of every view, so that the memory behind them can be released."""
        self._tensors.clear()
        self._regions.clear()

    def _rows(self, page: PageCopies) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        tensor = self._tensors[page.tensor]
        region = self._regions[page.group_id]
        for row, offset in zip(page.rows.tolist(), page.offsets.tolist(), strict=True):
            yield tensor[row, : page.size], region[offset : offset + page.size]
