# SPDX-License-Identifier: Apache-2.0
"""The tree of checkpoints: who is whose parent, what is superseded, and what is stranded."""

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core_helpers import BLOCK, chain
from tiercache.blocks import BlockHash, Lineage
from tiercache.checkpoints import Checkpoint, CheckpointTree
from tiercache.errors import InvariantError

#: One conversation, and two that branch off it after its fourth block.
MAIN = chain("a", 12)
BRANCH = chain("b", 6, after=MAIN[:4])
TWIG = chain("c", 4, after=MAIN[:4])


@pytest.fixture
def tree() -> CheckpointTree:
    return CheckpointTree()


def lineage(hashes: list[BlockHash]) -> Lineage:
    return Lineage(hashes, BLOCK)


def add(tree: CheckpointTree, hashes: list[BlockHash], *indexes: int) -> list[Checkpoint]:
    nodes = [tree.add(lineage(hashes), index) for index in indexes]
    tree.validate()
    return nodes


def remove(tree: CheckpointTree, node: Checkpoint) -> Checkpoint:
    parent = tree.remove(node)
    tree.validate()
    return parent


def indexes(nodes: Iterable[Checkpoint]) -> list[int]:
    return [node.index for node in nodes]


def superseded(
    tree: CheckpointTree, hashes: list[BlockHash], *, keep: int, demote_forks: bool = False
) -> list[int]:
    nodes = tree.superseded(lineage(hashes), keep_hashes=keep, demote_forks=demote_forks)
    return indexes(nodes)


def test_a_checkpoint_is_found_by_its_hash(tree: CheckpointTree) -> None:
    [node] = add(tree, MAIN, 3)
    assert tree.get(MAIN[3]) is node
    assert tree.get(MAIN[2]) is None
    assert list(tree.hashes) == [MAIN[3]]
    assert list(tree) == [node]
    assert len(tree) == 1


def test_on_a_lineage_the_deepest_comes_first(tree: CheckpointTree) -> None:
    add(tree, MAIN, 1, 3, 7)
    add(tree, BRANCH, 5)
    assert indexes(tree.on(lineage(MAIN))) == [7, 3, 1]
    assert indexes(tree.on(lineage(MAIN), end=7)) == [3, 1]
    assert indexes(tree.on(lineage(TWIG))) == [3, 1]


def test_a_later_checkpoint_goes_below_the_nearest(tree: CheckpointTree) -> None:
    first, second, third = add(tree, MAIN, 1, 3, 7)
    assert (second.parent, third.parent) == (first, second)
    assert first.children == {second}


def test_one_in_the_middle_goes_between(tree: CheckpointTree) -> None:
    first, last, middle = add(tree, MAIN, 1, 7, 4)
    assert (last.parent, middle.parent) == (middle, first)
    assert first.children == {middle}


def test_a_junction_adopts_only_what_goes_on_through_it(tree: CheckpointTree) -> None:
    [root, on_main] = add(tree, MAIN, 1, 8)
    [on_branch] = add(tree, BRANCH, 6)
    [elsewhere] = add(tree, chain("x", 6, after=MAIN[:3]), 5)
    [junction] = add(tree, TWIG, 3)
    assert junction.children == {on_main, on_branch}
    assert root.children == {junction, elsewhere}
    assert junction.is_fork


def test_a_lineage_may_grow_after_its_checkpoint_was_added(tree: CheckpointTree) -> None:
    hashes = MAIN[:4]
    [first] = add(tree, hashes, 3)
    hashes += MAIN[4:]
    [second] = add(tree, hashes, 9)
    assert second.parent is first


def test_removing_hands_the_children_over(tree: CheckpointTree) -> None:
    first, middle, last = add(tree, MAIN, 1, 3, 8)
    [branch] = add(tree, BRANCH, 6)
    assert remove(tree, middle) is first
    assert first.children == {last, branch}
    assert tree.get(MAIN[3]) is None


def test_clear_leaves_nothing(tree: CheckpointTree) -> None:
    add(tree, MAIN, 1, 3)
    tree.clear()
    assert len(tree) == 0
    [node] = add(tree, MAIN, 5)
    assert indexes(tree.on(lineage(MAIN))) == [5]
    assert tree.stranded(node) == (0, 12)


def test_superseded_is_counted_from_the_newest_checkpoint(tree: CheckpointTree) -> None:
    add(tree, MAIN, 0, 2, 4, 5, 6, 7)
    assert superseded(tree, MAIN, keep=3) == [0, 2, 4]


def test_the_newest_is_never_superseded(tree: CheckpointTree) -> None:
    add(tree, MAIN, 0, 4)
    assert superseded(tree, MAIN, keep=0) == [0]


def test_a_lone_checkpoint_supersedes_nothing(tree: CheckpointTree) -> None:
    add(tree, MAIN, 4)
    assert superseded(tree, MAIN, keep=1) == []
    assert superseded(tree, chain("x", 3), keep=1) == []


def test_what_is_demoted_is_not_superseded_again(tree: CheckpointTree) -> None:
    [first, _, _] = add(tree, MAIN, 0, 1, 8)
    first.demoted = True
    assert superseded(tree, MAIN, keep=3) == [1]


