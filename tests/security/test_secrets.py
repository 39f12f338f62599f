# SPDX-License-Identifier: Apache-2.0
"""What prompts say, and the hashes that tell who said the same, stay where they are needed."""

import hashlib
import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.tiers.nvme.damage_helpers import flip
from tests.tiers.nvme.tier_helpers import Rig, content, keys, namespace_of, published, segment
from tiercache.blocks import key_hash


@pytest.fixture(autouse=True)
def _everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def forms(secret: bytes) -> set[bytes]:
    """How a hash may be written: as it is, in digits, as Python shows it; or its beginning."""
    start = secret[:8]
    shown = repr(start)[2:-1].encode()
    return {start, start.hex().encode(), start.hex().upper().encode(), shown}


def found(secrets: Iterable[bytes], content: bytes) -> list[bytes]:
    return [form for secret in secrets for form in forms(secret) if form in content]


def logged(caplog: pytest.LogCaptureFixture) -> bytes:
    """All records, with their tracebacks, as text."""
    formatter = logging.Formatter("%(message)s")
    return "\n".join(map(formatter.format, caplog.records)).encode()


def test_a_hash_would_be_found() -> None:
    secret = hashlib.sha256(b"x").digest()
    for text in (secret.hex(), repr(secret), f"key {secret.hex()[:16]}..."):
        assert found([secret], text.encode())
    assert found([secret], b"..." + secret)


def test_a_disk_says_nothing_of_its_keys_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stores, evictions, damage, failed reads and a damaged index."""
    stored = keys(range(60))
    with Rig(tmp_path / "nvme") as rig:
        tier = rig.open()
        rig.stored(tier, stored)
        flip(segment(rig, 0), 17)
        rig.loaded(tier, published(tier))
        tier.touch(stored)
        tier.demote(stored)
        os.truncate(segment(rig, 1), 0)
        rig.loaded(tier, published(tier))
        tier.close()
        index = namespace_of(rig.path) / "index" / "data.mdb"
        index.write_bytes(index.read_bytes().replace(key_hash(stored[-1]), bytes(32)))
        rig.open().close()
    assert "damage" in caplog.text
    assert found(map(key_hash, stored), logged(caplog)) == []


def test_a_job_that_fails_names_no_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its traceback goes into the log, and must not show what it was given."""

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    stored = keys(range(8))
    with Rig(tmp_path / "nvme") as rig:
        tier = rig.open()
        monkeypatch.setattr("tiercache.tiers.nvme.records.Records.write", fail)
        assert rig.store(tier, stored).failed
        tier.close()
    assert found(map(key_hash, stored), logged(caplog)) == []


def test_the_index_and_the_records_are_all_that_a_disk_keeps(tmp_path: Path) -> None:
    """Hashes in the index, bytes in segments; nothing of either anywhere else."""
    stored = keys(range(8))
    with Rig(tmp_path / "nvme") as rig:
        tier = rig.open()
        rig.stored(tier, stored)
        tier.close()
        files = {p.name: p.read_bytes() for p in namespace_of(rig.path).rglob("*") if p.is_file()}
    secrets = [*map(key_hash, stored), *(content(key, 0) for key in stored)]
    having = {name for name, raw in files.items() if found(secrets, raw)}
    assert having == {"data.mdb", "000000.seg"}


def test_nobody_else_may_read_what_is_made(tmp_path: Path) -> None:
    """Whatever the umask says."""
    before = os.umask(0)
    try:
        with Rig(tmp_path / "nvme") as rig:
            tier = rig.open()
            rig.stored(tier, [*keys(range(24))])
            rig.stored(tier, keys(range(4), 1), at_once=2)
            tier.close()
            rig.open().close()
    finally:
        os.umask(before)
    paths = [tmp_path / "nvme", *(tmp_path / "nvme").rglob("*")]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert {"meta.json", "lock", "data.mdb", "lock.mdb", "000000.seg"} <= modes.keys()
    for path in paths:
        assert modes[path.name] == (0o700 if path.is_dir() else 0o600), path
