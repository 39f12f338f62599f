# SPDX-License-Identifier: Apache-2.0
"""The demo: an idle conversation comes back, played in a real vLLM under three caches.

stdout is for the result, a table or one JSON document; progress goes to stderr and vLLM's own
output to a log file, which is named there.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from lab import idle, shared, transfers
from lab.engine import engine
from lab.models import model_path
from lab.program import positive
from lab.quiet import Terminal, logged, tail
from lab.recipes import QWEN3_NEXT
from lab.report import next_steps, table
from lab.transfers import Transfer

SCHEMA = "tiercache.demo/1"
MIB = 1 << 20

#: Little enough that not everything fits: vLLM's manager gets 160 rows, for attention blocks and
#: states alike, tiercache 131 attention blocks and 18 states in each of three groups.
BUDGET_BYTES = 20 * MIB
#: A typical length of the conversations here; the default is the model's limit of 4,096.
REFERENCE_TOKENS = 1024

RUNS: Mapping[str, Transfer] = {
    "vllm-lru": transfers.baseline(BUDGET_BYTES),
    "tiercache-lru": transfers.tiercache(
        BUDGET_BYTES,
        mamba_state_slots_reference_tokens=REFERENCE_TOKENS,
        demote_superseded_states=False,
    ),
    "tiercache-demote": transfers.tiercache(
        BUDGET_BYTES, mamba_state_slots_reference_tokens=REFERENCE_TOKENS
    ),
}

EPILOG = """\
examples:
  scripts/demo                 a table, and how to start a server
  scripts/demo --json          one JSON document on stdout
  scripts/demo --repeats 1     play each run once: quicker, noisier times
  scripts/demo --shared        two servers and a store: what one computes the other restores

Exit code 0: the conversation, or the shared prompt, was restored with the tokens of a cold run.
1: it was not, or a run failed. 2: wrong arguments, or --shared without the extra for it.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.shared:
        return shared.main(as_json=options.json)
    descriptor, name = tempfile.mkstemp(prefix="tiercache-demo-", suffix=".log")
    os.close(descriptor)
    runs = _play_all(options.repeats, Path(name))
    _print(runs, as_json=options.json, repeats=options.repeats)
    return _verdict(runs)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document, no table")
    parser.add_argument(
        "--repeats",
        type=positive,
        default=3,
        metavar="N",
        help="plays per run; the time shown is their median (default: %(default)s)",
    )
    parser.add_argument(
        "--shared", action="store_true", help="two servers that share a Mooncake store, instead"
    )
    return parser.parse_args(arguments)


def _play_all(repeats: int, log: Path) -> list[idle.Run]:
    print(f"demo: vLLM's own output goes to {log}", file=sys.stderr)
    try:
        with logged(log) as terminal:
            return [_play(name, transfer, repeats, terminal) for name, transfer in RUNS.items()]
    except Exception:
        print(f"demo: the end of {log}:\n{tail(log)}demo: failed", file=sys.stderr)
        raise


def _play(name: str, transfer: Transfer, repeats: int, terminal: Terminal) -> idle.Run:
    scenario = idle.Scenario()
    started = time.monotonic()
    terminal.say(f"demo: {name}: starting vLLM")
    with engine(QWEN3_NEXT, transfer) as running:
        idle.warm_up(running, scenario)
        plays = []
        for number in range(1, repeats + 1):
            terminal.say(f"demo: {name}: play {number} of {repeats}")
            plays.append(idle.play(running, scenario))
    run = idle.Run.of(name, plays)
    terminal.say(f"demo: {name}: {run.restored_tokens} tokens, {time.monotonic() - started:.0f} s")
    return run


def _print(runs: Sequence[idle.Run], *, as_json: bool, repeats: int) -> None:
    if as_json:
        print(json.dumps({"schema": SCHEMA, "runs": [asdict(run) for run in runs]}))
        return
    print(table(runs, idle.Scenario(), BUDGET_BYTES, repeats))
    print(next_steps(model_path(QWEN3_NEXT), QWEN3_NEXT, RUNS["tiercache-demote"]))


def _verdict(runs: Sequence[idle.Run]) -> int:
    demote = runs[-1]
    if not demote.restored_tokens or not demote.tokens_equal:
        print(f"demo: {demote.name} did not bring the conversation back", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
