"""How many cores and how much memory this process may use, by affinity and control groups, and
names of this machine and its processes.

`os.cpu_count` says what the machine has. A container or a batch job often may use less, and a fleet
sized for the whole machine would then thrash or be killed. By the names the next start knows whose
a container or a machine elsewhere is, and that the process that asked for it has ended.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")


def cores(root: Path = _ROOT) -> int:
    """Cores that this process may keep busy, at least 1."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        allowed = os.cpu_count() or 1
    quotas = [quota for quota in _cpu_quotas(root) if quota > 0]
    # Half a core is still worth a worker: 1.5 cores count as 2.
    return max(1, min([allowed, *(math.ceil(quota) for quota in quotas)]))


def memory_bytes(root: Path = _ROOT) -> int:
    """Bytes that this process and its workers may use together."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(_memory_limits(root), default=pages)


def process_age_s() -> float:
    """Seconds since this process was started, its imports included; 0 where nothing tells."""
    try:
        began = int(stat_of("self")[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def stat_of(pid: int | str) -> list[str]:
    """What the system tells of a process from its state on, the third field; OSError where there is
    none, or nothing tells."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def cpu_s() -> float | None:
    """CPU seconds of this process and of all below it, ended ones that were waited for included;
    None where nothing tells."""
    total, waiting = 0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        try:
            total += sum(map(int, stat_of(pid)[11:15]))
            for task in os.listdir(f"/proc/{pid}/task"):
                waiting += map(int, Path(f"/proc/{pid}/task/{task}/children").read_bytes().split())
        except OSError:
            if pid == os.getpid():
                return None
    return total / os.sysconf("SC_CLK_TCK")


def _cpu_quotas(root: Path) -> Iterator[float]:
    """The cores that each control group grants, from ours to the root, in both versions."""
    for folder in _groups(root, ""):
        quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
        if quota.isdigit() and period.isdigit():
            yield int(quota) / int(period)
    for folder in _groups(root, "cpu"):
        quota = _read(folder / "cpu.cfs_quota_us").strip()
        period = _read(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit():
            yield int(quota) / int(period)


def _memory_limits(root: Path) -> Iterator[int]:
    for controller, name in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        for folder in _groups(root, controller):
            limit = _read(folder / name).strip()
            if limit.isdigit():
                yield int(limit)
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            yield int(rest.split()[0]) * 1024


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of our control group and its parents; controller "" means version 2.

    Inside a container the path often names a folder of the host that is not mounted here, and
    then the mount's own root is our group: parents are tried all the way up.
    """
    mount = root / "sys/fs/cgroup" / controller
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            inner = PurePosixPath(path.lstrip("/"))
            yield mount / inner
            for parent in inner.parents if inner.parts else ():
                yield mount / parent
            return


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def resident_bytes(pid: int) -> int | None:
    """The resident memory of a process; None where there is none with this id."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None


def owner(pid: int | None = None) -> str:
    """A process of this machine: boot, process namespace, process id, and when the process began,
    with dashes between; no two are ever the same."""
    pid = os.getpid() if pid is None else pid
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"{_boot()[:8]}-{namespace}-{pid}-{_began(pid)}"


def is_gone(name: str) -> bool:
    """True where the process of this machine that `owner` named has ended; false where that cannot
    be seen from here."""
    parts = name.split("-")
    if len(parts) != 4 or not parts[2].isdigit():
        return False
    boot, namespace, _, began = owner(int(parts[2])).split("-")
    if parts[0] != boot:
        return True  # The machine was started anew since.
    # Processes of another namespace cannot be seen from here.
    return parts[1] == namespace and parts[3] != began


def host() -> str:
    """This machine, as others that use the same account are told apart from it."""
    try:
        with open("/etc/machine-id") as file:
            number = file.read().strip()
    except OSError:
        number = ""
    return hashlib.sha256(f"{number} {platform.node()}".encode()).hexdigest()[:16]


def neighbourhood() -> str:
    """This boot of this machine, network namespace and user: processes of one neighbourhood can
    hand each other files over a local socket. Raises OSError where the system does not say."""
    return f"{_boot()}/{os.stat('/proc/self/ns/net').st_ino}/{os.getuid()}"


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _began(pid: int) -> str:
    try:
        return stat_of(pid)[19]
    except OSError:
        return ""
