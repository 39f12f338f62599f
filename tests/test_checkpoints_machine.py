# SPDX-License-Identifier: Apache-2.0
"""Any order of checkpoints that come, go and are demoted, against a set of words.

A prefix is a word and its blocks are its letters, so that words that begin alike share blocks. The
model looks at all words for every answer; it has no parents, no counts and no order.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.core_helpers import BLOCK
from tiercache.blocks import Lineage
from tiercache.checkpoints import CheckpointTree

LONGEST = 7
words = st.text("ab", min_size=1, max_size=LONGEST)


def lineage(word: str) -> Lineage:
    return Lineage([word[: end + 1].encode() for end in range(len(word))], BLOCK)


class Words(RuleBasedStateMachine):
    """Each checkpoint is the word at whose end it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = CheckpointTree()
        self.behind: dict[str, str] = {}
        """Each checkpoint, and the prompt of the request that stored it, which may go on."""
        self.demoted: set[str] = set()

    def parent(self, word: str) -> str:
        return max(
            (w for w in self.behind if w != word and word.startswith(w)), key=len, default=""
        )

    def children(self, word: str) -> set[str]:
        return {w for w in self.behind if self.parent(w) == word}

    def on(self, prompt: str) -> list[str]:
        return sorted((w for w in self.behind if prompt.startswith(w)), key=len)

    @rule(word=words, tail=st.text("ab", max_size=2))
    def add(self, word: str, tail: str) -> None:
        if word not in self.behind:
            node = self.tree.add(lineage(word + tail), len(word) - 1)
            assert node.block_hash == word.encode()
            self.behind[word] = word + tail

    @rule(word=words)
    def remove(self, word: str) -> None:
        node = self.tree.get(word.encode())
        assert (node is not None) == (word in self.behind)
        if node is None:
            return
        above = self.parent(word)
        parent = self.tree.remove(node)
        assert (parent.block_hash.decode() if parent.index >= 0 else "") == above
        del self.behind[word]
        self.demoted.discard(word)
        if parent.demoted and not parent.children:  # which is for the caller to see to
            parent.demoted = False
            self.demoted.discard(above)

    @rule(prompt=words, keep=st.integers(0, LONGEST), demote_forks=st.booleans())
    def demote(self, prompt: str, keep: int, demote_forks: bool) -> None:
        found = self.tree.superseded(lineage(prompt), keep_hashes=keep, demote_forks=demote_forks)
        on = self.on(prompt)
        expected = [
            word
            for word in on[:-1]
            if len(word) <= len(on[-1]) - keep
            and word not in self.demoted
            and (demote_forks or len(self.children(word)) < 2)
        ]
        assert [node.block_hash.decode() for node in found] == expected
        for node in found:
            node.demoted = True
        self.demoted.update(expected)

    @rule(prompt=words, end=st.none() | st.integers(0, LONGEST + 1))
    def look_along(self, prompt: str, end: int | None) -> None:
        found = [node.block_hash.decode() for node in self.tree.on(lineage(prompt), end)]
        most = len(prompt) if end is None else end
        assert found == [word for word in reversed(self.on(prompt)) if len(word) <= most]

    @rule(word=words, running=st.lists(words, max_size=3))
    def strand(self, word: str, running: list[str]) -> None:
        """What no other checkpoint needs, and no running request will.

        Blocks behind a checkpoint that has children are left to the eviction order.
        """
        node = self.tree.get(word.encode())
        if node is None:
            return
        start, end = self.tree.stranded(node, map(lineage, running))
        prompt = self.behind[word]
        needed = [w for w in self.behind if w != word] + running
        expected = [
            at
            for at in range(len(prompt))
            if not any(w.startswith(prompt[: at + 1]) for w in needed)
        ]
        assert list(range(start, end)) == ([] if self.children(word) else expected)

    @rule(dice=st.integers(1, 12))
    def clear(self, dice: int) -> None:
        if dice == 12:
            self.tree.clear()
            self.behind.clear()
            self.demoted.clear()

    @invariant()
    def is_what_the_model_says(self) -> None:
        self.tree.validate()
        assert len(self.tree) == len(self.behind)
        assert {block_hash.decode() for block_hash in self.tree.hashes} == self.behind.keys()
        for node in self.tree:
            word = node.block_hash.decode()
            assert node.index == len(word) - 1
            assert {child.block_hash.decode() for child in node.children} == self.children(word)
            assert node.is_fork == (len(self.children(word)) > 1)
            assert node.demoted == (word in self.demoted)


TestWords = Words.TestCase
TestWords.settings = settings(max_examples=60, stateful_step_count=60)
