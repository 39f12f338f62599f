# SPDX-License-Identifier: Apache-2.0
"""A process that is killed at any moment loses nothing that it acknowledged, and leaks nothing."""

import logging
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tiers.nvme.tier_helpers import (
    DISK,
    Rig,
    capacity_of,
    keys,
    namespace_of,
    occupied,
    published,
    validate,
)
from tiercache.blocks import Key, by_group
from tiercache.tiers.base import Batch
from tiercache.tiers.nvme.space import Allocation, SlotTable
from tiercache.tiers.nvme.tier import NvmeTier

ROOT = Path(__file__).parents[3]
ROUNDS = 15
SOAK_ROUNDS = 200
#: What a writer lives before it is killed, at most.
LONGEST_LIFE_S = 0.3
#: Keys of a job, and jobs at once, by group; the slots of memory behind them are for loads.
JOB_KEYS = {0: 8, 1: 2}
JOBS = 6


class Writer:
    """Stores, loads, touches and demotes at random, and says on stdout what it can rely on.

    "stored" follows the acknowledgement; "evicted" comes before the job that does it is submitted.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = Rig(path)
        self.tier = self.rig.open(policy=self.rng.choice(["lru", "fifo", "s3fifo"]))
        self.number = seed * 1_000_000
        self.lanes = {group_id: list(range(JOBS)) for group_id in JOB_KEYS}
        self.stores: dict[int, Batch] = {}
        self.loads: dict[int, Batch] = {}
        for group in self.tier._groups.values():
            report_evictions(group.table)

    def run(self) -> None:
        say("ready", [])
        while True:
            self.store(self.rng.choice([0, 0, 0, 1]))
            if known := published(self.tier):
                self.use(known)
            for done in self.tier.poll():
                if done.job_id in self.loads:
                    batch = self.loads.pop(done.job_id)
                    assert not done.failed
                    assert self.rig.right(batch) == batch.keys
                else:
                    batch = self.stores.pop(done.job_id)
                    assert not done.failed
                    say("stored", batch.keys)
                    self.lanes[batch.group_id].append(batch.slots[0] // JOB_KEYS[batch.group_id])

    def store(self, group_id: int) -> None:
        if self.lanes[group_id]:
            lane = self.lanes[group_id].pop()
            names = range(self.number, self.number + self.rng.randint(1, JOB_KEYS[group_id]))
            self.number = names.stop
            batch = self.rig.begin_store(
                self.tier, keys(names, group_id), first=lane * JOB_KEYS[group_id]
            )
            if batch:
                self.stores[batch.job_id] = batch
            else:
                self.lanes[group_id].append(lane)

    def use(self, known: Sequence[Key]) -> None:
        self.tier.touch(self.rng.choices(known, k=3))
        self.tier.demote(self.rng.choices(known, k=1))
        if not self.loads:
            group_id, chosen = next(iter(by_group(self.rng.sample(known, 1)).items()))
            batch = self.rig.batch(chosen, first=JOBS * JOB_KEYS[group_id])
            self.rig.fill(batch, garbage=True)
            self.tier.load(batch)
            self.loads[batch.job_id] = batch


def report_evictions(table: SlotTable) -> None:
    allocate = table.allocate

    def reported(keys: Sequence[Key]) -> Allocation | None:
        allocation = allocate(keys)
        if allocation and allocation.evicted:
            say("evicted", list(allocation.evicted))
        return allocation

    table.allocate = reported  # type: ignore[method-assign, assignment]


def say(what: str, keys: Sequence[Key]) -> None:
    sys.stdout.write(" ".join([what, *(key.hex() for key in keys)]) + "\n")
    sys.stdout.flush()


def killed_after(seconds: float, path: Path, seed: int) -> tuple[set[Key], int]:
    """What a writer stored for good, and how many records it stored altogether."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        f"from pathlib import Path; from {__name__} import Writer\n"
        f"Writer(Path({str(path)!r}), {seed}).run()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pipesize=1 << 20) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        time.sleep(seconds)
        process.kill()
        lines = process.stdout.read().splitlines(keepends=True)
    assert process.returncode == -9
    kept: set[Key] = set()
    counts: Counter[str] = Counter()
    for line in lines:
        if line.endswith(b"\n"):  # else it was killed while it wrote it
            what, *found = line.decode().split()
            of_line = {Key(bytes.fromhex(key)) for key in found}
            kept = kept | of_line if what == "stored" else kept - of_line
            counts[what] += len(found)
    return kept, counts["stored"]


def check(rig: Rig, tier: NvmeTier, kept: set[Key]) -> None:
    assert occupied(rig.path) <= capacity_of(DISK)
    names = [path.name for path in namespace_of(rig.path).rglob("*")]
    assert {name for name in names if not name.endswith(".seg")} == {
        *("meta.json", "lock", "index", "data.mdb", "lock.mdb", "g0", "g1")
    }
    validate(tier)
    found = published(tier)
    assert kept <= set(found)
    for run in by_group(found).values():
        good = rig.loaded(tier, run)
        assert kept & set(run) <= set(good)
    assert tier.stats().used == sum(
        group.records.record_bytes * len(group.table.slot_of) for group in tier._groups.values()
    )


def use_all(rig: Rig, tier: NvmeTier, seed: int) -> None:
    """Every slot that there is can be used, at once."""
    for group_id, count in DISK.items():
        batch = rig.begin_store(tier, keys((f"{seed} {n}" for n in range(count)), group_id))
        assert batch
        assert not rig.wait(tier, batch).failed
        assert rig.loaded(tier, batch.keys) == batch.keys
    validate(tier)
    assert occupied(rig.path) <= capacity_of(DISK)


def kill_and_check(path: Path, rounds: int, first_seed: int) -> tuple[int, int]:
    rng = random.Random(first_seed)
    stored = surviving = 0
    with Rig(path) as rig:
        for seed in range(first_seed, first_seed + rounds):
            kept, count = killed_after(rng.uniform(0, LONGEST_LIFE_S), path, seed)
            stored += count
            surviving += len(kept)
            tier = rig.open()
            check(rig, tier, kept)
            if seed % 2:
                use_all(rig, tier, seed)
            assert not tier.stats().jobs
            tier.close()
    return stored, surviving


def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    stored, surviving = kill_and_check(tmp_path / "nvme", ROUNDS, first_seed=1)
    assert stored > surviving > ROUNDS


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_killed_writers(tmp_path: Path) -> None:
    stored, surviving = kill_and_check(tmp_path / "nvme", SOAK_ROUNDS, first_seed=1000)
    text = "%d kills, %d records acknowledged, %d of them not evicted, all there"
    logging.getLogger(__name__).warning(text, SOAK_ROUNDS, stored, surviving)
    assert stored > surviving > SOAK_ROUNDS
