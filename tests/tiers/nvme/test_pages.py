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
        st.tuples(
            st.binary(min_size=1, max_size=HASH_BYTES),
            st.integers(0, U64),
            st.integers(0, U64 // 2),
        ),
        min_size=1,
    ),
    st.integers(1, 300),
)
def test_a_page_gives_back_whatever_it_was_given(
    rows: dict[int, tuple[bytes, int, int]], limit: int
) -> None:
    """Zeros at the end of a hash, hashes of several lengths, all of 64 bits; no stamp twice."""
    rows = {slot: (name, sum_, stamp & ~511 | slot) for slot, (name, sum_, stamp) in rows.items()}
    changes = {Location(0, slot): Entry(*row) for slot, row in rows.items()}
    sealed = {key: pages.edit(key, None, edits) for key, edits in pages.to_edits(changes).items()}
    assert all(pages.is_intact(key, page) for key, page in sealed.items())
    numbers = [pages.page_number(key) for key in sealed]
    packed = b"".join(map(pages.entries_of, sealed.values()))
    decoded = pages.decode(numbers, packed, limit, b"#7")
    youngest: dict[bytes, tuple[int, int]] = {}
    for slot, (block_hash, _, stamp) in rows.items():
        youngest[block_hash] = max((stamp, slot), youngest.get(block_hash, (-1, -1)))
    keys, slots, checksums = decoded.loaded
    found = [rows[slot] for slot in slots]
    assert keys == [block_hash + b"#7" for block_hash, _, _ in found]
    assert [int(checksum) for checksum in checksums] == [checksum for _, checksum, _ in found]
    stamps = [stamp for _, _, stamp in found]
    assert stamps == sorted(stamps)
    counting = {h: stamp for h, (stamp, slot) in youngest.items() if slot < limit}
    assert {h: stamp for h, _, stamp in found} == counting
    assert sorted([*decoded.stale, *slots]) == sorted(rows)
    assert decoded.next_stamp == 1 + max(stamp for _, _, stamp in rows.values())


def test_entries_that_nobody_can_have_made_do_not_count() -> None:
    """Sealed as ours are, so only their values tell; after the last stamp there is no other."""
    key = pages.page_key(0, 0)
    [(_, [(_, good)])] = pages.to_edits({Location(0, 2): Entry(b"good", 1, 7)}).items()
    [(_, [(_, late)])] = pages.to_edits({Location(0, 3): Entry(b"late", 1, U64)}).items()
    long = good[:HASH_BYTES] + bytes([HASH_BYTES + 1]) + good[HASH_BYTES + 1 :]
    page = pages.edit(key, None, [(2, good), (3, late), (4, long), (5, b"\xff" * 64)])
    assert pages.is_intact(key, page)
    decoded = pages.decode([0], bytes(pages.entries_of(page)), 10)
    assert decoded.loaded == ([b"good"], [2], [1])
    assert (decoded.stale, decoded.next_stamp) == ([], 8)


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
