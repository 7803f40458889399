"""How many files may be open at once, against what workers take of them."""

from __future__ import annotations

import resource

from hocket.errors import UsageError

_EACH = 4
"""Files of a worker that are open here: its stream, its log, its control page, its arrays."""
_REST = 256
"""For everything else: libraries, the run folder, the policy's devices, its connections."""
_ENOUGH = 10240
"""Enough for 2,500 workers, and the most that macOS grants where it says that there is no limit."""


def most() -> int:
    """Workers that the hard limit leaves room for."""
    return max(1, (_hard() - _REST) // _EACH)


def allow(workers: int, noun: str = "worker") -> None:
    """Raise the soft limit, which programs that are started later inherit, as far as may be of use.
    Raises UsageError where these workers need more than the hard one, before anything starts."""
    wanted = workers * _EACH + _REST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if workers > most():
        raise UsageError(
            f"{workers:,} {noun}s need about {wanted:,} open files, and this process may have "
            f"{_hard():,}. Use at most {most():,} {noun}s, or raise the limit where the process is "
            f"started: ulimit -Hn {wanted}."
        )
    wanted = max(wanted, min(_ENOUGH, _hard()))
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _hard() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 1 << 20 if hard == resource.RLIM_INFINITY else hard
