# SPDX-License-Identifier: Apache-2.0
"""From a budget that was given on the command line to slots, as a server divides it."""

from collections.abc import Sequence

import click

from tiercache.blocks import GroupSpec
from tiercache.errors import ConfigError
from tiercache.layout import Geometry, plan_geometry


def plan(
    option: str,
    budget: int,
    groups: Sequence[GroupSpec],
    *,
    workers: int,
    retention: int | None,
    reference_tokens: int | None,
) -> Geometry:
    """Divide ``budget`` bytes over all workers; ``option`` is where they were given.

    Raises ConfigError and click.UsageError if that does not work out.
    """
    if reference_tokens is None:
        raise click.UsageError("the model's file names no context: give --reference-tokens")
    try:
        return plan_geometry(
            groups,
            budget_bytes=budget // workers,
            retention=retention,
            reference_tokens=reference_tokens,
        )
    except ConfigError as error:
        if error.key != "cpu_bytes_to_use":
            raise
        raise ConfigError(option, budget, f"{error.allowed}, of {workers}") from None
