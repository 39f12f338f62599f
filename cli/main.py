# SPDX-License-Identifier: Apache-2.0
"""The ``tiercache`` command: a table of commands, none imported before it runs."""

from collections.abc import Sequence
from typing import NoReturn

import click

from tiercache.cli import diagnostics, output
from tiercache.cli.lazy import Deferred, LazyGroup

PROGRAM = "tiercache"
DISTRIBUTION = "tiercache-kv"

COMMANDS = {
    "connector-config": Deferred(
        "tiercache.cli.commands.connector_config:connector_config",
        "Print the JSON for vLLM's --kv-transfer-config.",
    ),
    "replay": Deferred(
        "tiercache.cli.commands.replay:replay",
        "Play requests through the cache; say what it restores.",
    ),
    "size": Deferred(
        "tiercache.cli.commands.size:size",
        "Say what a budget of memory holds.",
    ),
    "top": Deferred("tiercache.tui.app:top", "Watch the cache of a running server."),
}

EXAMPLES = """\b
Examples:
  vllm serve MODEL --kv-transfer-config "$(tiercache connector-config --cpu-bytes 64GiB)"
  tiercache connector-config --set eviction_policy=arc --shell
  tiercache replay --scenario coding --state-slots 16,30,64
  tiercache size --model-config config.json --ram 64GiB --tp 4
  tiercache top --url http://127.0.0.1:8000/metrics
  tiercache top --once --json
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
