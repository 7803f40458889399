"""Look for room in a limited address space (`ulimit -v`) for the libraries that hocket loads.

OpenBLAS, which numpy and scipy bring, asks for memory for each core when it is loaded and, where it
gets none, asks again for ever: a process would hang in an import that nothing can interrupt. So the
import is tried in another process first, wherever there is a limit.
"""

from __future__ import annotations

import resource
import subprocess
import sys

from hocket.errors import UsageError

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
