# SPDX-License-Identifier: Apache-2.0
"""A command group that imports a command when it runs, and none of them to print its help."""

from collections.abc import Mapping
from importlib import import_module
from itertools import groupby
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem


class Deferred(NamedTuple):
    """Where a command is found, as ``module:attribute``, and what the group's help says of it.

    Commands that follow each other and have the same ``section`` are under one heading.
    """

    target: str
    help: str
    section: str = "Commands"
    hidden: bool = False
    """Whether it is an alias that help and completion leave out."""

    def load(self) -> click.Command:
        module, _, attribute = self.target.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


class LazyGroup(click.Group):
    """A group whose commands are known by name and one line of help until one of them runs."""

    def __init__(self, *args: Any, deferred: Mapping[str, Deferred], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.deferred = deferred

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.deferred)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        deferred = self.deferred.get(cmd_name)
        return None if deferred is None else deferred.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, self.deferred))
        for section, commands in groupby(self._shown.items(), lambda item: item[1].section):
            with formatter.section(section):
                rows = [(name.ljust(longest), command.help) for name, command in commands]
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Words that may follow; click's own would import every command to ask for its help."""
        names = [
            CompletionItem(name, help=command.help)
            for name, command in self._shown.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    @property
    def _shown(self) -> dict[str, Deferred]:
        return {name: command for name, command in self.deferred.items() if not command.hidden}
