# SPDX-License-Identifier: Apache-2.0
"""``tiercache completion``: the lines that make a shell complete commands, groups and sequences."""

import click
from click.shell_completion import get_completion_class

from tiercache.cli import output

EXAMPLES = """\b
Examples:
  eval "$(tiercache completion bash)"                     in ~/.bashrc
  eval "$(tiercache completion zsh)"                      in ~/.zshrc
  tiercache completion fish > ~/.config/fish/completions/tiercache.fish
"""


@click.command(epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes this command's words in a shell.

    Pools, groups and sequences are those of the servers that run at that moment.
    """
    root = ctx.find_root()
    name = root.info_name or "tiercache"
    made = get_completion_class(shell)
    assert made is not None
    script = made(root.command, {}, name, f"_{name.upper()}_COMPLETE")
    output.text(script.source_template % script.source_vars())
