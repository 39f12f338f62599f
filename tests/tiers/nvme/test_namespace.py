# SPDX-License-Identifier: Apache-2.0
"""Namespaces on a real directory: names, the lock, what is refused, and what lies beside."""

import fcntl
import json
import logging
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tiercache.errors import ConfigError
from tiercache.tiers.nvme import namespace as module
from tiercache.tiers.nvme.namespace import FORMAT, Namespace, namespace

TEXTS = ("engine", "revision", "dtype", "kv_dtype", "hash_algorithm", "hash_seed")
NUMBERS = ("block_size", "blocks_per_chunk", "tensor_parallel", "rank")
FINGERPRINT: dict[str, object] = {
    "model": "org/model",
    "layout": {"0": [[4096, 16], [4096, 16]], "1": [[65536, 1]]},
    "lora": None,
    **dict.fromkeys(TEXTS, "a"),
    **dict.fromkeys(NUMBERS, 1),
}
RECORDS = {0: 8192, 1: 65536}

Open = Callable[..., Namespace]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Open namespaces below tmp_path; closed afterwards."""
    made: list[Namespace] = []

    def make(
        path: Path = tmp_path, records: dict[int, int] = RECORDS, **fields: object
    ) -> Namespace:
        made.append(Namespace.open(path, {**FINGERPRINT, **fields}, records))
        return made[-1]

    yield make
    for one in made:
        one.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("field", FINGERPRINT)
def test_every_field_changes_the_namespace(field: str) -> None:
    other = {**FINGERPRINT, field: "another"}
    without = {name: value for name, value in FINGERPRINT.items() if name != field}
    assert len({namespace(FINGERPRINT), namespace(other), namespace(without)}) == 3


def test_the_name_is_that_of_users_disks_whatever_the_order_of_fields() -> None:
    """Whoever changes it makes every cache unfindable."""
    assert namespace({"model": "m", "block_size": 16}) == "47f452ae13491c79"
    assert namespace({"block_size": 16, "model": "m"}) == "47f452ae13491c79"


def test_record_sizes_are_part_of_the_namespace(opened: Open) -> None:
    assert opened().directory != opened(records={0: 8192, 1: 4096}).directory


def test_a_value_that_json_does_not_know_is_an_error_of_the_caller(opened: Open) -> None:
    with pytest.raises(TypeError):
        opened(dtype=object())


def test_what_is_created_and_how_it_is_protected(opened: Open, tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        one = opened(tmp_path / "not" / "there")
    finally:
        os.umask(umask)
    directories = [one.directory, one.index_directory, *map(one.group_directory, RECORDS)]
    assert one.directory.parent == tmp_path / "not" / "there"
    assert [mode(directory) for directory in directories] == [0o700] * 4
    assert [path.name for path in directories[1:]] == ["index", "g0", "g1"]
    assert [mode(one.directory / name) for name in ("meta.json", "lock")] == [0o600] * 2
    assert not list(one.directory.glob("*.new"))


def test_meta_says_what_it_is_for(opened: Open) -> None:
    meta = json.loads((opened().directory / "meta.json").read_text())
    assert meta["format"] == FORMAT
    assert meta["created_by"].startswith("tiercache ")
    assert meta["fingerprint"] == {**FINGERPRINT, "record_bytes": {"0": 8192, "1": 65536}}


def test_opening_again_keeps_everything(opened: Open) -> None:
    one = opened()
    (one.index_directory / "data.mdb").write_bytes(b"entries")
    (one.group_directory(0) / "000000.seg").write_bytes(b"records")
    meta = (one.directory / "meta.json").stat()
    one.close()
    again = opened()
    assert (again.index_directory / "data.mdb").read_bytes() == b"entries"
    assert (again.group_directory(0) / "000000.seg").read_bytes() == b"records"
    assert (again.directory / "meta.json").stat().st_mtime_ns == meta.st_mtime_ns


def test_directories_that_others_could_read_are_closed_to_them(opened: Open) -> None:
    one = opened()
    one.close()
    one.directory.chmod(0o755)
    one.index_directory.chmod(0o777)
    opened()
    assert mode(one.directory) == mode(one.index_directory) == 0o700


HOLD = """
import sys
from pathlib import Path
from tiercache.tiers.nvme.namespace import Namespace
one = Namespace.open(Path(sys.argv[1]), eval(sys.argv[2]), eval(sys.argv[3]))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the namespace open."""
    command = [sys.executable, "-c", HOLD, str(tmp_path), repr(FINGERPRINT), repr(RECORDS)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def test_a_second_writer_is_refused_with_the_first_ones_pid(
    opened: Open, holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=rf"no other process.*process {holder.pid} does"
    ) as caught:
        opened()
    assert (caught.value.key, caught.value.value) == ("path", str(tmp_path))


def test_another_rank_opens_its_own(
    opened: Open, holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    rank = opened(rank=2)
    assert rank.unused == []  # the other one is in use
    assert len(list(tmp_path.iterdir())) == 2


def test_a_killed_writer_holds_nothing(opened: Open, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    one = opened()
    assert (one.directory / "lock").read_text() == f"{os.getpid()}\n"


def test_twice_in_one_process_is_refused_also_through_a_symlink(
    opened: Open, tmp_path: Path
) -> None:
    opened(tmp_path / "here")
    (tmp_path / "there").symlink_to("here")
    for path in (tmp_path / "here", tmp_path / "there"):
        with pytest.raises(ConfigError, match=f"process {os.getpid()} does"):
            opened(path)


def test_closing_twice_does_not_unlock_the_next_owner(opened: Open) -> None:
    first = opened()
    first.close()
    opened()
    first.close()
    with pytest.raises(ConfigError, match="no other process"):
        opened()


FORK = """
import os, sys, time
from pathlib import Path
from tiercache.tiers.nvme.namespace import Namespace
one = Namespace.open(Path(sys.argv[1]), eval(sys.argv[2]), eval(sys.argv[3]))
told, tell = os.pipe()
if os.fork() == 0:
    one.close()  # not the child's to unlock
    os.write(tell, b"x")
    sys.stdin.read()  # outlives its parent
    os._exit(0)
