# SPDX-License-Identifier: Apache-2.0
"""Available memory and page sizes, from faked /proc and /sys trees."""

from pathlib import Path

import pytest

from tiercache.hostmem import available_bytes, huge_page_bytes

MIB = 1 << 20
UNLIMITED_V1 = 9223372036854771712
V2_MOUNT = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
V1_OTHER = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"


class Host:
    """A root directory with just enough of /proc and /sys."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", "MemTotal: 9999999 kB\nMemAvailable: 4194304 kB\n")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def groups(self, own: str, *mounts: str) -> None:
        self.write("proc/self/cgroup", own)
        self.write("proc/self/mountinfo", "".join(f"{mount}\n" for mount in mounts))

    def v2(self, path: str, limit: str, usage: int, stat: str = "anon 1\n") -> None:
        for name, value in (("max", limit), ("current", f"{usage}\n"), ("stat", stat)):
            self.write(f"sys/fs/cgroup/{path}/memory.{name}", value)

    def v1(self, path: str, limit: int, usage: int, stat: str = "cache 1\n") -> None:
        base = f"sys/fs/cgroup/memory/{path}"
        self.write(f"{base}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{base}/memory.usage_in_bytes", f"{usage}\n")
        self.write(f"{base}/memory.stat", stat)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_without_control_groups_memory_available_counts(host: Host) -> None:
    assert available_bytes(host.root) == 4096 * MIB


def test_v2_limit_minus_usage(host: Host) -> None:
    host.groups("0::/app\n", V2_MOUNT.format(root="/"))
    host.v2("app", f"{1000 * MIB}\n", 300 * MIB)
    assert available_bytes(host.root) == 700 * MIB


def test_v2_parents_limit_too_and_max_is_ignored(host: Host) -> None:
    host.groups("0::/pod/app\n", V2_MOUNT.format(root="/"))
    host.v2("pod/app", "max\n", 10 * MIB)
    host.v2("pod", f"{500 * MIB}\n", 480 * MIB)
    assert available_bytes(host.root) == 20 * MIB


def test_file_pages_are_not_in_use(host: Host) -> None:
    host.groups("0::/app\n", V2_MOUNT.format(root="/"))
    stat = f"anon {10 * MIB}\ninactive_file {600 * MIB}\nactive_file {200 * MIB}\n"
    host.v2("app", f"{1000 * MIB}\n", 900 * MIB, stat)
    assert available_bytes(host.root) == 900 * MIB


def test_v1_limit_and_hierarchical_file_pages(host: Host) -> None:
    host.groups("4:memory:/app\n3:cpu:/\n0::/\n", V1_OTHER, V1_MOUNT.format(root="/"))
    stat = f"inactive_file 5\ntotal_inactive_file {100 * MIB}\n"
    host.v1("app", 1000 * MIB, 300 * MIB, stat)
    host.v1("", UNLIMITED_V1, 2000 * MIB)
    assert available_bytes(host.root) == 800 * MIB


def test_a_container_sees_its_own_group_at_the_mount_point(host: Host) -> None:
    host.groups("4:memory:/docker/abc\n", V1_MOUNT.format(root="/docker/abc"))
    host.v1("", 256 * MIB, 56 * MIB)
    assert available_bytes(host.root) == 200 * MIB


def test_a_group_outside_the_mounted_part_falls_back_to_the_mount_point(host: Host) -> None:
    host.groups("0::/../elsewhere\n", V2_MOUNT.format(root="/docker/abc"))
    host.v2("", f"{64 * MIB}\n", 4 * MIB)
    assert available_bytes(host.root) == 60 * MIB


def test_usage_above_the_limit_leaves_nothing(host: Host) -> None:
    host.groups("0::/\n", V2_MOUNT.format(root="/"))
    host.v2("", f"{64 * MIB}\n", 80 * MIB)
    assert available_bytes(host.root) == 0


def test_the_real_files_can_be_read() -> None:
    assert available_bytes() > 0


SMAPS = """\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Rss:                4096 kB
AnonHugePages:      2048 kB
7f0000400000-7f0000800000 rw-p 00000000 00:00 0 [anon: name]
AnonHugePages:      4096 kB
VmFlags: rd wr
7f0000900000-7f0000a00000 rw-p 00000000 00:00 0
AnonHugePages:      8192 kB
"""


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0x7F0000000000, 0x7F0000400000, 2 * MIB),
        (0x7F0000000000, 0x7F0000800000, 6 * MIB),
        (0x7F0000600000, 0x7F0000700000, 1 * MIB),
        (0x7F0000800000, 0x7F0000900000, 0),
    ],
)
def test_huge_pages_of_a_range(tmp_path: Path, start: int, end: int, expected: int) -> None:
    smaps = tmp_path / "smaps"
    smaps.write_text(SMAPS)
    assert huge_page_bytes(start, end, smaps) == expected


def test_huge_pages_are_unknown_without_smaps(tmp_path: Path) -> None:
    assert huge_page_bytes(0, 1, tmp_path / "missing") is None
