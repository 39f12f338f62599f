# SPDX-License-Identifier: Apache-2.0
"""How vLLM arranges layers into groups whose blocks have one size in device memory.

Covers layers that were described; which layers a model has is known to ``modelconfig``.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from tiercache.blocks import GroupKind, GroupSpec, align_slot

#: Tokens that a block of attention has a multiple of: what vLLM's kernels on CUDA take.
KERNEL_BLOCK: Final = 16
#: Where one kind has fewer than this many times the layers of another, they share a group size.
SPREAD: Final = 1.5


class Layer(NamedTuple):
    """What a layer keeps on each worker."""

    kind: GroupKind
    nbytes: int
    """Per token; of a recurrent layer, per state."""
    window: int | None = None
    """Tokens that a sliding window reaches back."""


def block_tokens(layers: Sequence[Layer], block_size: int) -> int:
    """Tokens of a block: at least ``block_size``, and so many that attention fills a state."""
    states = [layer.nbytes for layer in layers if layer.kind is GroupKind.STATE]
    tokens = [layer.nbytes for layer in layers if layer.kind is not GroupKind.STATE]
    if not (states and tokens):
        return block_size
    step = max(KERNEL_BLOCK, block_size)
    needed = step * -(-max(states) // (step * max(tokens)))
    return KERNEL_BLOCK * -(-needed // KERNEL_BLOCK)


def arrange(layers: Sequence[Layer], tokens: int) -> tuple[GroupSpec, ...]:
    """Groups of layers of one kind, as equal in number as they get, with blocks of ``tokens``."""
    counts: dict[Layer, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    fewest, most = min(counts.values()), max(counts.values())
    size = most if most < fewest * SPREAD else fewest
    parts = [
        (layer, len(range(part, count, groups)))
        for layer, count in counts.items()
        for groups in (-(-count // size),)
        for part in range(groups)
    ]
    return tuple(_group(index, *part, tokens) for index, part in enumerate(parts))


def _group(group_id: int, layer: Layer, count: int, tokens: int) -> GroupSpec:
    page = layer.nbytes if layer.kind is GroupKind.STATE else layer.nbytes * tokens
    window = None if layer.window is None else -(-layer.window // tokens)
    return GroupSpec(group_id, layer.kind, tokens, align_slot(page * count), window)
