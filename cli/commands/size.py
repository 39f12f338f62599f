# SPDX-License-Identifier: Apache-2.0
"""``tiercache size``: what a budget of host memory holds, before anything runs.

Covers the options and the report. Groups come from ``tiercache.modelconfig``, slots from the code
that divides the memory of a server.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tiercache.cli import output
from tiercache.cli.parameters import Count, Retention, Size, reference_tokens
from tiercache.cli.table import count, share, table
from tiercache.cli.table import size as sized

if TYPE_CHECKING:
    from tiercache.blocks import GroupSpec
    from tiercache.capacity import Capacity
    from tiercache.layout import Geometry

SCHEMA: Final = "tiercache.size/1"
#: What state slots are sized for where neither a model nor an option says.
REFERENCE_TOKENS: Final = 262_144
#: Lengths of conversations that are shown, as parts of the reference request.
PARTS: Final = (32, 16, 8, 4, 2, 1)

EXAMPLES = """\b
Examples:
  tiercache size --model-config config.json --ram 64GiB --tp 4
  tiercache size --model-config config.json --ram 64GiB --reference-tokens 32768 --json
  tiercache size --block-tokens 1632 --token-page 7204864 --state-page 4415488 \\
    --state-groups 7 --ram 64GiB --tp 4
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--ram", type=Size(), metavar="SIZE", required=True, help="Host memory over all workers."
)
@click.option(
    "--model-config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The model's config.json, or the folder that has it. Nothing is downloaded.",
)
@click.option("--tp", type=Count(), default=1, show_default=True, metavar="N", help="Workers.")
@reference_tokens
@click.option(
    "--retention",
    type=Retention(),
    default=0,
    show_default=True,
    metavar="N",
    help="vLLM's --prefix-cache-retention-interval: tokens between two states, or none.",
)
@click.option(
    "--turns",
    type=Count(),
    default=10,
    show_default=True,
    metavar="N",
    help="Turns that each conversation takes while another is idle.",
)
@click.option(
    "--kv-cache-dtype",
    metavar="TYPE",
    help="vLLM's --kv-cache-dtype, with --model-config. [auto]",
)
@click.option(
    "--block-tokens",
    type=Count(),
    metavar="N",
    help="Tokens of a block; with --model-config the least, vLLM's --block-size. [16]",
)
@click.option("--token-page", type=Size(), metavar="SIZE", help="Bytes of a block of attention.")
@click.option("--state-page", type=Size(), metavar="SIZE", help="Bytes of a state of one group.")
@click.option("--state-groups", type=Count(), metavar="G", help="Groups of recurrent layers.")
@click.option("as_json", "-j", "--json", is_flag=True, help="Print one JSON document.")
def size(
    ram: int,
    tp: int,
    reference_tokens: int | None,
    retention: int | str,
    turns: int,
    *,
    as_json: bool,
    **pages: Any,
) -> None:
    """Say how many slots a budget of host memory holds, and how many conversations.

    Pages are those of one worker, from a model's config.json or given as numbers; the server's log
    says them as well.
    """
    from tiercache.capacity import capacity
    from tiercache.cli.planning import plan

    groups, context = _groups(tp, **pages)
    geometry = plan(
        "--ram",
        ram,
        groups,
        workers=tp,
        retention=None if isinstance(retention, str) else retention,
        reference_tokens=reference_tokens or context,
    )
    reference = geometry.reference_tokens
    held = [capacity(geometry, reference // part, turns) for part in PARTS if reference >= part]
    if as_json:
        output.document({"schema": SCHEMA, "data": _document(geometry, held, tp, turns)})
        return
    for line in _report(geometry, held, tp, turns):
        output.text(line)


def _groups(
    tp: int,
    model_config: Path | None,
    kv_cache_dtype: str | None,
    block_tokens: int | None,
    **pages: int | None,
) -> "tuple[Sequence[GroupSpec], int | None]":
    """The groups, and the model's context."""
    given = [f"--{name.replace('_', '-')}" for name, value in pages.items() if value is not None]
    if model_config is None:
        if kv_cache_dtype is not None:
            raise click.UsageError("--kv-cache-dtype is for --model-config")
        return _given_groups(block_tokens, **pages), REFERENCE_TOKENS
    if given:
        raise click.UsageError(f"{given[0]} cannot be given with --model-config, which says it")
    from tiercache.modelconfig import read_model

    options = {"block_size": block_tokens, "kv_cache_dtype": kv_cache_dtype}
    chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    model = read_model(model_config, tp=tp, **chosen)
    return model.groups, model.context


def _given_groups(
    block_tokens: int | None,
    token_page: int | None,
    state_page: int | None,
    state_groups: int | None,
) -> "Sequence[GroupSpec]":
    from tiercache.blocks import GroupKind, GroupSpec, align_slot

    if block_tokens is None or (token_page is None and state_page is None):
        raise click.UsageError(
            "the pages are missing: give --model-config, or --block-tokens and --token-page, "
            "--state-page, --state-groups"
        )
    if state_groups is not None and state_page is None:
        raise click.UsageError("--state-groups needs --state-page")
    pages = [(GroupKind.FULL, token_page)] if token_page is not None else []
    if state_page is not None:
        pages += [(GroupKind.STATE, state_page)] * (state_groups or 1)
    return [
        GroupSpec(index, kind, block_tokens, align_slot(page))
        for index, (kind, page) in enumerate(pages)
    ]


def _document(
    geometry: "Geometry", held: "Sequence[Capacity]", tp: int, turns: int
) -> dict[str, object]:
    return {
        "workers": tp,
        "budget_bytes": geometry.budget_bytes,
        "used_bytes": geometry.used_bytes,
        "retention": geometry.retention,
        "reference_tokens": geometry.reference_tokens,
        "token_page": geometry.token_page,
        "state_page": geometry.state_page,
        "token_slots": geometry.token_slots,
        "state_slots": geometry.state_slots,
        "groups": [_group(group, geometry.slots[group.group_id]) for group in geometry.groups],
        "turns": turns,
        "conversations": [_conversations(each) for each in held],
    }


def _group(group: "GroupSpec", slots: int) -> dict[str, object]:
    return {
        "group": group.group_id,
        "kind": group.kind.value,
        "block_tokens": group.tokens_per_chunk,
        "slot_bytes": group.slot_bytes,
        "slots": slots,
    }


def _conversations(held: "Capacity") -> dict[str, object]:
    return {
        "tokens": held.tokens,
        "attention": held.attention,
        "with_demotion": held.demoting,
        "without_demotion": held.plain,
    }


def _report(geometry: "Geometry", held: "Sequence[Capacity]", tp: int, turns: int) -> Iterator[str]:
    used = share(geometry.used_bytes / geometry.budget_bytes)
    each = f"for each of {tp} workers" if tp > 1 else "for one worker"
    yield f"{sized(geometry.budget_bytes)} {each}, {used} of it in slots"
    reference = count(geometry.reference_tokens)
    yield f"state slots for requests of {reference} tokens, {_kept(geometry)}"
    yield ""
    yield from table(
        ("group", "kind", "slots", "block tokens", "slot bytes", "in all"), _rows(geometry)
    )
    yield ""
    yield f"conversations that can be restored after one was idle for {turns} turns of each other"
    heads = ("tokens each", "attention fits", "with demotion", "without")
    yield from table(
        heads,
        [
            tuple("-" if number is None else count(number) for number in astuple(each))
            for each in held
        ],
    )


def _kept(geometry: "Geometry") -> str:
    if geometry.retention is None:
        return "a state at every block"
    if geometry.retention:
        return f"a state every {count(geometry.retention)} tokens and at the end"
    return "a state at the end"


def _rows(geometry: "Geometry") -> Iterator[Sequence[str]]:
    """Neighbours that are alike are one row."""

    def alike(group: "GroupSpec") -> tuple[object, ...]:
        return (
            group.kind,
            group.tokens_per_chunk,
            group.slot_bytes,
            geometry.slots[group.group_id],
        )

    for _, run in groupby(geometry.groups, key=alike):
        groups = list(run)
        first, last = groups[0], groups[-1]
        name = str(first.group_id) if first is last else f"{first.group_id}-{last.group_id}"
        slots = geometry.slots[first.group_id]
        yield (
            name,
            first.kind.value,
            count(slots),
            count(first.tokens_per_chunk),
            count(first.slot_bytes),
            sized(len(groups) * slots * first.slot_bytes),
        )
