# SPDX-License-Identifier: Apache-2.0
"""``tiercache replay``: what a cache of a given size would have restored of real requests.

Covers the options and which of them go together; ``tiercache.cli.replaying`` plays and reports.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tiercache.cli.parameters import Count, Listed, Size, flat, joined, reference_tokens
from tiercache.replay.registry import policy_names

if TYPE_CHECKING:
    from tiercache.replay.simulate import Setup

#: The published geometry: 16 GiB for each of four workers.
BLOCK_TOKENS, TOKEN_SLOTS, STATE_SLOTS, STATE_GROUPS = 1_632, 2_255, 30, 7
DEFAULT_POLICIES: Final = ["lru-plain", "lru"]

EXAMPLES = """\b
Examples:
  tiercache replay --scenario idle-conversation --policy lru-plain,lru
  tiercache replay --scenario coding --state-slots 16,30,64 --plot coding.svg
  tiercache replay trace.jsonl.gz --block-tokens 512 --token-slots 100000 --json
  tiercache replay traces/ --conversations 40 --span 7200 --max-requests 80
  tiercache replay trace.jsonl --model-config config.json --tp 4 --budget 32GiB,64GiB
"""


@click.command(epilog=EXAMPLES)
@click.argument(
    "traces", nargs=-1, metavar="[TRACE]...", type=click.Path(exists=True, path_type=Path)
)
@click.option(
    "scenarios",
    "--scenario",
    multiple=True,
    type=Listed(click.STRING),
    metavar="NAME",
    help="Requests made here: idle-conversation, coding or chat.",
)
@click.option("--conversations", type=Count(), metavar="N", help="Play the first N conversations.")
@click.option("--span", type=float, metavar="S", help="Let them begin within S seconds.")
@click.option("--max-requests", type=Count(), metavar="M", help="Play M requests of each at most.")
@click.option(
    "--agents/--no-agents", default=True, help="Play the agents called by them too (default)."
)
@click.option("--strict", is_flag=True, help="Refuse lines that cannot be read; else skip them.")
@click.option(
    "--block-tokens", type=Count(), metavar="N", help=f"Tokens of a block. [{BLOCK_TOKENS}]"
)
@click.option(
    "--token-slots",
    multiple=True,
    type=Listed(Count()),
    metavar="N",
    help=f"Slots of the attention group, one number or more. [{TOKEN_SLOTS}]",
)
@click.option(
    "--state-slots",
    multiple=True,
    type=Listed(Count()),
    metavar="N",
    help=f"Slots of each state group, one number or more. [{STATE_SLOTS}]",
)
@click.option(
    "--state-groups",
    type=Count(0),
    metavar="G",
    help=f"State groups; 0 for attention only. [{STATE_GROUPS}]",
)
@click.option(
    "--model-config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The model's config.json, which says how blocks and groups are, with --budget.",
)
@click.option(
    "budgets",
    "--budget",
    multiple=True,
    type=Listed(Size()),
    metavar="SIZE",
    help="Host memory over all workers, one size or more.",
)
@click.option("--tp", type=Count(), metavar="N", help="Workers that share the model. [1]")
@reference_tokens
@click.option(
    "policies",
    "--policy",
    multiple=True,
    type=Listed(click.STRING),
    metavar="NAME",
    help=f"One or more of {', '.join(policy_names())}. [lru-plain,lru]",
)
@click.option(
    "--nvme",
    type=Count(),
    metavar="SLOTS",
    help="Slots on a disk below, of the largest group; it always keeps up with what is copied.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw the restored share over slots into a .png or .svg.",
)
@click.option(
    "--publish", is_flag=True, help="Write what the caches do where tiercache-top looks for it."
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    help="Play X times as fast as the requests came; else as fast as it goes.",
)
@click.option("as_json", "-j", "--json", is_flag=True, help="Print one JSON document.")
def replay(
    traces: Sequence[Path],
    scenarios: Sequence[tuple[str, ...]],
    policies: Sequence[tuple[str, ...]],
    nvme: int | None,
    plot: Path | None,
    *,
    conversations: int | None,
    span: float | None,
    max_requests: int | None,
    agents: bool,
    strict: bool,
    publish: bool,
    speed: float | None,
    as_json: bool,
    **cache: Any,
) -> None:
    """Play requests through the cache that serves, and say what it restored.

    A TRACE is a file or a folder: Mooncake or Qwen-Bailian JSON lines, or kv-cache-tester
    conversations, gzipped or not. Requests are played one after the other, without an engine; all
    policies and sizes play the same ones. Options that list several values take them separated by
    commas, or are given repeatedly; as many --token-slots as --state-slots are taken in pairs.
    """
    from tiercache.cli import replaying
    from tiercache.replay.conversations import Selection

    if plot is not None:
        replaying.check_picture(plot)
    names = flat(policies) or DEFAULT_POLICIES
    setups = replaying.setups(_sizes(**cache), names, nvme or 0, publish=publish)
    sources = replaying.open_sources(
        traces,
        flat(scenarios),
        block_tokens=setups[0].block_tokens,
        selection=Selection(conversations, span, max_requests, agents),
        strict=strict,
    )
    how = replaying.How(show=not as_json, publish=publish, speed=speed)
    rows = [row for source in sources for row in source.play(setups, how)]
    replaying.report(rows, nvme=nvme, as_json=as_json)
    if plot is not None:
        replaying.draw(rows, plot)


def _sizes(
    block_tokens: int | None,
    token_slots: Sequence[tuple[int, ...]],
    state_slots: Sequence[tuple[int, ...]],
    state_groups: int | None,
    **planned: Any,
) -> "list[Setup]":
    """The caches that were asked for, in slots or in bytes."""
    from tiercache.cli import replaying

    counted = {
        "--block-tokens": block_tokens,
        "--token-slots": token_slots,
        "--state-slots": state_slots,
        "--state-groups": state_groups,
    }
    given = {f"--{name.replace('_', '-')}": value for name, value in planned.items()}
    names = [name for name, value in counted.items() if value not in (None, ())]
    others = [name for name, value in given.items() if value not in (None, ())]
    if names and others:
        raise click.UsageError(f"{names[0]} cannot be given with {others[0]}")
    if others:
        return replaying.planned_sizes(**planned)
    return replaying.counted_sizes(
        block_tokens or BLOCK_TOKENS,
        joined(token_slots) or [TOKEN_SLOTS],
        joined(state_slots) or [STATE_SLOTS],
        STATE_GROUPS if state_groups is None else state_groups,
    )
