# SPDX-License-Identifier: Apache-2.0
"""What is in the rows of a segment: a codec for each kind, from values to bytes and back.

Covers the bytes of one row. Where rows are, and how they are changed while others read, are
``format``, ``writer`` and ``reader``. Whatever bytes a row has, ``unpack`` makes something of
them: places that do not exist become None. Numbers are little-endian; 64 bits all set mean None,
or, in a mapping, that the key is missing. Times are nanoseconds since the epoch.
"""

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import ClassVar, NamedTuple, Protocol, TypeVar

from tiercache.errors import FormatError
from tiercache.stats import model
from tiercache.stats.manifest import GroupHead, Manifest, TierHead
from tiercache.stats.model import (
    LATENCY_US,
    Event,
    Group,
    Health,
    Kind,
    Loss,
    Phase,
    Restores,
    SlotClass,
    Slots,
    Tier,
    Victim,
    Where,
)

#: Keys of mappings, in the order of their columns.
TOTALS = ("restored_tokens", "lost_tokens", "demotions_reused", "late", "unworthy")
TIER_COUNTS = (
    *("stored", "loaded", "stored_bytes", "loaded_bytes"),
    *("evicted", "corrupt", "failed", "declined"),
)
TIER_INDEX = ("map_bytes", "file_bytes", "transactions", "readers", "max_readers")
KINDS = tuple(Kind)
#: Victims of a group, from the next one on.
VICTIMS = 64

_NONE64 = 2**64 - 1
_NONE16 = 2**16 - 1
_NONE8 = 2**8 - 1
_PHASES = {int(phase): phase for phase in Phase}
_HEALTHS = tuple(Health)
_SLOT_CLASSES = tuple(SlotClass)
_ANYWHERE = int(~Where(0))
_WHERES = tuple(map(Where, range(_ANYWHERE + 1)))

T = TypeVar("T")


class Codec(Protocol[T]):
    """Values of one kind as rows of ``width`` bytes, a multiple of 8."""

    width: int

    def pack(self, value: T) -> bytes:
        """Raises: struct.error for a number that does not fit, as a negative one."""

    def unpack(self, place: int, data: bytes, at: int) -> T:
        """Make the value of row ``place`` from its bytes, which begin at ``at``."""


class State(NamedTuple):
    """How the writer is."""

    heartbeat: float
    phase: Phase
    running: int
    totals: Mapping[str, int]


class StateRow:
    """Codec of the one row that a writer always writes."""

    _struct: ClassVar = Struct(f"<3Q{len(TOTALS)}Q")
    width = _struct.size

    def pack(self, value: State) -> bytes:
        totals = _columns(TOTALS, value.totals)
        return self._struct.pack(_ns(value.heartbeat), value.phase, value.running, *totals)

    def unpack(self, place: int, data: bytes, at: int) -> State:
        """Raises: FormatError for a phase that there is not."""
        heartbeat, phase, running, *totals = self._struct.unpack_from(data, at)
        if phase not in _PHASES:
            raise FormatError("the state is damaged")
        return State(heartbeat / 1e9, _PHASES[phase], running, _mapping(TOTALS, totals))


class GroupRow:
    """Codec of what changes about a group."""

    _struct: ClassVar = Struct(f"<6Q{len(KINDS)}Q")
    width = _struct.size

    def __init__(self, manifest: Manifest) -> None:
        self._heads = manifest.groups

    def pack(self, value: Group) -> bytes:
        slots = value.slots
        return self._struct.pack(
            *(slots.free, slots.storing, slots.live, slots.demoted, slots.pinned),
            _ns(value.oldest_live),
            *_columns(KINDS, value.counts),
        )

    def unpack(self, place: int, data: bytes, at: int) -> Group:
        head = self._heads[place]
        *slots, oldest_live = (fields := self._struct.unpack_from(data, at))[:6]
        return Group(
            head.name,
            head.kind,
            Slots(*slots),
            head.slot_bytes,
            head.chunk_tokens,
            _seconds(oldest_live),
            _mapping(KINDS, fields[6:]),
        )


