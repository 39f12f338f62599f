# SPDX-License-Identifier: Apache-2.0
"""Types of options that several commands have: sizes, lists and the retention of states."""

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from tiercache.errors import ConfigError
from tiercache.tierconfig import parse_bytes

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:  # click says before 8.4 that it takes no argument
    ParamType = click.ParamType


class Size(ParamType):
    """A size such as 64GiB; becomes bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return parse_bytes(_name(param), value)


class Retention(ParamType):
    """Tokens between two states that the engine keeps, or ``none`` for one at every block."""

    name = "retention"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        if value == "none":
            return "none"
        if not str(value).isdecimal():
            raise ConfigError(_name(param), value, "tokens of at least 0, or none: every block")
        return int(value)


class Listed(ParamType):
    """Values of another type, separated by commas; becomes a tuple of them."""

    def __init__(self, each: ParamType) -> None:
        self.each = each
        self.name = f"{each.name} list"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        parts = str(value).split(",")
        return tuple(self.each.convert(part.strip(), param, ctx) for part in parts)


def flat(listed: Iterable[tuple[Any, ...]]) -> list[Any]:
    """What an option that is given repeatedly as a list says in all, each value once."""
    return list(dict.fromkeys(joined(listed)))


def joined(listed: Iterable[tuple[Any, ...]]) -> list[Any]:
    """What such an option says in all, as often as it says it."""
    return list(chain.from_iterable(listed))


class Count(ParamType):
    """An integer of at least ``least``."""

    name = "count"

    def __init__(self, least: int = 1) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        # Nothing here has more than a million million of something.
        if not str(value).isdecimal() or not self.least <= int(str(value)[:13]) <= 10**12:
            raise ConfigError(_name(param), value, f"an integer of at least {self.least}")
        return int(value)


def _name(param: click.Parameter | None) -> str:
    return param.opts[0] if param is not None else "value"


reference_tokens = click.option(
    "--reference-tokens",
    type=Count(),
    metavar="N",
    help="Length that state slots are sized for. [the model's context]",
)
