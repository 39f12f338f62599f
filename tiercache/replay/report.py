# SPDX-License-Identifier: Apache-2.0
"""What a replay found, as rows of plain values. Drawings of them are in ``plots``."""

from collections.abc import Iterable
from typing import NotRequired, TypedDict

from tiercache.replay.simulate import Result

SCHEMA = "tiercache.replay/1"


class Row(TypedDict):
    """One result. Tokens and counts are sums over the replay, events over all groups."""

    trace: str
    policy: str
    block_tokens: int
    token_slots: int
    state_slots: int
    requests: int
    prompt_tokens: int
    restored_tokens: int
    restored_share: float
    """Of the prompt tokens."""
    evicted_live: int
    evicted_demoted: int
    demotions: int
    stranded_tokens: int
    """Tokens whose attention blocks were there when asked for, but that no state could serve."""
    idle_restored_tokens: NotRequired[int]
    """Of the last turn of the idle conversation, in a scenario that has one."""
    seconds: float


class Document(TypedDict):
    """The rows of one run, with the version of their form."""

    schema: str
    data: list[Row]


def row(result: Result) -> Row:
    """The figures of one replay; the share has 6 decimals, the seconds 3."""
    setup, tally = result.setup, result.tally
    figures = Row(
        trace=result.stream.name,
        policy=setup.policy,
        block_tokens=setup.block_tokens,
        token_slots=setup.token_slots,
        state_slots=setup.state_slots,
        requests=tally.requests,
        prompt_tokens=tally.prompt_tokens,
        restored_tokens=tally.restored_tokens,
        restored_share=round(result.restored_share, 6),
        evicted_live=result.evicted_live,
        evicted_demoted=result.evicted_demoted,
        demotions=result.demotions,
        stranded_tokens=tally.stranded_tokens,
        seconds=round(result.seconds, 3),
    )
    if result.idle_restored_tokens is not None:
        figures["idle_restored_tokens"] = result.idle_restored_tokens
    return figures


def document(rows: Iterable[Row]) -> Document:
    return Document(schema=SCHEMA, data=list(rows))
