# SPDX-License-Identifier: Apache-2.0
"""A command group that imports a command when it runs, and none of them to print its help."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click


class Deferred(NamedTuple):
    """Where a command is found, as ``module:attribute``, and what the group's help says of it."""

    target: str
    help: str

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
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.deferred[name].help) for name in sorted(self.deferred)])
