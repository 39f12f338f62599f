# SPDX-License-Identifier: Apache-2.0
"""Random stores, loads, faults, damage, restarts and kills of two servers against dicts.

A load yields what was stored last, or nothing; what was acknowledged is there until it is evicted,
dropped by an error or damaged by the test; an audit finds what was damaged, and nothing else. Two
models share the directory and never each other's blocks. Not covered: hung devices, power loss.
"""

import itertools
import os
import signal
import struct
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, NoReturn

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.tiers.nvme.device import Device
from tests.tiers.nvme.model_server import (
    DISK,
    KEYS,
    RECORD_BYTES,
    SEGMENT_BYTES,
    SEGMENT_SLOTS,
    ModelServer,
)
from tiercache.blocks import Key, key_group
from tiercache.errors import ConfigError
from tiercache.tierconfig import DISK_POLICIES
from tiercache.tiers.nvme.audit import audit
from tiercache.tiers.nvme.findings import Finding
from tiercache.tiers.nvme.offline import open_readonly
from tiercache.tiers.nvme.pages import Location
from tiercache.tiers.nvme.repair import repair
from tiercache.tiers.nvme.writing import held

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.timeout(300),  # it waits for the disk, and others may use that too
]

#: LMDB's first two pages say which tree counts, without a checksum: it may be an older one.
META_BYTES = 8192
#: What an audit says of segments that are cut off or missing.
OF_FILES = {"cut-off", "short-segment", "missing-segment", "beyond-slots"}
#: What a killed process may leave: records that it wrote over before their entries were gone.
AFTER_A_KILL = {"bad-records", "unfinished", "dead-readers"}
LINE = struct.Struct("<B4xQ")
WORDS = ("begun", "acked", "gone")

one_of = st.sampled_from([0, 0, 0, 1])
a_key = st.sampled_from(KEYS)
some_keys = st.lists(a_key, min_size=1, max_size=6, unique=True)
a_segment = st.tuples(st.sampled_from(sorted(DISK)), st.integers(0, 1))
n_bytes = st.sampled_from([0, 100, 4096, RECORD_BYTES, RECORD_BYTES + 512, 3 * RECORD_BYTES])


def cut_off(places: Iterable[tuple[Key, Any]], group_id: int, number: int, nbytes: int) -> set[Key]:
    """Blocks that lie in a segment behind its first bytes."""
    return {
        k
        for k, place in places
        if (key_group(k), place.number) == (group_id, number)
        and (place.at + 1) * RECORD_BYTES > nbytes
    }


