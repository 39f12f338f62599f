# SPDX-License-Identifier: Apache-2.0
"""What the next turn of a sequence could restore, and what keeps it from more.

Covers questions to a cache, which they leave as it is: the plan that a request would get, from RAM
alone and with the tiers below, and the fate of what is missing.
"""

from collections.abc import Callable

from tiercache.blocks import Key
from tiercache.cache import TieredCache
from tiercache.probe.sequences import Followed
from tiercache.reasons import Missing, missing
from tiercache.requests import Request
from tiercache.restore import RestorePlan
from tiercache.stats.model import Loss, Sequence, Where

#: The number of the sequence that a request belongs to, if that is still known.
NumberOf = Callable[[str], int | None]


def survey(cache: TieredCache, followed: Followed, number_of: NumberOf) -> Sequence:
    """Look at a sequence anew. O(blocks) for each of the two plans."""
    request = Request("", followed.lineage)
    tokens = len(followed.lineage.hashes) * cache.primary.tokens_per_hash
    here = cache.primary.plan(request, start=0, limit=tokens)
    cached, anywhere = _below(cache, request, here, tokens)
    restorable = max(here.boundary, anywhere.boundary)
    live, demoted = _checkpoints(cache, followed)
    followed.boundaries = live
    where = (
        Where.RAM_BLOCKS * bool(here.attention)
        | Where.RAM_STATES * bool(live or demoted)
        | Where.TIER * (cached > here.attention or restorable > here.boundary)
        | Where.RUNNING * bool(followed.running)
    )
    followed.shown = Sequence(
        number=followed.number,
        turns=followed.turns,
        last_used=followed.last_used,
        tokens=tokens,
        cached=cached,
        restorable=restorable,
        restorable_ram=here.boundary,
        live=len(live),
        demoted=demoted,
        where=Where(where),
        source=followed.source,
        restored=followed.restored,
        seconds=followed.seconds,
        loss=_loss(cache, followed, anywhere, cached > restorable, number_of),
    )
    return followed.shown


def _below(
    cache: TieredCache, request: Request, here: RestorePlan, tokens: int
) -> tuple[int, RestorePlan]:
    """Tokens of attention in some tier, and the plan with all tiers."""
    tiering = cache.tiering
    if tiering is None or here.ended_by is None:
        return here.attention, here
    elsewhere, farthest = tiering.jobs.elsewhere(), tiering.promoter.farthest(0)
    plan = cache.primary.plan(request, start=0, limit=tokens, elsewhere=elsewhere)
    if farthest >= tokens:
        return plan.attention, plan
    # All of it is never here at once, so not all of it can be served.
    served = cache.primary.plan(request, start=0, limit=farthest, elsewhere=elsewhere)
    return plan.attention, served


def _checkpoints(cache: TieredCache, followed: Followed) -> tuple[list[int], int]:
    """Tokens of the live ones on its lineage, the deepest first, and how many are demoted."""
    per_hash, demoted = cache.primary.tokens_per_hash, 0
    live = []
    for node in cache.primary.tree.on(followed.lineage):
        if node.demoted:
            demoted += 1
        else:
            live.append((node.index + 1) * per_hash)
    return live, demoted


def _loss(
    cache: TieredCache,
    followed: Followed,
    plan: RestorePlan,
    is_stranded: bool,  # noqa: FBT001 - said by the caller's expression
    number_of: NumberOf,
) -> Loss | None:
    entry = missing(plan, followed.lineage, cache.groups, cache.journal.fate)
    # What a running request has not stored yet is not lost.
    if entry is None or not (entry.fate or (is_stranded and not followed.running)):
        return None
    return told(entry, number_of)


def told(entry: Missing, number_of: NumberOf) -> Loss:
    """A missing entry, without the names of requests."""
    group, fate = f"g{entry.group.group_id}", entry.fate
    if fate is None:
        return Loss(group, entry.end, None, None)
    by = None if fate.unreadable else number_of(fate.by)
    return Loss(group, entry.end, fate.when, by, fate.unreadable)


def below(cache: TieredCache, key: Key) -> str | None:
    """The first tier that has a copy of ``key``."""
    for tier in cache.tiering.tiers if cache.tiering is not None else ():
        if tier.has(key):
            return tier.name
    return None
