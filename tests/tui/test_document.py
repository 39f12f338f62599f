# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import fields, replace

from tiercache.stats.model import Snapshot
from tiercache.tui.document import document
from tiercache.tui.feed import State, Status
from tiercache.tui.frame import Frame

BESIDE = {"schema", "target", "state", "reason", "since"}


def test_all_of_the_snapshot_is_there(live: Frame) -> None:
    found = json.loads(json.dumps(document(live), allow_nan=False))
    assert set(found) == BESIDE | {field.name for field in fields(Snapshot)}
    assert (found["schema"], found["state"], found["source"]) == (
        *("tiercache.top/1", "live", "segment"),
    )
    assert found["groups"][7] == {
        "name": "g7",
        "kind": "state",
        "slots": {
            "free": 0,
            "storing": 1,
            "live": 28,
            "demoted": 0,
            "pinned": 1,
            "capacity": 30,
            "spare": 0,
        },
        "slot_bytes": 4_415_488,
        "chunk_tokens": 1632,
        "oldest_live": 1_799_999_760.0,
        "counts": {
            "demoted": 124,
            "evicted_demoted": 72,
            "evicted_live": 4,
            "refused": 4,
        },
    }
    assert found["sequences"][0]["loss"]["by"] == 0x91BE02
    assert len(found["ram"]["histogram"]) == 128


def test_nothing_is_known_yet(live: Frame) -> None:
    status = Status(State.NO_TIERCACHE, live.now, "none")
    found = document(replace(live, status=status, history=()))
    assert (found["state"], found["reason"], found["since"]) == ("no_tiercache", "none", live.now)
    lists = {"groups", "tiers", "sequences", "victims", "events"}
    rest = found.keys() - BESIDE - {"target"}
    assert {name: found[name] for name in rest} == {
        name: [] if name in lists else None for name in rest
    }