class RestoresRow:
    """Codec of what requests got from one source; the histogram always comes back whole."""

    _struct: ClassVar = Struct(f"<3Q{len(LATENCY_US)}Q")
    width = _struct.size

    def pack(self, value: Restores) -> bytes:
        histogram = value.histogram or (0,) * len(LATENCY_US)
        return self._struct.pack(value.requests, value.tokens, value.nbytes, *histogram)

    def unpack(self, place: int, data: bytes, at: int) -> Restores:
        requests, tokens, nbytes, *histogram = self._struct.unpack_from(data, at)
        return Restores(requests, tokens, nbytes, tuple(histogram))


class TierRow:
    """Codec of what changes about a tier; what was restored from it comes last."""

    _struct: ClassVar = Struct(f"<6Q{len(TIER_COUNTS)}Q{len(TIER_INDEX)}Q")
    _restores: ClassVar = RestoresRow()
    width = _struct.size + _restores.width

    def __init__(self, manifest: Manifest) -> None:
        self._heads = manifest.tiers

    def pack(self, value: Tier) -> bytes:
        return self._struct.pack(
            _HEALTHS.index(value.health),
            *(value.used, value.entries, value.jobs, value.queued),
            _NONE64 if value.load_rate is None else round(value.load_rate),
            *_columns(TIER_COUNTS, value.counts),
            *_columns(TIER_INDEX, value.index),
        ) + self._restores.pack(value.restores)

    def unpack(self, place: int, data: bytes, at: int) -> Tier:
        fields = self._struct.unpack_from(data, at)
        health, used, entries, jobs, queued, load_rate = fields[:6]
        return Tier(
            *(self._heads[place].name, self._heads[place].kind),
            _HEALTHS[health != 0],
            self._heads[place].capacity,
            *(used, entries, jobs, queued),
            None if load_rate == _NONE64 else float(load_rate),
            self._restores.unpack(place, data, at + self._struct.size),
            _mapping(TIER_COUNTS, fields[6 : 6 + len(TIER_COUNTS)]),
            _mapping(TIER_INDEX, fields[6 + len(TIER_COUNTS) :]),
        )


class VictimsRow:
    """Codec of the first victims of a group: how many, and then each of them."""

    _count: ClassVar = Struct("<Q")
    _struct: ClassVar = Struct("<4QI2B2x")
    width = _count.size + VICTIMS * _struct.size

    def __init__(self, manifest: Manifest) -> None:
        self._groups = _names(manifest.groups)
        self._tiers = _names(manifest.tiers)
        self._places = _places(self._tiers, _NONE8)
        self._known: list[dict[bytes, Victim]] = [{} for _ in self._groups]
        """Of each group, the victims of the row before: an order changes at its ends."""

    def pack(self, value: Sequence[Victim]) -> bytes:
        """Only the rows there are, at most ``VICTIMS``."""
        first = value[:VICTIMS]
        return self._count.pack(len(first)) + b"".join(map(self._pack, first))

    def unpack(self, place: int, data: bytes, at: int) -> tuple[Victim, ...]:
        count = min(self._count.unpack_from(data, at)[0], VICTIMS)
        begin, step = at + self._count.size, self._struct.size
        group, known = self._groups[place], self._known[place]
        slots = [
            data[offset : offset + step] for offset in range(begin, begin + count * step, step)
        ]
        victims = [known.get(slot) or self._unpack(group, slot) for slot in slots]
        self._known[place] = dict(zip(slots, victims, strict=True))
        return tuple(victims)

    def _pack(self, victim: Victim) -> bytes:
        return self._struct.pack(
            victim.slot,
            _NONE64 if victim.tokens is None else victim.tokens,
            _ns(victim.last_used),
            victim.lost,
            victim.sequence or 0,
            victim.slot_class,
            self._places.get(victim.below, _NONE8),
        )

    def _unpack(self, group: str, data: bytes) -> Victim:
        slot, tokens, last_used, lost, sequence, slot_class, below = self._struct.unpack(data)
        return Victim(
            group,
            slot,
            _SLOT_CLASSES[min(slot_class, SlotClass.PINNED)],
            sequence or None,
            None if tokens == _NONE64 else tokens,
            _seconds(last_used),
            self._tiers.get(below),
            lost,
        )


