# SPDX-License-Identifier: Apache-2.0
"""What a cache says about itself at one moment: the values of a stats segment, read.

Covers the values only; their bytes are ``format``, who fills them is ``tiercache.probe``. Times
are seconds since the epoch, lengths are tokens or bytes. What nobody reports is None, never 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag, StrEnum

#: Sequences are shown by their number, in this many hexadecimal digits.
SEQUENCE_DIGITS = 6


class Phase(IntEnum):
    """How far the writer has come."""

    INIT = 0
    RUN = 1
    CLOSED = 2
    """It ended in order."""
    FAILED = 3
    """The probe met a fault and turned itself off; the cache went on without it."""


class Kind(StrEnum):
    """What an event in the ring is about; the order is the number in the format."""

    STORED = "stored"
    """Copied from the device."""
    PROMOTED = "promoted"
    """Brought from a secondary tier into the primary one."""
    SPILLED = "spilled"
    """Written to a secondary tier."""
    RESTORED = "restored"
    """Copied to the device for a request: one event per restore."""
    DEMOTED = "demoted"
    """Superseded: first to go."""
    STRANDED = "stranded"
    """Attention blocks that no checkpoint can serve any more: demoted."""
    EVICTED_DEMOTED = "evicted_demoted"
    EVICTED_LIVE = "evicted_live"
    MISSED = "missed"
    """A request found nothing to restore, or less than what its attention blocks reach."""
    REFUSED = "refused"
    """No room: every slot that could go is pinned."""
    FAILED = "failed"
    """A copy from the device did not succeed."""
    TIER_FAILED = "tier_failed"
    """A tier could not read or write, or what it read did not verify."""
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class Slots:
    """Slots of one group by state; they add up to its capacity."""

    free: int
    storing: int
    live: int
    demoted: int
    pinned: int

    @property
    def capacity(self) -> int:
        return self.free + self.storing + self.live + self.demoted + self.pinned

    @property
    def spare(self) -> int:
        """How many stores it takes before a live entry is evicted."""
        return self.free + self.demoted


@dataclass(frozen=True, slots=True)
class Group:
    """One KV-cache group."""

    name: str
    """``g0``; with several engines (metrics only) ``e1.g0``."""
    kind: str
    """``full``, ``window`` or ``state``."""
    slots: Slots
    slot_bytes: int | None = None
    """Bytes of one slot, over all workers."""
    chunk_tokens: int | None = None
    oldest_live: float | None = None
    """When the live entry that is evicted first was last used."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Entries since the start, by ``Kind``."""


class Health(StrEnum):
    """Whether a tier serves."""

    OK = "ok"
    RESTING = "resting"
    """After errors; tried again later."""


@dataclass(frozen=True, slots=True)
class Restores:
    """What requests got from one source since the start.

    ``histogram[i]`` restores took less than ``LATENCY_US[i]`` and not less than the one before.
    """

    requests: int = 0
    tokens: int = 0
    nbytes: int = 0
    histogram: tuple[int, ...] = ()


#: Upper bounds in microseconds of the latency histogram: four per doubling, 1 us to about 70 min.
LATENCY_US = tuple(round(2 ** (i / 4)) for i in range(128))


@dataclass(frozen=True, slots=True)
class Tier:
    """A secondary tier."""

    name: str
    kind: str
    health: Health
    capacity: int
    """Bytes, as is ``used``."""
    used: int
    entries: int
    jobs: int
    queued: int
    """Entries that wait to be written."""
    load_rate: float | None
    """Bytes per second of recent loads."""
    restores: Restores
    counts: Mapping[str, int] = field(default_factory=dict)
    """Since it was opened: ``stored``, ``loaded``, ``stored_bytes``, ``loaded_bytes``, ``evicted``,
    ``corrupt``, ``failed``, ``declined``."""
    index: Mapping[str, int] = field(default_factory=dict)
    """Gauges of its LMDB index, if it has one: ``map_bytes``, ``file_bytes``, ``transactions``,
    ``readers``, ``max_readers``."""


