# SPDX-License-Identifier: Apache-2.0
import shlex
from pathlib import Path

from lab import transfers
from lab.idle import Run, Scenario
from lab.recipes import QWEN3_NEXT
from lab.report import next_steps, table

RUNS = [
    Run("vllm-lru", 2_240, 0, 178.4, 0.8632, tokens_equal=True),
    Run("tiercache-demote", 2_240, 2_112, 48.0, 0.8632, tokens_equal=False),
]

TABLE = """
Conversation A sends 2,000 + 100 tokens and goes idle. 3 others of 600 tokens
take 8 turns of 100 tokens each. Then the device cache is emptied and A returns with 100 more.
Every run has the same 20 MiB of host memory. First token: median of 3 plays.

                    restored     of  first token  others cached  tokens as cold
  vllm-lru                 0  2,240       178 ms          86.3%             yes
  tiercache-demote     2,112  2,240        48 ms          86.3%              NO
"""


def test_table() -> None:
    assert table(RUNS, Scenario(), 20 << 20, repeats=3) == TABLE
    assert "a single play" in table(RUNS, Scenario(), 20 << 20, repeats=1)


def test_next_steps_can_be_copied() -> None:
    model = Path("/a folder/model")
    steps = next_steps(model, QWEN3_NEXT, transfers.tiercache("1MiB"))
    server, *_ = steps.split("\n\n")[1:]
    words = shlex.split(server)
    assert words[0] == "env"
    assert words[words.index("--model") + 1] == str(model)
    assert '"TierCacheConnector"' in words[words.index("--kv-transfer-config") + 1]
    assert "grep vllm:tiercache_" in steps
    assert "tiercache-top --url http://127.0.0.1:8000/metrics" in steps