class NvmeServers(RuleBasedStateMachine):
    """Two models' servers on one directory, which are never closed for longer than a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.device = Device().__enter__()
        path = Path(self.folder.name)
        self.servers = [ModelServer(path, name, self.device) for name in ("one", "other")]

    @initialize(
        policy=st.sampled_from(DISK_POLICIES),
        marks=st.sampled_from([(0.95, 0.9), (1.0, 1.0), (0.75, 0.5)]),
        durability=st.sampled_from(["crash", "crash", "power"]),
    )
    def begin(self, policy: str, marks: tuple[float, float], durability: str) -> None:
        for server in self.servers:
            server.settings = {
                "policy": policy,
                "high_water": marks[0],
                "low_water": marks[1],
                "durability": durability,
            }
            server.open()
            for start in range(0, len(KEYS), 3):  # full from the start
                server.store(KEYS[start : start + 3])
                server.settle()

    # --- what the engine asks for

    @rule(which=one_of, jobs=st.lists(st.tuples(st.booleans(), some_keys), max_size=8))
    def work(self, which: int, jobs: list[tuple[bool, list[Key]]]) -> None:
        """Several jobs at once."""
        for loads, keys in jobs:
            (self.servers[which].load if loads else self.servers[which].store)(keys)
            self.servers[which].poll()

    @rule(which=one_of, batches=st.lists(some_keys, max_size=4))
    def store(self, which: int, batches: list[list[Key]]) -> None:
        for batch in batches:
            self.servers[which].store(batch)
            self.servers[which].settle()

    @rule(which=one_of)
    def load_everything(self, which: int) -> None:
        self.servers[which].load(KEYS)

    @rule(which=one_of, keys=some_keys)
    def touch(self, which: int, keys: list[Key]) -> None:
        self.servers[which].tier.touch(keys)

    @rule(which=one_of, keys=some_keys)
    def demote(self, which: int, keys: list[Key]) -> None:
        self.servers[which].tier.demote(keys)

    @rule(which=one_of)
    def settle(self, which: int) -> None:
        self.servers[which].settle()

    @rule(which=one_of, dice=st.integers(1, 4))
    def clear(self, which: int, dice: int) -> None:
        if dice == 1:
            self.servers[which].clear()

    # --- errors

    @rule(which=one_of, keys=some_keys, n=st.integers(1, 4))
    def reads_fail(self, which: int, keys: list[Key], n: int) -> None:
        self.settle_all()
        self.device.reads_to_fail = n
        self.servers[which].load(keys)
        self.settle_all()
        self.device.reset()

    @rule(which=one_of, keys=some_keys, n=st.integers(1, 4), full=st.booleans())
    def writes_fail(self, which: int, keys: list[Key], n: int, full: bool) -> None:
        self.settle_all()
        self.device.writes_to_fail, self.device.is_full = n * (not full), full
        self.servers[which].store(keys)
        self.settle_all()
        self.device.reset()
        self.servers[which].settle()  # when there is space again

    # --- damage while it serves

    @rule(which=one_of, k=a_key, at=st.integers(0, RECORD_BYTES - 1), n=st.sampled_from([1, 4096]))
    def damage_a_record(self, which: int, k: Key, at: int, n: int) -> None:
        """Flip a bit, or have the rest of a block of the disk as a torn write leaves it."""
        server = self.servers[which]
        server.settle()
        if k not in server.acked or self.is_unlinked(server, k):
            return
        place = server.place(k)
        descriptor = os.open(server.segment(key_group(k), place.number), os.O_RDWR)
        try:
            offset, end = place.at * RECORD_BYTES + at, (place.at + 1) * RECORD_BYTES
            found = os.pread(descriptor, min(n, end - offset), offset)
            os.pwrite(descriptor, bytes(byte ^ 1 for byte in found), offset)
        finally:
            os.close(descriptor)
        server.damaged.add((k, server.acked[k]))

    def is_unlinked(self, server: ModelServer, k: Key) -> bool:
        return (key_group(k), server.place(k).number) in server.unlinked

    @rule(which=one_of, at=a_segment)
    def delete_a_segment(self, which: int, at: tuple[int, int]) -> None:
        server = self.servers[which]
        if server.segment(*at).exists():
            server.segment(*at).unlink()
            server.unlinked.add(at)

    @rule(which=one_of, at=a_segment, nbytes=n_bytes)
    def cut_a_segment(self, which: int, at: tuple[int, int], nbytes: int) -> None:
        server = self.servers[which]
        server.settle()
        if not server.segment(*at).exists():
            return
        os.truncate(server.segment(*at), nbytes)
        server.shortened = True
        places = [(k, server.place(k)) for k in server.acked]
        server.damaged |= {(k, server.acked[k]) for k in cut_off(places, *at, nbytes)}

    # --- others

    @rule(which=one_of)
    def a_second_writer_is_refused(self, which: int) -> None:
        with pytest.raises(ConfigError, match=f"process {os.getpid()} does"):
            self.servers[which].make()

    # --- restarts

    @rule(which=one_of)
    def restart(self, which: int) -> None:
        """With whatever is under way."""
        server = self.servers[which]
        server.close()
        lost = self.lost(server)
        self.look(server, lost)
        server.find(lost)

    def lost(self, server: ModelServer) -> set[Key]:
        """Blocks that are in no file any more."""
        sizes = {
            (g, n): server.segment(g, n).stat().st_size if server.segment(g, n).exists() else 0
            for g in DISK
            for n in (0, 1)
        }
        places = server.places.items()
        return {k for at, nbytes in sizes.items() for k in cut_off(places, *at, nbytes)}

    def look(self, server: ModelServer, lost: set[Key]) -> tuple[Finding, ...]:
        """An audit of a closed namespace finds what was damaged, and nothing else."""
        with open_readonly(server.directory, segment_bytes=SEGMENT_BYTES) as pool:
            findings = audit(pool.only(), share=1.0).findings
        damaged = {k for k, version in server.acked.items() if (k, version) in server.damaged}
        expected = {self.location(server, k) for k in lost | damaged if k in server.acked}
        found = {location for finding in findings for location in finding.locations}
        assert expected <= found
        if not server.ghosts:
            assert found == expected
        assert {f.code for f in findings} <= OF_FILES | AFTER_A_KILL
        sound = {self.location(server, k) for k in server.acked} - expected
        assert not sound & found
        return findings

    def location(self, server: ModelServer, k: Key) -> Location:
        place = server.places[k]
        return Location(key_group(k), place.number * SEGMENT_SLOTS + place.at)

    @rule(which=one_of, at=a_segment, nbytes=n_bytes, fix=st.booleans())
    def restart_with_a_segment_cut(
        self, which: int, at: tuple[int, int], nbytes: int, fix: bool
    ) -> None:
        server = self.servers[which]
        server.close()
        file = server.segment(*at)
        if file.exists() and file.stat().st_size > nbytes:
            os.truncate(file, nbytes)
        lost = self.lost(server)
        findings = self.look(server, lost)
        if fix:
            lost |= self.repair(server, findings)
        server.find(lost)

    @rule(
        which=one_of,
        places=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8),
        bit=st.integers(0, 7),
        fix=st.booleans(),
    )
    def restart_with_bits_of_the_index_flipped(
        self, which: int, places: list[float], bit: int, fix: bool
    ) -> None:
        """Of its pages, where all that the audit does not see costs nothing."""
        server = self.servers[which]
        server.close()
        lost = self.lost(server)
        known = self.look(server, lost)
        file = server.directory / "index" / "data.mdb"
        raw = bytearray(file.read_bytes())
        for place in places if len(raw) > META_BYTES else ():
            raw[META_BYTES + int(place * (len(raw) - META_BYTES))] ^= 1 << bit
        file.write_bytes(raw)
        with open_readonly(server.directory, segment_bytes=SEGMENT_BYTES) as pool:
            findings = audit(pool.only(), share=1.0).findings
        seen = findings != known
        if fix:
            lost |= self.repair(server, findings)
        server.find(lost, at_risk=seen)

    @rule(which=one_of, name=st.sampled_from(["index/data.mdb", "index/lock.mdb", "meta.json"]))
    def restart_without(self, which: int, name: str) -> None:
        server = self.servers[which]
        server.close()
        (server.directory / name).unlink()
        server.find(self.lost(server) if "lock" in name else server.acked)

    def repair(self, server: ModelServer, findings: tuple[Finding, ...]) -> set[Key]:
        """Have it put right; which damaged blocks are gone by that."""
        with held(server.directory):
            left = repair(server.directory, findings, segment_bytes=SEGMENT_BYTES)
        assert left.findings == ()
        return {k for k, version in server.acked.items() if (k, version) in server.damaged}

    # --- deaths

    @rule(which=one_of, keys=some_keys, steps=st.integers(0, 12), torn=st.booleans())
    def die(self, which: int, keys: list[Key], steps: int, torn: bool) -> None:
        """Before any change to the disk, those of a shutdown included."""
        server = self.servers[which]
        self.settle_all()
        self.device.torn, self.device.steps_left = torn, steps
        server.store(keys)
        server.close()
        self.device.reset()
        lost = self.lost(server)
        self.look(server, lost)
        server.find(lost)

    @rule(which=one_of, batches=st.lists(some_keys, min_size=1, max_size=4), acks=st.integers(0, 6))
    def be_killed(self, which: int, batches: list[list[Key]], acks: int) -> None:
        """For real: a process of its own goes on from here until SIGKILL."""
        server = self.servers[which]
        server.close()
        server.find(self.lost(server))
        server.close()
        self.settle_all(but=server)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            serve(server, batches, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as told:
            listen(server, told, acks, child)
        os.waitpid(child, 0)
        with open_readonly(server.directory, segment_bytes=SEGMENT_BYTES) as pool:
            codes = {finding.code for finding in audit(pool.only(), share=1.0).findings}
        assert codes <= AFTER_A_KILL | {"cut-off"}
        server.find()

    # --- what is always true

    def settle_all(self, but: ModelServer | None = None) -> None:
        for server in self.servers:
            if server is not but:
                server.settle()

    @invariant()
    def is_what_the_model_says(self) -> None:
        for server in self.servers:
            server.check()

    def teardown(self) -> None:
        self.device.reset()
        for server in self.servers:
            if hasattr(server, "tier"):
                server.tier.close()
        self.device.close()
        self.folder.cleanup()


def serve(server: ModelServer, batches: list[list[Key]], pipe: int) -> NoReturn:
    """In a child: store, and say what was begun, acknowledged and evicted, until killed."""

    def tell(word: str, keys: Iterable[Key], version: int) -> None:
        for k in keys:
            os.write(pipe, LINE.pack(WORDS.index(word), KEYS.index(k), version))

    try:
        server.tell = tell
        server.open()
        for batch in batches * 20:
            server.store(batch)
            server.poll()
            server.tier.demote(batch[:1])
        os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(1)


def listen(server: ModelServer, told: IO[bytes], acks: int, child: int) -> None:
    """Kill a child once it has acknowledged so many blocks, and believe all that it said."""
    acked, lines = 0, iter(lambda: told.read(LINE.size), b"")
    if not acks:
        os.kill(child, signal.SIGKILL)
    for line in lines:
        word, number, version = LINE.unpack(line)
        k = KEYS[number]
        if WORDS[word] == "begun":
            server.may_be_there({k: version})
            server.numbers = itertools.count(version + 1)
        elif WORDS[word] == "gone":
            server.gone([k])
        else:
            server.acked[k] = version
            acked += 1
            if acked == acks:
                os.kill(child, signal.SIGKILL)


TestNvmeServers = NvmeServers.TestCase
TestNvmeServers.settings = settings(max_examples=15, stateful_step_count=30)
