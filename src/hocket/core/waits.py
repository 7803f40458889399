"""What this process waits for now, in words, so that whoever shows progress can say so.

    with awaiting("the policy server at ws://gpu:8000"):
        connect()

It belongs to the process, as its terminal does; what waits need not know who shows it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_waits: list[str] = []


@contextlib.contextmanager
def awaiting(what: str) -> Iterator[None]:
    """Say that `what` is awaited for as long as the block lasts, on any thread."""
    _waits.append(what)
    try:
        yield
    finally:
        _waits.remove(what)


def awaited() -> tuple[str, ...]:
    """Everything that is awaited now, the oldest first."""
    return tuple(dict.fromkeys(_waits))
