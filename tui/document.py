# SPDX-License-Identifier: Apache-2.0
"""The JSON form of a frame, ``tiercache.top/1``: raw integers, null where nobody reports."""

from collections.abc import Mapping
from datetime import UTC, datetime

from tiercache.tui.frame import Frame
from tiercache.tui.snapshot import Group

SCHEMA = "tiercache.top/1"
SOURCE = "metrics"


def document(frame: Frame) -> dict[str, object]:
    """Everything in ``frame`` that is a fact about the cache, and how fresh it is."""
    latest = frame.latest
    return {
        "schema": SCHEMA,
        "source": SOURCE,
        "url": frame.url,
        "state": frame.status.state.lower().replace(" ", "_"),
        "reason": frame.status.reason,
        "taken": None if latest is None else _iso(latest.taken),
        "models": [] if latest is None else list(latest.models),
        "groups": [] if latest is None else [_group(group) for group in latest.groups],
        "totals": None if latest is None else _counters(latest.totals()),
    }


def _group(group: Group) -> dict[str, object]:
    return {
        "engine": group.engine,
        "group": group.name,
        "kind": group.kind,
        "slots": group.slots._asdict() | {"total": group.capacity},
        "spare": group.spare,
        **_counters(group.counters._asdict()),
    }


def _counters(counters: Mapping[str, int | None]) -> dict[str, object]:
    """The counters, with the two kinds of evictions together."""
    evictions = {"live": counters["evicted_live"], "demoted": counters["evicted_demoted"]}
    rest = {name: value for name, value in counters.items() if not name.startswith("evicted_")}
    return {"evictions": evictions, **rest}


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
