# SPDX-License-Identifier: Apache-2.0
"""What an audit of a pool finds, and what would put it right. Values only."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tiercache.tiers.nvme.pages import Location


class Check(StrEnum):
    """What is looked at, in this order."""

    META = "meta"
    """meta.json: there, readable, and of the fingerprint that names the directory."""
    FILES = "files"
    """Segments and other files: of the right kind and size."""
    ORPHANS = "orphans"
    """Files that nothing refers to."""
    ACCESS = "access"
    """Modes and owners."""
    INDEX = "index"
    """The structure of LMDB's file."""
    READERS = "readers"
    """Places in LMDB's table that dead processes have."""
    PAGES = "pages"
    """Pages of the index: sealed, and of a group."""
    ENTRIES = "entries"
    """Entries: each block once, each with a place in a file."""
    SPACE = "space"
    """What it occupies."""
    RECORDS = "records"
    """Records: the bytes that their checksums say."""


class Remedy(StrEnum):
    """What a repair does about a finding."""

    NONE = "nothing"
    REMOVE = "remove the file"
    MODE = "set the mode"
    OWNER = "set the owner"
    CUT = "cut the file"
    META = "write meta.json anew"
    READERS = "free the places"
    PAGES = "remove the pages"
    ENTRIES = "remove the entries"
    CLEAR = "remove the index and all records"
    EMPTY = "empty the namespace"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    check: Check
    code: str
    """What it is, for programs."""
    text: str
    """What it is, for people."""
    remedy: Remedy
    path: Path | None = None
    locations: tuple[Location, ...] = ()
    """Entries that it is about."""
    keys: tuple[bytes, ...] = ()
    """Pages that it is about."""
    number: int = 0
    """The mode, owner or size that is right."""

    @property
    def count(self) -> int:
        return len(self.locations) or len(self.keys) or 1


@dataclass(slots=True)
class Facts:
    """What an audit counted of one namespace."""

    entries: dict[int, int] = field(default_factory=dict)
    """By group; all of them, whether they count or not."""
    pages: int = 0
    readers: int = 0
    segments: int = 0
    record_bytes: int = 0
    """Bytes of the records that count."""
    segment_bytes: int = 0
    """Bytes of the segments, holes included."""
    occupied: int = 0
    """Bytes on disk of everything."""
    read: int = 0
    """Records that were read and compared."""
    read_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Audit:
    """What came of looking at one namespace."""

    findings: tuple[Finding, ...]
    facts: Facts

    def of(self, check: Check) -> list[Finding]:
        return [finding for finding in self.findings if finding.check is check]
