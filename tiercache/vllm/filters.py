# SPDX-License-Identifier: Apache-2.0
"""Which tiers a request may load from: ``kv_load_tiers`` of its ``kv_transfer_params``.

Covers the translation of vLLM's filter into names of our tiers. As in vLLM, host memory is not
filtered: what is there was brought there on behalf of somebody who may.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from vllm.v1.kv_offload.base import Locality, Medium, TierFilter, TierMatcher

from tiercache.tiers.base import SecondaryTier

#: Where the tiers of each kind keep what they have. A kind that is not here matches every filter
#: that names anything, as one of vLLM's does that does not say where it is.
PLACES: Final[Mapping[str, TierMatcher]] = {
    "memory": TierMatcher(Medium.CPU, Locality.LOCAL),
    "nvme": TierMatcher(Medium.STORAGE, Locality.LOCAL),
    "mooncake": TierMatcher(Medium.CPU, Locality.REMOTE),
}
_ANYWHERE: Final = TierMatcher()


def barred(tiers: Iterable[SecondaryTier], allowed: TierFilter) -> frozenset[str]:
    """Names of the tiers that ``allowed`` leaves out."""
    if allowed is TierFilter.ALL:
        return frozenset()
    return frozenset(
        tier.name for tier in tiers if not allowed.allows(*PLACES.get(tier.kind, _ANYWHERE))
    )
