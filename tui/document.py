# SPDX-License-Identifier: Apache-2.0
"""The JSON form of a frame, ``tiercache.top/1``: raw numbers, null where nobody reports.

Covers what is there beside the snapshot: how fresh it is, and slots that can be told from others.
"""

from dataclasses import fields
from typing import Any

from tiercache.stats.model import Snapshot
from tiercache.tui.frame import Frame
from tiercache.tui.plain import to_plain

SCHEMA = "tiercache.top/1"


def document(frame: Frame) -> dict[str, object]:
    """Everything in ``frame`` that is a fact about the cache, and how fresh it is.

    Times are seconds since the epoch, sizes bytes.
    """
    status = frame.status
    return {
        "schema": SCHEMA,
        "target": frame.target,
        "state": status.state.lower().replace(" ", "_"),
        "reason": status.reason,
        "since": status.since,
        **(_nothing() if frame.latest is None else _snapshot(frame.latest)),
    }


def _snapshot(latest: Snapshot) -> dict[str, Any]:
    known: dict[str, Any] = to_plain(latest)
    for group, plain in zip(latest.groups, known["groups"], strict=True):
        plain["slots"] |= {"capacity": group.slots.capacity, "spare": group.slots.spare}
    return known


def _nothing() -> dict[str, Any]:
    """The fields of a snapshot that nobody has taken yet."""
    empty = {field.name: field.default for field in fields(Snapshot)}
    return {name: [] if default == () else None for name, default in empty.items()}
