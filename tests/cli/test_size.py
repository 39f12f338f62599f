# SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command

#: The published geometry, on four workers.
PAGES = ("--block-tokens", 1632, "--token-page", 7204864, "--state-page", 4415488)
PUBLISHED = (*PAGES, "--state-groups", 7, "--ram", "64GiB", "--tp", 4)


def data(command: Command, *arguments: object) -> dict[str, Any]:
    code, out, err = command("size", *arguments, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert list(document) == ["schema", "data"]
    assert document["schema"] == "tiercache.size/1"
    found: dict[str, Any] = document["data"]
    return found


@pytest.mark.parametrize(
    ("reference", "slots"), [((), (2_255, 30)), (("--reference-tokens", 524_288), (2_315, 16))]
)
def test_the_published_geometry(
    command: Command, reference: Sequence[object], slots: tuple[int, int]
) -> None:
    found = data(command, *PUBLISHED, *reference)
    assert (found["token_slots"], found["state_slots"]) == slots
    assert found["token_page"] == 7_204_864
    assert found["state_page"] == 7 * 4_415_488
    assert found["budget_bytes"] == 16 * 2**30 >= found["used_bytes"]
    assert [group["kind"] for group in found["groups"]] == ["full", *["state"] * 7]


def test_the_document(command: Command) -> None:
    found = data(command, *PUBLISHED, "--turns", 39)
    assert list(found) == [
        "workers",
        "budget_bytes",
        "used_bytes",
        "retention",
        "reference_tokens",
        "token_page",
        "state_page",
        "token_slots",
        "state_slots",
        "groups",
        "turns",
        "conversations",
    ]
    assert found["groups"][1] == {
        "group": 1,
        "kind": "state",
        "block_tokens": 1_632,
        "slot_bytes": 4_415_488,
        "slots": 30,
    }
    assert found["conversations"][-1] == {
        "tokens": 262_144,
        "attention": 14,
        "with_demotion": 10,
        "without_demotion": 1,
    }


def test_a_table_that_fits_a_terminal(command: Command) -> None:
    code, out, err = command("size", *PUBLISHED)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "16 GiB for each of 4 workers, 99.97 % of it in slots",
        "state slots for requests of 262,144 tokens, a state at the end",
        "",
        "group   kind  slots  block tokens  slot bytes    in all",
        "0       full  2,255         1,632   7,204,864  15.1 GiB",
        "1-7    state     30         1,632   4,415,488   884 MiB",
        "",
        "conversations that can be restored after one was idle for 10 turns of each other",
        "tokens each  attention fits  with demotion  without",
        "8,192                   375             10        6",
        "16,384                  205             10        3",
        "32,768                  107             10        2",
        "65,536                   55             10        2",
        "131,072                  27             10        2",
        "262,144                  14             10        2",
    ]


@pytest.mark.parametrize(
    ("retention", "words"),
    [("none", "a state at every block"), (16_320, "a state every 16,320 tokens and at the end")],
)
def test_retention(command: Command, retention: object, words: str) -> None:
    _, out, _ = command("size", *PUBLISHED, "--retention", retention)
    assert words in out
    sparse, dense = (
        data(command, *PUBLISHED, "--retention", each)["state_slots"] for each in (0, retention)
    )
    assert dense > sparse


def test_a_model(command: Command, model_file: Callable[[str], Path]) -> None:
    found = data(command, "--model-config", model_file("qwen3_5"), "--ram", "64GiB", "--tp", 4)
    assert found["reference_tokens"] == 262_144
    assert [group["kind"] for group in found["groups"]] == ["state", "state", "state", "full"]
    assert {group["block_tokens"] for group in found["groups"]} == {784}


def test_a_model_of_attention_alone(command: Command, model_file: Callable[[str], Path]) -> None:
    found = data(command, "--model-config", model_file("llama"), "--ram", "64GiB")
    assert (found["token_slots"], found["state_slots"]) == (64 * 2**30 // 2**21, 0)
    assert all(
        each["attention"] == each["with_demotion"] == each["without_demotion"]
        for each in found["conversations"]
    )


def test_keys_and_values_in_fewer_bytes(
    command: Command, model_file: Callable[[str], Path]
) -> None:
    model = ("--model-config", model_file("llama"), "--ram", "8GiB")
    whole, half = (data(command, *model, *given) for given in ((), ("--kv-cache-dtype", "fp8")))
    assert half["token_slots"] == 2 * whole["token_slots"]


def test_a_model_without_attention(command: Command, model_file: Callable[[str], Path]) -> None:
    model = ("--model-config", model_file("mamba2"), "--ram", "8GiB")
    code, out, err = command("size", *model)
    assert (code, out) == (2, "")
    assert "give --reference-tokens" in err
    code, out, _ = command("size", *model, "--reference-tokens", 4096)
    assert code == 0
    assert out.splitlines()[-1].split() == ["4,096", "-", "33", "5"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--ram"),
        (["--ram", "1GiB"], "the pages are missing"),
        (["--ram", "1GiB", "--block-tokens", "16"], "the pages are missing"),
        (["--ram", "much", *PAGES], "--ram: 'much' is not allowed"),
        (["--ram", "1MiB", *PAGES], "--ram: 1048576 is not allowed; allowed: at least 11620352"),
        (["--ram", "1GiB", *PAGES, "--tp", "0"], "--tp: '0' is not allowed"),
        (["--ram", "1GiB", *PAGES, "--retention", "-1"], "--retention: '-1' is not allowed"),
        (["--ram", "1GiB", *PAGES, "--retention", "x"], "tokens of at least 0, or none"),
        (["--ram", "1GiB", *PAGES, "--kv-cache-dtype", "fp8"], "is for --model-config"),
        (["--ram", "1GiB", *PAGES, "--model-config", "x"], "--token-page cannot be given with"),
        (
            ["--ram", "1GiB", "--block-tokens", "16", "--token-page", "9", "--state-groups", "2"],
            "--state-groups needs --state-page",
        ),
        (["--ram", "1GiB", "--model-config", "/none.json"], "model_config: '/none.json'"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    command: Command, arguments: Sequence[object], words: str
) -> None:
    code, out, err = command("size", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("tiercache: error: ")
    assert err.count("\n") == 1
    assert words in err.lower()


def test_a_model_that_is_not_known_is_exit_1(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "bert"}')
    code, out, err = command("size", "--model-config", path, "--ram", "1GiB")
    assert (code, out) == (1, "")
    assert "model_type 'bert' is not known: its pages have to be given" in err
    assert err.count("\n") == 1
