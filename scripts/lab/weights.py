# SPDX-License-Identifier: Apache-2.0
"""Random weights under which a lost or wrong state shows in the output.

With the usual initialisation a recurrent state forgets within a few tokens, so that a test which
compares tokens could not fail. Slow decay and large matrices make every group's bytes matter.
"""

import math

import torch
from torch import nn

SLOW_DECAY = -4.0  # decay exp(-exp(A_log) * dt): half of a state is left after thousands of tokens
SMALL_STEP = -2.0  # softplus(-2) = 0.13
CONVOLUTION_STD = 0.5
EMBEDDING_STD = 1.0
HEAD_STD = 0.2  # logits of order 2: greedy choices without ties, not saturated
MATRIX_GAIN = 1.5


def fill(model: nn.Module, seed: int) -> None:
    """Overwrite every weight that matters, in the order of the names, from one seed."""
    generator = torch.Generator().manual_seed(seed)
    tied = not any("lm_head" in name for name, _ in model.named_parameters())
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            _fill_one(name, weight, generator, tied=tied)


def _fill_one(name: str, weight: torch.Tensor, generator: torch.Generator, *, tied: bool) -> None:
    if name.endswith("A_log"):
        weight.fill_(SLOW_DECAY)
    elif name.endswith("dt_bias"):
        weight.fill_(SMALL_STEP)
    elif weight.dim() > 1:
        weight.normal_(0.0, _std(name, weight, tied=tied), generator=generator)


def _std(name: str, weight: torch.Tensor, *, tied: bool) -> float:
    if "conv" in name and weight.dim() == 3:
        return CONVOLUTION_STD
    if "embed_tokens" in name:
        return HEAD_STD if tied else EMBEDDING_STD
    if "lm_head" in name:
        return HEAD_STD
    return MATRIX_GAIN / math.sqrt(weight.shape[-1])
