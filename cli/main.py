# SPDX-License-Identifier: Apache-2.0
"""The ``tiercache`` command: a table of commands, none imported before it runs."""

from collections.abc import Sequence
from typing import NoReturn

import click

from tiercache.cli import diagnostics, output
from tiercache.cli.lazy import Deferred, LazyGroup

PROGRAM = "tiercache"
DISTRIBUTION = "tiercache-kv"

LOOK, CARE, WORK, SETUP = "Look", "Care", "Work", "Setup"

#: In the order of the help, which has a heading for each section.
COMMANDS = {
    "stat": Deferred(
        "tiercache.cli.commands.stat:stat", "A pool on one screen, or a line per interval.", LOOK
    ),
    "groups": Deferred(
        "tiercache.cli.commands.groups:groups", "Slots of each group; what goes next.", LOOK
    ),
    "tiers": Deferred(
        "tiercache.cli.commands.tiers:tiers", "What each tier holds, restored, how fast.", LOOK
    ),
    "ls": Deferred("tiercache.cli.commands.ls:ls", "Keys that are on a disk.", LOOK),
    "seq": Deferred(
        "tiercache.cli.commands.seq:seq", "Conversations: what can be restored, why not more.", LOOK
    ),
    "next": Deferred(
        "tiercache.cli.commands.next:next_", "Who is evicted next, and what is lost.", LOOK
    ),
    "show": Deferred(
        "tiercache.cli.commands.show:show", "One entry on a disk: where, what, intact?", LOOK
    ),
    "events": Deferred(
        "tiercache.cli.commands.events:events", "What happened to entries; -f follows.", LOOK
    ),
    "top": Deferred("tiercache.tui.app:top", "Watch the cache of a running server.", LOOK),
    "verify": Deferred(
        "tiercache.cli.commands.verify:verify", "Look for damage on a disk, and put it right.", CARE
    ),
    "prune": Deferred(
        "tiercache.cli.commands.prune:prune", "Make room: the oldest entries go first.", CARE
    ),
    "compact": Deferred(
        "tiercache.cli.commands.compact:compact", "Give back space that no entry needs.", CARE
    ),
    "drop": Deferred("tiercache.cli.commands.drop:drop", "Remove entries and their bytes.", CARE),
    "export": Deferred(
        "tiercache.cli.commands.export:export", "Write index and records to files.", CARE
    ),
    "import": Deferred(
        "tiercache.cli.commands.import_:import_", "Bring back what was exported.", CARE
    ),
    "gc": Deferred("tiercache.cli.commands.prune:prune", "An alias.", CARE, hidden=True),
    "fsck": Deferred("tiercache.cli.commands.verify:verify", "An alias.", CARE, hidden=True),
    "dump": Deferred("tiercache.cli.commands.export:export", "An alias.", CARE, hidden=True),
    "bench": Deferred(
        "tiercache.cli.commands.bench:bench", "Measure memory and disk through our code.", WORK
    ),
    "replay": Deferred(
        "tiercache.cli.commands.replay:replay",
        "Play requests through the cache; say what it restores.",
        WORK,
    ),
    "size": Deferred(
        "tiercache.cli.commands.size:size", "Say what a budget of memory holds.", SETUP
    ),
    "connector-config": Deferred(
        "tiercache.cli.commands.connector_config:connector_config",
        "Print the JSON for vLLM's --kv-transfer-config.",
        SETUP,
    ),
    "doctor": Deferred(
        "tiercache.cli.commands.doctor:doctor", "Is this machine ready? Lines with cures.", SETUP
    ),
    "completion": Deferred(
        "tiercache.cli.commands.completion:completion", "Make a shell complete words.", SETUP
    ),
}

EXAMPLES = """\b
Examples:
  vllm serve MODEL --kv-transfer-config "$(tiercache connector-config --cpu-bytes 64GiB)"
  tiercache stat 1
  tiercache next
  tiercache seq --stranded
  tiercache ls --pool /mnt/nvme/tiercache --json
  tiercache verify /mnt/nvme/tiercache
  tiercache doctor /mnt/nvme/tiercache
  tiercache COMMAND --help
"""


@click.group(
    cls=LazyGroup,
    deferred=COMMANDS,
    epilog=EXAMPLES,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(None, "-V", "--version", package_name=DISTRIBUTION, prog_name=PROGRAM)
@click.pass_context
def tiercache(ctx: click.Context) -> None:
    """A tiered KV cache for vLLM."""
    if ctx.invoked_subcommand is None:
        output.text(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the ``tiercache`` command."""
    diagnostics.run(tiercache, PROGRAM, arguments)
