"""What the system limits for this process: how many files may be open at once, against what workers
take of them, and the address space (`ulimit -v`).

OpenBLAS, which numpy and scipy bring, asks for memory for each core when it is loaded and, where it
gets none, asks again for ever: a process would hang in an import that nothing can interrupt. So the
import is tried in another process first, wherever there is a limit of the address space."""

from __future__ import annotations

import resource
import subprocess
import sys

from hocket.errors import UsageError

_EACH = 4
"""Files of a worker that are open here: its stream, its log, its control page, its arrays."""
_REST = 256
"""For everything else: libraries, the run folder, the policy's devices, its connections."""
_ENOUGH = 10240
"""Enough for 2,500 workers, and the most that macOS grants where it says that there is no limit."""


def most_workers() -> int:
    """Workers that the hard limit leaves room for."""
    return max(1, (_hard() - _REST) // _EACH)


def allow(workers: int, noun: str = "worker") -> None:
    """Raise the soft limit, which programs that are started later inherit, as far as may be of use.
    Raises UsageError where these workers need more than the hard one, before anything starts."""
    wanted = workers * _EACH + _REST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if workers > most_workers():
        raise UsageError(
            f"{workers:,} {noun}s need about {wanted:,} open files, and this process may have "
            f"{_hard():,}. Use at most {most_workers():,} {noun}s, or raise the limit where the "
            f"process is started: ulimit -Hn {wanted}."
        )
    wanted = max(wanted, min(_ENOUGH, _hard()))
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _hard() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 1 << 20 if hard == resource.RLIM_INFINITY else hard


_TRY = """
import mmap
import numpy.linalg, pyarrow.parquet, scipy.special, scipy.stats
mmap.mmap(-1, {room})
"""
_ROOM = 512 << 20
"""Bytes that must be left for what a run needs beside libraries."""
_LONGEST_S = 60.0
"""An import that takes longer hangs: it takes a second."""


def require_address_space() -> None:
    """Raise UsageError where the limit is too low; do nothing where there is none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    command = [sys.executable, "-c", _TRY.format(room=_ROOM)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LONGEST_S, check=False)
        if done.returncode == 0:
            return
    except (subprocess.TimeoutExpired, OSError, MemoryError):
        pass
    raise UsageError(
        f"The address space of this process is limited to {limit >> 20} MiB (ulimit -v), which the "
        f"libraries that hocket needs do not fit into. Raise the limit: ulimit -v unlimited. To "
        f"limit simulators alone there is --worker-memory."
    )
