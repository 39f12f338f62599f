# SPDX-License-Identifier: Apache-2.0
"""Small made-up traces, and turns to play."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tiercache.replay.turns import Stream, Turn

#: Of every row of figures, in their order; ``seconds`` or an idle conversation's follow.
ROW_FIELDS = [
    "trace",
    "policy",
    "block_tokens",
    "token_slots",
    "state_slots",
    "requests",
    "prompt_tokens",
    "restored_tokens",
    "restored_share",
    "evicted_live",
    "evicted_demoted",
    "demotions",
    "stranded_tokens",
]
#: Three requests, the second of which goes on from the first.
MOONCAKE: Sequence[Mapping[str, Any]] = (
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 1500, "input_length": 1600, "output_length": 7, "hash_ids": [0, 1, 3, 4]},
    {"timestamp": 3000, "input_length": 512, "output_length": 0, "hash_ids": [9]},
)
BAILIAN: Sequence[Mapping[str, Any]] = (
    {
        "chat_id": 7,
        "parent_chat_id": -1,
        "timestamp": 0.5,
        "input_length": 33,
        "output_length": 4,
        "type": "text",
        "turn": 1,
        "hash_ids": [10, 11, 12],
    },
    {
        "chat_id": 8,
        "parent_chat_id": 7,
        "timestamp": 2.25,
        "input_length": 48,
        "output_length": 1,
        "type": "search",
        "turn": 2,
        "hash_ids": [10, 11, 13],
    },
    {
        "chat_id": 9,
        "parent_chat_id": 8,
        "timestamp": 3,
        "input_length": 16,
        "output_length": 1,
        "type": "text",
        "turn": 3,
        "hash_ids": [10],
    },
)


def compact(
    requests: Sequence[Mapping[str, Any]], *, tools: int = 0, system: int = 0, **fields: Any
) -> dict[str, Any]:
    """A conversation of kv-cache-tester in its compact form."""
    about = {"id": "trace", "block_size": 64, "hash_id_scope": "local"}
    return {
        **about,
        "tool_tokens": tools,
        "system_tokens": system,
        "requests": list(requests),
        **fields,
    }


def going_on(t: float, lcp: int, *runs: tuple[int, int], tokens: int | None = None) -> Any:
    """A request of the compact form: ``lcp`` ids as before, then these runs of ids."""
    ids = lcp + sum(length for _, length in runs)
    prompt = ids * 64 if tokens is None else tokens
    return {"t": t, "in": prompt, "out": 10, "lcp": lcp, "rest": [list(run) for run in runs]}


def published(conversation: Mapping[str, Any]) -> dict[str, Any]:
    """The same conversation as it was published: every id of every request."""
    entries: list[dict[str, Any]] = []
    ids: list[int] = []
    for entry in conversation["requests"]:
        if "other" in entry:
            inner = published({"requests": entry["sub"]})["requests"]
            entries.append({**entry["other"], "type": "subagent", "requests": inner})
            continue
        ids = ids[: entry["lcp"]]
        for first, length in entry["rest"]:
            ids += range(first, first + length)
        kept = {key: entry[key] for key in ("t", "in", "out")}
        entries.append({**kept, "type": "s", "hash_ids": list(ids)})
    return {**conversation, "requests": entries}


def write_lines(path: Path, records: Iterable[Any]) -> Path:
    lines = (r if isinstance(r, str) else json.dumps(r) for r in records)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def named(name: str, blocks: int, *, after: Sequence[bytes] = ()) -> list[bytes]:
    """Hashes of ``after`` and of as many blocks behind it as make ``blocks``."""
    return [*after, *(f"{name}{i}".encode() for i in range(len(after), blocks))]


def turn(hashes: Sequence[bytes], tokens: int, *, time: float = 0.0, of: str = "c") -> Turn:
    return Turn(time, of, hashes, tokens, 1)


def stream(turns: Sequence[Turn], block_tokens: int, *, idle: str | None = None) -> Stream:
    return Stream("made up", block_tokens, lambda: iter(turns), len(turns), idle)