os.read(told, 1)
print("forked", flush=True)
time.sleep(600)
"""


def test_a_forked_child_neither_unlocks_nor_inherits(opened: Open, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORK, str(tmp_path), repr(FINGERPRINT), repr(RECORDS)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "forked\n"
        with pytest.raises(ConfigError, match=f"process {parent.pid} does"):
            opened()
        parent.kill()
        parent.wait()
        opened()


def test_a_lock_file_that_was_removed_meanwhile_is_not_taken_for_one(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody removes the namespace between our opening and locking the file."""
    flock = fcntl.flock

    def remove_then_lock(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        Path(f"/proc/self/fd/{descriptor}").readlink().unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_then_lock)
    opened()
    with pytest.raises(ConfigError, match="no other process"):
        opened()


@pytest.mark.parametrize("magic", module.NETWORK)
def test_network_file_systems_are_refused(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, magic: int
) -> None:
    monkeypatch.setattr(module, "file_system", lambda path: magic)
    with pytest.raises(ConfigError, match=r"^path: .*is a network file system") as caught:
        opened(tmp_path / "new")
    assert caught.value.key == "path"
    assert not (tmp_path / "new").exists()


def test_fuse_is_allowed_with_a_warning(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "file_system", lambda path: module.FUSE)
    opened()
    assert [r.levelname for r in caplog.records if "FUSE" in r.getMessage()] == ["WARNING"]


def test_the_kernel_is_asked_about_the_file_system() -> None:
    assert module.file_system(Path("/proc")) == 0x9FA0
    with pytest.raises(FileNotFoundError):
        module.file_system(Path("/nowhere"))


def test_a_file_in_the_way_is_refused(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^path: .*File exists"):
        opened(tmp_path / "file")


@pytest.mark.parametrize("name", [".", "index", "g1"])
def test_a_symlink_in_place_of_a_directory_is_refused(
    opened: Open, tmp_path: Path, name: str
) -> None:
    one = opened()
    one.close()
    place = one.directory / name
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="a symbolic link"):
        opened()


