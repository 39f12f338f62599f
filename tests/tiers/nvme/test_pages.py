# SPDX-License-Identifier: Apache-2.0
"""The format of the index, without a file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.tiers.nvme import pages
from tiercache.tiers.nvme.pages import HASH_BYTES, PAGE_SLOTS, Entry, Location

U64 = 2**64 - 1


@given(
    st.dictionaries(
        st.integers(0, 299),
        st.tuples(st.binary(min_size=1, max_size=HASH_BYTES), *[st.integers(0, U64)] * 2),
        min_size=1,
    )
)
def test_a_page_gives_back_whatever_it_was_given(rows: dict[int, tuple[bytes, int, int]]) -> None:
    """Zeros at the end of a hash, hashes of several lengths, all of 64 bits."""
    changes = {Location(0, slot): Entry(*row) for slot, row in rows.items()}
    sealed = {key: pages.edit(key, None, edits) for key, edits in pages.to_edits(changes).items()}
    assert all(pages.is_intact(key, page) for key, page in sealed.items())
    numbers = [pages.page_number(key) for key in sealed]
    decoded = pages.decode(numbers, b"".join(map(pages.entries_of, sealed.values())), 300)
    youngest: dict[bytes, int] = {}
    for block_hash, _, stamp in rows.values():
        youngest[block_hash] = max(stamp, youngest.get(block_hash, 0))
    stamps = [rows[slot][2] for slot in decoded.loaded.slots]
    assert dict(zip(decoded.loaded.hashes, stamps, strict=True)) == youngest
    assert stamps == sorted(stamps)
    assert {*decoded.stale, *decoded.loaded.slots} == rows.keys()
    assert decoded.next_stamp == 1 + max(stamp for _, _, stamp in rows.values())


def test_a_page_looks_like_this() -> None:
    """It is on users' disks: another look needs another format of the namespace."""
    edits = pages.to_edits({Location(258, 3 * PAGE_SLOTS + 1): Entry(b"hash\0", 2, 1 << 63)})
    [(key, changes)] = edits.items()
    page = bytes(pages.edit(key, None, changes))
    assert key == bytes.fromhex("0102 00000003")
    assert len(page) == pages.PAGE_BYTES == 8136
    assert page[:8].hex() == "4fefb639cdaf349b"
    entry = (
        b"hash".ljust(40, b"\0")
        + bytes([5])
        + bytes(7)
        + b"\2".ljust(8, b"\0")
        + bytes(7)
        + b"\x80"
    )
    assert page[8:] == bytes(64) + entry + bytes(64 * 125)


@pytest.mark.parametrize("bit", [0, 64, 8 * 4000, 8 * 8136 - 1])
def test_a_flipped_bit_breaks_the_seal(bit: int) -> None:
    key = pages.page_key(1, 2)
    page = pages.edit(key, None, [(0, bytes(range(64)))])
    assert pages.is_intact(key, page)
    page[bit // 8] ^= 1 << bit % 8
    assert not pages.is_intact(key, page)


@pytest.mark.parametrize("other", [pages.page_key(1, 3), pages.page_key(0, 2)])
def test_a_page_is_intact_only_under_its_own_key(other: bytes) -> None:
    assert not pages.is_intact(other, pages.edit(pages.page_key(1, 2), None, []))


@pytest.mark.parametrize(
    "page", [b"", bytes(7), bytes(pages.PAGE_BYTES - 1), bytes(pages.PAGE_BYTES)]
)
def test_what_is_no_page_is_not_intact(page: bytes) -> None:
    assert not pages.is_intact(pages.page_key(0, 0), page)


@pytest.mark.parametrize(
    ("key", "belongs"),
    [
        (pages.page_key(4, 0), True),
        (pages.page_key(4, 1), True),
        (pages.page_key(4, 2), False),
        (pages.page_key(3, 0), False),
        (b"", False),
        (pages.page_key(4, 0) + b"x", False),
    ],
)
def test_which_keys_are_of_pages_with_slots(key: bytes, belongs: bool) -> None:
    assert pages.is_page_of(key, {4: PAGE_SLOTS + 1}) == belongs
