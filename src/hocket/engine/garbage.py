"""Keeps Python's garbage collector out of long runs with many lanes or trials."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 256
"""Lanes, or trials of a driver, from which on a collection of garbage at the start is worth its
time; see `gc_frozen`. Of the runs in `batched/cpu.py`, those with thousands of rows gain."""


FEW = 1000
"""Objects that are kept out of the collector's sight when Python starts: 375 in 3.12, none in the
others. Whoever calls gc.freeze() has more."""


@contextmanager
def gc_frozen(count: int) -> Iterator[None]:
    """While MANY lanes or trials are run, or more, keep Python's garbage collector from looking
    through what existed before: it does so once, at the start. What is made meanwhile is collected
    as always.

    With torch or JAX imported a full collection takes a tenth of a second or more, and thousands of
    rows make enough tuples for one every second.
    """
    if count < MANY or not gc.isenabled() or gc.get_freeze_count() > FEW:
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