def test_a_symlink_in_place_of_the_lock_is_refused(opened: Open, tmp_path: Path) -> None:
    one = opened()
    one.close()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (one.directory / "lock").unlink()
    (one.directory / "lock").symlink_to(victim)
    with pytest.raises(ConfigError, match="symbolic link"):
        opened()
    assert victim.read_text() == "precious"


def test_a_directory_of_another_user_is_refused(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened().close()
    ours = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
    with pytest.raises(ConfigError, match=f"belongs to user {ours}"):
        opened()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_is_refused(opened: Open, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match=r"^path: .*Permission denied"):
        opened()
    tmp_path.chmod(0o700)


def test_a_read_only_file_system_is_refused(opened: Open) -> None:
    with pytest.raises(ConfigError, match=r"^path: "):
        opened(Path("/proc/tiercache"))


@pytest.mark.parametrize("found", [0, FORMAT + 1])
def test_another_format_is_refused_and_left_alone(opened: Open, found: int) -> None:
    one = opened()
    one.close()
    meta = json.loads((one.directory / "meta.json").read_text())
    (one.directory / "meta.json").write_text(json.dumps({**meta, "format": found}))
    (one.index_directory / "data.mdb").write_bytes(b"entries")
    with pytest.raises(ConfigError, match=rf"format {found} found, this version reads {FORMAT}"):
        opened()
    assert (one.index_directory / "data.mdb").exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("org/model", "org/other"),
        ('"format"', '"version"'),
        ('"fingerprint"', '"finger"'),
        ("}", ""),
        ("{", "\0"),
        ("{", "[" * 100_000),
    ],
)
def test_a_damaged_meta_means_an_empty_index(
    opened: Open, caplog: pytest.LogCaptureFixture, old: str, new: str
) -> None:
    one = opened()
    one.close()
    file = one.directory / "meta.json"
    meta = file.read_text()
    file.write_text(meta.replace(old, new))
    (one.index_directory / "data.mdb").write_bytes(b"entries")
    opened()
    assert list(one.index_directory.iterdir()) == []
    assert file.read_text() == meta
    assert "begins anew" in caplog.text


def test_a_deleted_meta_means_an_empty_index(opened: Open) -> None:
    one = opened()
    one.close()
    (one.directory / "meta.json").unlink()
    (one.index_directory / "data.mdb").write_bytes(b"entries")
    assert list(opened().index_directory.iterdir()) == []


def test_what_an_interrupted_start_left_is_taken_over(opened: Open, tmp_path: Path) -> None:
    one = opened()
    one.close()
    (one.directory / "meta.json").rename(one.directory / "meta.new")
    opened()
    assert sorted(path.name for path in one.directory.glob("meta*")) == ["meta.json"]


def test_unused_namespaces_are_logged_with_their_size_and_difference(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    old = opened(dtype="float16", hash_seed="01")
    (old.group_directory(0) / "000000.seg").write_bytes(bytes(1 << 20))
    old.close()
    caplog.set_level(logging.INFO, logger="tiercache")
    [unused] = opened().unused
    assert (unused.name, unused.differs) == (old.directory.name, ("dtype", "hash_seed"))
    assert 1 << 20 <= unused.nbytes < 2 << 20
    [record] = [r for r in caplog.records if "lies unused" in r.getMessage()]
    assert record.levelno == logging.INFO
    assert "0.00 GiB: dtype differs, hash seed differs" in record.getMessage()


def test_a_hash_seed_that_differs_is_a_warning(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    opened(hash_seed="01").close()
    opened()
    [record] = [r for r in caplog.records if "hash seed differs" in r.getMessage()]
    assert record.levelno == logging.WARNING


def test_what_lies_beside_may_be_anything(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / ("0" * 16)).symlink_to("/")
    (tmp_path / ("1" * 16)).mkdir()  # without a lock
    (tmp_path / ("2" * 16)).touch()
    damaged = tmp_path / ("3" * 16)
    damaged.mkdir()
    (damaged / "lock").touch()
    (damaged / "meta.json").write_text("{")
    [unused] = opened().unused
    assert (unused.name, unused.differs) == ("3" * 16, ())
