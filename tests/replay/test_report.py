# SPDX-License-Identifier: Apache-2.0
import json

from tests.replay.samples import ROW_FIELDS, named, stream, turn
from tiercache.replay.report import document, row
from tiercache.replay.simulate import Setup, simulate

TURNS = [turn(named("a", 4), 65), turn(named("a", 6), 100)]
SETUP = Setup.uniform(block_tokens=16, token_slots=8, state_slots=4, policy="lru-plain")


def test_a_row_has_the_fields_of_the_schema() -> None:
    figures = row(simulate(stream(TURNS, 16), SETUP))
    assert list(figures) == [*ROW_FIELDS, "seconds"]
    assert figures["policy"] == "lru-plain"
    assert (figures["token_slots"], figures["state_slots"]) == (8, 4)
    assert figures["restored_tokens"] == 64
    assert figures["restored_share"] == round(64 / 165, 6)


def test_the_idle_conversation_is_named_where_there_is_one() -> None:
    figures = row(simulate(stream(TURNS, 16, idle="c"), SETUP))
    assert figures["idle_restored_tokens"] == 64


def test_nothing_played_is_nothing_restored() -> None:
    assert row(simulate(stream([], 16), SETUP))["restored_share"] == 0


def test_a_document_is_json() -> None:
    rows = [row(simulate(stream(TURNS, 16), SETUP))]
    read = json.loads(json.dumps(document(rows), allow_nan=False))
    assert read == {"schema": "tiercache.replay/1", "data": rows}
