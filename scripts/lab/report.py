# SPDX-License-Identifier: Apache-2.0
"""What the demo prints: the table, and how to go on from there."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.arguments import server_flags
from lab.environment import VARIABLES
from lab.idle import Run, Scenario
from lab.recipes import Recipe
from lab.server import MODULE
from lab.transfers import Transfer

HEADINGS = ("", "restored", "of", "first token", "others cached", "tokens as cold")
MIB = 1 << 20
PORT = 8000


def table(runs: Sequence[Run], scenario: Scenario, budget: int, repeats: int) -> str:
    """The three runs side by side, with what was played."""
    rows = [HEADINGS, *(_cells(run) for run in runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(_padded(row, widths)).rstrip() for row in rows]
    return "\n".join([_story(scenario, budget, repeats), *(f"  {line}" for line in lines), ""])


def _story(scenario: Scenario, budget: int, repeats: int) -> str:
    times = f"median of {repeats} plays" if repeats > 1 else "a single play"
    return (
        f"\nConversation A sends {scenario.idle_tokens:,} + {scenario.turn_tokens} tokens and goes"
        f" idle. {scenario.others} others of {scenario.other_tokens} tokens\n"
        f"take {scenario.turns} turns of {scenario.turn_tokens} tokens each. Then the device cache"
        f" is emptied and A returns with {scenario.turn_tokens} more.\n"
        f"Every run has the same {budget / MIB:g} MiB of host memory. First token: {times}.\n"
    )


def _cells(run: Run) -> tuple[str, ...]:
    return (
        run.name,
        f"{run.restored_tokens:,}",
        f"{run.prompt_tokens:,}",
        f"{run.ttft_ms:.0f} ms",
        f"{run.others_cached:.1%}",
        "yes" if run.tokens_equal else "NO",
    )


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    names, *figures = zip(row, widths, strict=True)
    return [names[0].ljust(names[1]), *(cell.rjust(width) for cell, width in figures)]


def next_steps(model: Path, recipe: Recipe, transfer: Transfer) -> str:
    """Commands to copy: a server with the model just made, and ways to look at it."""
    url = f"http://127.0.0.1:{PORT}"
    prompt = json.dumps({"model": recipe.name, "prompt": "Tell me more. " * 16, "temperature": 0})
    monitor = Path(sys.executable).with_name("tiercache-top")
    return f"""\
Start a server with tiercache and the model just made:

{_server_command(model, recipe, transfer)}

Ask it something, empty the device cache, ask again, and look at it:

  curl -s {url}/v1/completions -H 'Content-Type: application/json' \\
    -d {shlex.quote(prompt)}
  curl -s -X POST {url}/reset_prefix_cache
  curl -s {url}/metrics | grep vllm:tiercache_
  {shlex.quote(str(monitor))} --url {url}/metrics
"""


def _server_command(model: Path, recipe: Recipe, transfer: Transfer) -> str:
    variables = " ".join(f"{name}={value}" for name, value in VARIABLES.items())
    program = shlex.join([sys.executable, "-m", MODULE])
    flags = map(shlex.join, server_flags(recipe, model, transfer, PORT))
    return "  " + " \\\n    ".join([f"env {variables}", program, *flags])
