# SPDX-License-Identifier: Apache-2.0
"""The pools of this machine, as ``--list`` shows them."""

from collections.abc import Iterator

from tiercache.cli.table import table as plain_table
from tiercache.stats import pools
from tiercache.stats.pools import Found

SCHEMA = "tiercache.pools/1"
HEADS = ("pool", "pid", "rank", "state", "path")


def table() -> Iterator[str]:
    """A head and a line for each pool, the newest first; or a sentence."""
    known = pools.found(pools.directory())
    if not known:
        yield f"no pools in {pools.directory()}"
        return
    rows = [(p.name, str(p.pid), str(p.rank), _state(p), str(p.path)) for p in known]
    yield from plain_table(HEADS, rows, left=(0, 3, 4))


def document() -> dict[str, object]:
    """The same as JSON."""
    known = pools.found(pools.directory())
    data = [
        {"pool": p.name, "pid": p.pid, "rank": p.rank, "state": _state(p), "path": str(p.path)}
        for p in known
    ]
    return {"schema": SCHEMA, "data": data}


def _state(pool: Found) -> str:
    if pool.phase is None:
        return "unreadable"
    return "running" if pool.runs else "closed" if pool.phase.name == "CLOSED" else "ended"
