import os
from pathlib import Path

from hocket.system import machine


def make_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_this_machine_has_at_least_one_core_and_some_memory() -> None:
    assert 1 <= machine.cores() <= (os.cpu_count() or 1)
    assert machine.memory_bytes() > 1 << 26


def test_a_quota_of_the_unified_hierarchy_limits_cores(tmp_path: Path) -> None:
    root = make_tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/jobs/mine\n",
            "sys/fs/cgroup/jobs/mine/cpu.max": "max 100000\n",
            "sys/fs/cgroup/jobs/cpu.max": "100000 100000\n",
        },
    )
    assert machine.cores(root) == 1


def test_a_quota_of_the_old_hierarchy_limits_cores(tmp_path: Path) -> None:
    root = make_tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/\n3:memory:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert machine.cores(root) == 1


def test_no_quota_leaves_the_affinity(tmp_path: Path) -> None:
    root = make_tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    whole = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert machine.cores(root) == whole


def test_memory_is_the_tightest_limit_on_the_way_up(tmp_path: Path) -> None:
    root = make_tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "proc/meminfo": "MemTotal:       1000 kB\nMemFree: 5 kB\n",
            "sys/fs/cgroup/a/b/memory.max": "900000\n",
            "sys/fs/cgroup/a/memory.max": "800000\n",
            "sys/fs/cgroup/memory.max": "max\n",
        },
    )
    assert machine.memory_bytes(root) == 800000


def test_a_limit_at_the_mount_counts_where_the_path_is_the_hosts(tmp_path: Path) -> None:
    root = make_tree(
        tmp_path,
        {
            "proc/self/cgroup": "3:memory:/docker/0123abcd\n",
            "proc/meminfo": "MemTotal:       1000 kB\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "4096\n",
        },
    )
    assert machine.memory_bytes(root) == 4096


def test_without_control_groups_physical_memory_counts(tmp_path: Path) -> None:
    root = make_tree(tmp_path, {"proc/meminfo": "MemTotal:       1000 kB\n"})
    assert machine.memory_bytes(root) == 1024000
