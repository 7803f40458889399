"""What processes take of the machine: others' while something was timed, and workers' memory."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path


class Others:
    """What share of the cores other processes took meanwhile: near 0 on a machine at rest."""

    def __init__(self) -> None:
        self._began, self._machine, self._own = time.perf_counter(), _machine_s(), _own_s()

    def share(self) -> float:
        """Since this was made; to be asked while all own processes still live."""
        elapsed = (time.perf_counter() - self._began) * len(os.sched_getaffinity(0))
        own = _own_s() - self._own
        return max(0.0, _machine_s() - self._machine - own) / elapsed


def _machine_s() -> float:
    """Seconds that all cores have worked."""
    user, nice, system, _, _, irq, softirq, *_ = Path("/proc/stat").read_text().split()[1:9]
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """CPU seconds of this process and all below it."""
    return sum(_seconds_of(pid) for pid in family(os.getpid()))


def worker_memory() -> list[dict[str, int]]:
    """Of each worker process below this one, bytes by the kernel's names (Rss, Pss, ...)."""
    found = []
    for pid in family(os.getpid()):
        try:
            if "workers/local/bootstrap.py" not in Path(f"/proc/{pid}/cmdline").read_text():
                continue
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        found.append({line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines[1:]})
    return found


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in listed.read_text().split():
                found += family(int(child))
    return found


def _seconds_of(pid: int) -> float:
    """CPU seconds of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