class SequenceRow:
    """Codec of a sequence; a row of zeros, of number 0, has none."""

    _struct: ClassVar = Struct("<9Q5I2BHI4x")
    width = _struct.size

    def __init__(self, manifest: Manifest) -> None:
        self._groups = _names(manifest.groups)
        self._sources = dict(enumerate(["ram", "miss", *_names(manifest.tiers).values()]))
        self._group_places = _places(self._groups, _NONE16)
        self._source_places = _places(self._sources, _NONE8)

    def pack(self, value: model.Sequence | None) -> bytes:
        if value is None:
            return bytes(self.width)
        loss = value.loss
        return self._struct.pack(
            *(value.tokens, value.cached, value.restorable, value.restorable_ram, value.restored),
            *(_ns(value.last_used), _ns(value.seconds)),
            *((0, 0) if loss is None else (loss.tokens, _ns(loss.when))),
            *(value.number, value.turns, value.live, value.demoted),
            0 if loss is None else loss.by or 0,
            value.where,
            self._source_places.get(value.source, _NONE8),
            _NONE16 if loss is None else self._group_places.get(loss.group, _NONE16),
            loss is not None and loss.unreadable,
        )

    def unpack(self, place: int, data: bytes, at: int) -> model.Sequence | None:
        fields = self._struct.unpack_from(data, at)
        tokens, cached, restorable, restorable_ram, restored, last_used, seconds = fields[:7]
        number, turns, live, demoted = fields[9:13]
        if not number:
            return None
        return model.Sequence(
            *(number, turns, last_used / 1e9),
            *(tokens, cached, restorable, restorable_ram, live, demoted),
            _WHERES[fields[14] & _ANYWHERE],
            self._sources.get(fields[15]),
            restored,
            _seconds(seconds),
            self._loss(self._groups.get(fields[16]), fields),
        )

    def _loss(self, group: str | None, fields: tuple[int, ...]) -> Loss | None:
        if group is None:
            return None
        return Loss(group, fields[7], _seconds(fields[8]), fields[13] or None, fields[17] != 0)


class EventRecord:
    """Codec of an event in the ring, with its number at both ends."""

    struct: ClassVar = Struct("<QQBBHII4xQI4xQQ")
    width = struct.size

    def __init__(self, manifest: Manifest) -> None:
        self._groups = _names(manifest.groups)
        self._tiers = _names(manifest.tiers)

    def unpack(self, number: int, data: bytes, at: int) -> Event | None:
        """None: another event is there, or the half of one."""
        fields = self.struct.unpack_from(data, at)
        first, when, kind, tier, group, count, sequence, nbytes, us, tokens, last = fields
        if not first == last == number or kind >= len(KINDS):
            return None
        return Event(
            number,
            when / 1e9,
            KINDS[kind],
            self._groups.get(group),
            self._tiers.get(tier),
            count,
            sequence or None,
            tokens,
            nbytes,
            us / 1e6 if us else None,
        )


class Codecs:
    """One of each, for one manifest."""

    def __init__(self, manifest: Manifest) -> None:
        self.state = StateRow()
        self.groups = GroupRow(manifest)
        self.tiers = TierRow(manifest)
        self.restores = RestoresRow()
        self.victims = VictimsRow(manifest)
        self.sequences = SequenceRow(manifest)
        self.events = EventRecord(manifest)


def _ns(seconds: float | None) -> int:
    return _NONE64 if seconds is None else round(seconds * 1e9)


def _seconds(ns: int) -> float | None:
    return None if ns == _NONE64 else ns / 1e9


def _columns(names: Sequence[str], mapping: Mapping[str, int]) -> list[int]:
    return [mapping.get(name, _NONE64) for name in names]


def _mapping(names: Sequence[str], columns: Sequence[int]) -> Mapping[str, int]:
    return {name: n for name, n in zip(names, columns, strict=True) if n != _NONE64}


def _names(heads: Iterable[GroupHead | TierHead]) -> dict[int, str]:
    return {place: head.name for place, head in enumerate(heads)}


def _places(names: Mapping[int, str], none: int) -> Mapping[str | None, int]:
    return {None: none} | {name: place for place, name in names.items()}
