"""Keeps Python's garbage collector from looking, over and over, through what is there to stay.

With torch or JAX imported a full collection takes a tenth of a second or more, and thousands of
rows make enough tuples for one every second.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 256
"""Lanes from which on that is worth a collection at the start."""


@contextmanager
def settled(lanes: int) -> Iterator[None]:
    """While so many lanes run: what exists now is looked through once, before, and then left alone.
    What is made meanwhile is collected as always."""
    if lanes < MANY or not gc.isenabled() or gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
