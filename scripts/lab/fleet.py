# SPDX-License-Identifier: Apache-2.0
"""Plays requests over machines with memory and disks of their own, and a tier that they share.

Every machine is a cache that serves, with a model of a disk below (see docs/replay.md); the shared
tier is one more such store, which all write to and read from. `sticky` sends a conversation to the
machine where it was before, `random` anywhere, `balanced` where fewest tokens went so far.

Columns: the restored share of all prompt tokens by the tier from which attention came; `gain`, what
the shared tier added to the same fleet without one, in points (give --shared 0 as well); how many
requests came to another machine than their conversation's last, and what share of them was
restored; the tokens that the busiest machine computed, over the mean; and from how many GB/s on the
network gives tokens back sooner than a machine computes them: `each` restore alone, and `all` that
crossed it, what was written and never read included, over the tokens gained.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from lab.fleet_machines import ROUTERS, Fleet, play
from lab.fleet_report import Costs, Row, document, row, table, with_gains
from lab.program import say
from tiercache.errors import ConfigError, TraceError
from tiercache.replay.conversations import Selection
from tiercache.replay.simulate import Setup
from tiercache.replay.traces import open_trace
from tiercache.replay.turns import Stream
from tiercache.replay.workloads import SCENARIOS, scenario

EPILOG = """\
examples:
  scripts/fleet --scenario coding --machines 1,4 --shared 0,50000
  scripts/fleet trace.jsonl.gz --block-tokens 512 --state-groups 0 --json
  scripts/fleet --scenario coding --machines 4 --routing sticky --shared 0,50000 --leaves 3600
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    costs = Costs(options.token_page, options.state_page, options.compute_rate)
    try:
        rows = with_gains(list(played(options, costs)), costs)
    except (ConfigError, TraceError) as error:
        say(f"fleet: {error}")
        return 2
    print(document(rows) if options.json else table(rows))
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/fleet",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_requests(parser)
    _add_machines(parser)
    _add_costs(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser.parse_args(arguments)


def _add_requests(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("requests").add_argument
    add("trace", type=Path, nargs="?", help="a trace, as for tiercache replay")
    add("--scenario", choices=SCENARIOS, default="coding", help="without one (%(default)s)")
    add("--conversations", type=int, metavar="N", help="of them")
    add("--span", type=float, metavar="S", help="seconds in which they begin")
    add("--max-requests", type=int, metavar="M", help="of each of them")
    add("--no-agents", action="store_true", help="without the agents that they called")
    add("--grow", action="store_true", help="N conversations for each machine, in the same span")


def _add_machines(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("machines").add_argument
    add("--machines", type=_counts, default="1,2,4,8", metavar="N,…", help="(%(default)s)")
    names = ",".join(ROUTERS)
    add("--routing", type=_routing, default=names, metavar="NAME,…", help="(%(default)s)")
    add("--block-tokens", type=int, default=1632, metavar="N", help="(%(default)s)")
    add("--token-slots", type=int, default=2255, metavar="N", help="of each (%(default)s)")
    add("--state-slots", type=int, default=30, metavar="N", help="of each (%(default)s)")
    add("--state-groups", type=int, default=7, metavar="G", help="(%(default)s)")
    add("--policy", default="lru", help="(%(default)s)")
    add("--disk", type=_counts, default="22550", metavar="SLOTS,…", help="of each (%(default)s)")
    add("--shared", type=_counts, default="0,100000", metavar="SLOTS,…", help="(%(default)s)")
    add("--leaves", type=float, metavar="S", help="the first machine leaves after S seconds")


def _add_costs(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("costs, by default the published ones").add_argument
    page, state = 4 * 7_204_864, 4 * 4_415_488
    add("--token-page", type=int, default=page, metavar="BYTES", help="(%(default)s)")
    add("--state-page", type=int, default=state, metavar="BYTES", help="(%(default)s)")
    add("--compute-rate", type=float, default=1921.0, metavar="TOKENS/S", help="(%(default)s)")


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _routing(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in ROUTERS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(ROUTERS)}")
    return names


def played(options: argparse.Namespace, costs: Costs) -> Iterator[Row]:
    """A row for each fleet; says on stderr what is being played."""
    setup = Setup.uniform(
        block_tokens=options.block_tokens,
        token_slots=options.token_slots,
        state_slots=options.state_slots,
        state_groups=options.state_groups,
        policy=options.policy,
    )
    sizes = product(options.machines, options.routing, options.disk, options.shared)
    for machines, routing, disk, shared in sizes:
        if machines == 1 and routing != options.routing[0]:
            continue
        machine = replace(setup, disk_slots=disk)
        fleet = Fleet(machine, machines, routing, shared, options.leaves)
        say(f"{machines} machines, {routing}, {disk:,} slots on disk each, {shared:,} shared")
        stream = requests(options, machines)
        found = row(stream.name, fleet, play(stream, fleet), costs)
        say(f"  restored {100 * found['restored_share']:.2f} %")
        yield found


def requests(options: argparse.Namespace, machines: int) -> Stream:
    """The requests that so many machines get together."""
    count = options.conversations
    selection = Selection(
        conversations=count * machines if count and options.grow else count,
        span=options.span,
        max_requests=options.max_requests,
        agents=not options.no_agents,
    )
    if options.trace:
        return open_trace(options.trace, block_tokens=options.block_tokens, selection=selection)
    if options.scenario == SCENARIOS[0]:
        selection = Selection()
    return scenario(options.scenario, block_tokens=options.block_tokens, selection=selection)


if __name__ == "__main__":
    sys.exit(main())
