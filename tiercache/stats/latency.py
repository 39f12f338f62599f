# SPDX-License-Identifier: Apache-2.0
"""Percentiles of the latency histograms in a snapshot."""

from collections.abc import Sequence

from tiercache.stats.model import LATENCY_US


def percentile(histogram: Sequence[int], share: float) -> float | None:
    """The time in seconds that ``share`` (0 to 1) of the restores stayed below; None without any.

    It is the upper bound of a bucket: at most a fifth above the true value, from 10 us on.
    """
    restores = sum(histogram)
    if restores <= 0:
        return None
    seen = 0
    for upper, number in zip(LATENCY_US, histogram, strict=False):
        seen += number
        if number > 0 and seen >= share * restores:
            return upper / 1e6
    return LATENCY_US[-1] / 1e6
