"""What this process waits for now, in words, so that whoever shows progress can say so.

    with awaiting("the policy server at ws://gpu:8000"):
        connect()

It belongs to the process, as its terminal does; what waits need not know who shows it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

_waits: list[list[str]] = []
"""Each wait's words, in a list of one so that they can be changed."""


@contextlib.contextmanager
def awaiting(what: str) -> Iterator[Callable[[str], None]]:
    """Say that `what` is awaited for as long as the block lasts, on any thread. What the block is
    given changes the words."""
    words = [what]

    def change(text: str) -> None:
        words[0] = text

    _waits.append(words)
    try:
        yield change
    finally:
        _waits[:] = [each for each in _waits if each is not words]


def awaited() -> tuple[str, ...]:
    """Everything that is awaited now, the oldest first."""
    return tuple(dict.fromkeys(words[0] for words in _waits))