class Where(IntFlag):
    """Where a sequence has something."""

    RAM_BLOCKS = 1
    RAM_STATES = 2
    TIER = 4
    """Some secondary tier has more than RAM has."""
    RUNNING = 8
    """A request of it runs now."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a sequence cannot be restored further: the entry that is missing."""

    group: str
    tokens: int
    """Where it would have ended."""
    when: float | None
    """When it was evicted; None if it was never stored, or that is not remembered."""
    by: int | None
    """Sequence whose store evicted it."""
    unreadable: bool = False
    """A tier had it, and it did not verify."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """A conversation, inferred from prompts that continue each other."""

    number: int
    turns: int
    last_used: float
    tokens: int
    """Length of its latest prompt and answer in whole blocks."""
    cached: int
    """Tokens whose attention blocks are in some tier, from the beginning without a gap."""
    restorable: int
    """Tokens that its next turn could restore, from any tier."""
    restorable_ram: int
    """The same from RAM alone."""
    live: int
    """Checkpoints in RAM that are live, and that are demoted."""
    demoted: int
    where: Where
    source: str | None = None
    """Where its last restore came from: ``ram``, a tier's name, ``miss``; None: no request yet."""
    restored: int = 0
    """Tokens of its last restore, and how long it took in seconds."""
    seconds: float | None = None
    loss: Loss | None = None
    """What keeps ``restorable`` below ``cached``, or below what was once cached."""

    @property
    def stranded(self) -> int:
        """Tokens that are here but that no checkpoint serves."""
        return max(self.cached - self.restorable, 0)

    @property
    def is_stranded(self) -> bool:
        """Whether attention blocks are here, and nothing can be restored.

        One that runs its first turn is not meant: its first checkpoint is still to be stored.
        """
        if self.cached <= 0 or self.restorable > 0:
            return False
        return self.loss is not None or not self.where & Where.RUNNING


class SlotClass(IntEnum):
    """In which order slots go: the lower, the sooner; pinned ones never."""

    DEMOTED = 0
    LIVE = 1
    PINNED = 2


@dataclass(frozen=True, slots=True)
class Victim:
    """A slot in the eviction order of its group, the next one first."""

    group: str
    slot: int
    slot_class: SlotClass
    sequence: int | None
    tokens: int | None
    """Where the entry ends in its sequence."""
    last_used: float | None
    below: str | None
    """The tier that has a copy."""
    lost: int
    """Tokens that must be computed (no copy below) or read again (a copy below) once it is gone:
    0 if something else serves its sequence as far."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to ``count`` entries of a group."""

    number: int
    """Consecutive since the start; a gap is what the reader was too late for."""
    when: float
    kind: Kind
    group: str | None
    tier: str | None
    count: int
    sequence: int | None
    """On whose behalf."""
    tokens: int
    """Restored or missed tokens, or where the entry ends; 0 if that does not apply."""
    nbytes: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Pool:
    """What does not change while a cache runs."""

    name: str
    """Model or workload."""
    pid: int
    host: str
    started: float
    workers: int
    writer: str
    """``serve``, ``replay`` or ``demo``."""
    block_tokens: int
    policy: str
    tiercache: str
    """Version of the writer."""
    path: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything known at ``taken``.

    Lists are empty, and ``pool`` None, where the source does not tell: Prometheus knows groups,
    totals and tiers only.
    """

    taken: float
    heartbeat: float
    """When the writer last wrote: at most once per 0.25 s, and never while nothing happens."""
    phase: Phase
    alive: bool
    """Whether the process still runs."""
    running: int | None
    """Requests that are open now."""
    pool: Pool | None
    groups: tuple[Group, ...] = ()
    tiers: tuple[Tier, ...] = ()
    ram: Restores | None = None
    missed: Restores | None = None
    """Requests that restored nothing; their tokens were computed."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Counters of no group: ``restored_tokens``, ``lost_tokens``, ``demotions_reused``, ``late``,
    ``unworthy``; over all groups by ``Kind`` see ``Group.counts``."""
    sequences: tuple[Sequence, ...] = ()
    sequences_dropped: int = 0
    """Sequences that the table had no row for."""
    victims: tuple[Victim, ...] = ()
    events: tuple[Event, ...] = ()
    """The newest last."""
    events_total: int = 0
    """How many there were since the start."""
    events_lost: int = 0
    """Of those, how many were overwritten before this reader saw them."""
    torn: bool = False
    """The writer died in the middle of a change: numbers may not fit together."""
    source: str = "segment"
    """``segment``, ``metrics`` or ``record``."""
