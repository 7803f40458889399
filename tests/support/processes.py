"""What processes there are below a test, and waiting for them to go."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

HAS_PROC = Path("/proc/self").exists()
"""Whether the system tells of processes in files. (On a Mac `ps` does.)"""
needs_proc = pytest.mark.skipif(not HAS_PROC, reason="the memory of workers is not read (macOS)")
DEADLINE_S = 90.0
"""Seconds that a test waits for an event before it fails: under the 120 s after which pytest ends a
test without saying what was missing, and long enough for a machine that runs ten other things."""


def children(pid: int) -> list[int]:
    """Processes that a process started, and those that these did, by id. No zombies."""
    below: dict[int, list[int]] = {}
    for process, (state, parent) in _table().items():
        if state[0] not in "ZX":
            below.setdefault(parent, []).append(process)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        started = below.get(waiting.pop(), [])
        found += started
        waiting += started
    return sorted(found)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    if HAS_PROC:
        fields = _fields(Path(f"/proc/{pid}/stat"))
        return bool(fields) and fields[0] not in "ZX"
    return _table().get(pid, ("Z", 0))[0][0] not in "ZX"


def started_with(variable: str, value: str) -> set[int]:
    """Living processes whose environment held this from the start, whoever their parent is."""
    entry = f"{variable}={value}".encode()
    found = set()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            held = entry in environ.read_bytes().split(b"\0")
        except OSError:
            continue  # It has ended, or belongs to someone else.
        if held and alive(int(environ.parent.name)):
            found.add(int(environ.parent.name))
    return found


def wait_until(claim: Callable[[], bool], timeout_s: float = DEADLINE_S) -> None:
    """Fail unless the claim becomes true in time."""
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline, "It did not become true in time."
        time.sleep(0.01)


def wait_gone(pids: Iterable[int], timeout_s: float = DEADLINE_S) -> None:
    """Fail unless these processes end in time."""
    waited = list(pids)
    wait_until(lambda: not any(alive(pid) for pid in waited), timeout_s)


def _table() -> dict[int, tuple[str, int]]:
    """State and parent of every process, by id."""
    if not HAS_PROC:
        words = ["ps", "-axo", "pid=,ppid=,state="]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as looking:
            rows = looking.communicate()[0].split()
        triples = zip(rows[::3], rows[1::3], rows[2::3], strict=True)
        return {int(p): (s, int(q)) for p, q, s in triples if int(p) != looking.pid}
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        if fields := _fields(stat):
            found[int(stat.parent.name)] = (fields[0], int(fields[1]))
    return found


def _fields(stat: Path) -> list[str]:
    """The state, the parent's id and what follows; nothing if the process has ended."""
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:
        return []