@pytest.mark.parametrize(("demote_forks", "expected"), [(False, [1]), (True, [1, 3])])
def test_forks_are_kept(tree: CheckpointTree, demote_forks: bool, expected: list[int]) -> None:
    add(tree, MAIN, 1, 3, 9)
    add(tree, BRANCH, 8)
    assert superseded(tree, MAIN, keep=3, demote_forks=demote_forks) == expected


def test_other_lineages_are_not_superseded(tree: CheckpointTree) -> None:
    add(tree, MAIN, 1, 5, 9)
    add(tree, BRANCH, 4, 8)
    assert superseded(tree, BRANCH, keep=3) == [4]


def test_a_lone_checkpoint_strands_its_whole_lineage(tree: CheckpointTree) -> None:
    [node] = add(tree, MAIN, 5)
    assert tree.stranded(node) == (0, 12)


def test_what_an_earlier_checkpoint_serves_is_not_stranded(tree: CheckpointTree) -> None:
    _, node = add(tree, MAIN, 3, 8)
    assert tree.stranded(node) == (4, 12)


def test_what_a_later_checkpoint_needs_is_not_stranded(tree: CheckpointTree) -> None:
    node, _ = add(tree, MAIN, 3, 8)
    start, end = tree.stranded(node)
    assert start == end


def test_what_a_sibling_shares_is_not_stranded(tree: CheckpointTree) -> None:
    [node] = add(tree, MAIN, 8)
    add(tree, chain("x", 5, after=MAIN[:2]), 6)
    add(tree, BRANCH, 7)
    assert tree.stranded(node) == (4, 12)


def test_a_sibling_whose_lineage_is_short_shares_what_it_has(tree: CheckpointTree) -> None:
    [node] = add(tree, MAIN, 8)
    add(tree, chain("x", 1, after=MAIN[:4]), 4)
    assert tree.stranded(node) == (4, 12)


@pytest.mark.parametrize(
    ("running", "expected"), [(BRANCH, (4, 12)), (chain("x", 9), (0, 12)), (MAIN, (12, 12))]
)
def test_what_a_running_request_shares_is_not_stranded(
    tree: CheckpointTree, running: list[BlockHash], expected: tuple[int, int]
) -> None:
    [node] = add(tree, MAIN, 8)
    assert tree.stranded(node, [lineage(running)]) == expected


def _file_under_another_hash(tree: CheckpointTree) -> None:
    tree._nodes[b"other"] = tree._nodes.pop(MAIN[5])


def _skip_the_nearest(tree: CheckpointTree) -> None:
    tree._nodes[MAIN[5]].attach(tree._root)


def _disown(tree: CheckpointTree) -> None:
    tree._root.children.clear()


def _give_to_the_grandparent(tree: CheckpointTree) -> None:
    node = tree._nodes[MAIN[5]]
    tree._nodes[MAIN[1]].children.remove(node)
    tree._root.children.add(node)


def _demote_a_leaf(tree: CheckpointTree) -> None:
    tree._nodes[MAIN[5]].demoted = True


def _keep_a_removed_child(tree: CheckpointTree) -> None:
    del tree._nodes[MAIN[5]]


@pytest.mark.parametrize(
    "damage",
    [
        _file_under_another_hash,
        _skip_the_nearest,
        _disown,
        _give_to_the_grandparent,
        _demote_a_leaf,
        _keep_a_removed_child,
    ],
)
def test_validate_finds_damage(
    tree: CheckpointTree, damage: Callable[[CheckpointTree], None]
) -> None:
    add(tree, MAIN, 1, 5)
    damage(tree)
    with pytest.raises(InvariantError, match=r"violated$"):
        tree.validate()


#: A prefix is a word; its blocks are its letters. Words that begin alike share those blocks.
words = st.text("ab", min_size=1, max_size=6)
choices = st.tuples(words, st.integers(0, 5), st.booleans())


def prefix_hashes(word: str) -> list[BlockHash]:
    return [word[: i + 1].encode() for i in range(len(word))]


@given(st.lists(choices, max_size=30))
def test_random_lineages_match_a_model(steps: list[tuple[str, int, bool]]) -> None:
    """The model: a set of words; a node's parent is the longest other word that it begins with."""
    tree, model = CheckpointTree(), set[str]()
    for text, length, adding in steps:
        word = text[: length + 1]
        node = tree.get(word.encode())
        if adding and node is None:
            tree.add(lineage(prefix_hashes(text)), len(word) - 1)
            model.add(word)
        elif not adding and node is not None:
            tree.remove(node)
            model.remove(word)
        tree.validate()
        assert {node.block_hash.decode() for node in tree} == model
        for node in tree:
            own = node.block_hash.decode()
            shorter = [word for word in model if own.startswith(word) and word != own]
            assert node.parent is not None
            assert node.parent.index == max(map(len, shorter), default=0) - 1


@given(st.sets(words, min_size=1), words, st.sets(words))
def test_random_strandings_match_a_model(stored: set[str], gone: str, running: set[str]) -> None:
    """The model: a block is stranded if no word but the one that goes begins with it."""
    tree = CheckpointTree()
    for word in stored | {gone}:
        tree.add(lineage(prefix_hashes(word)), len(word) - 1)
    node = tree.get(gone.encode())
    assert node is not None
    start, end = tree.stranded(node, [lineage(prefix_hashes(word)) for word in running])
    others = (stored - {gone}) | running
    expected = [
        index
        for index in range(len(gone))
        if not any(word.startswith(gone[: index + 1]) for word in others)
    ]
    assert list(range(start, end)) == expected
