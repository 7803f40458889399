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
COLLECT_AFTER = 20_000
"""New objects after which a run looks for garbage. After Python's own 700 it would look through all
that was imported while a thousand short episodes are recorded: a tenth of the parent's CPU."""


@contextmanager
def gc_frozen(count: int) -> Iterator[None]:
    """While MANY lanes or trials are run, or more, keep Python's garbage collector from looking
    through what existed before: it does so once, at the start. What is made meanwhile is collected,
    in every run after more objects than usual.

    With torch or JAX imported a full collection takes a tenth of a second or more, and thousands of
    rows make enough tuples for one every second.
    """
    usual = gc.get_threshold()
    is_frozen = count >= MANY and gc.isenabled() and gc.get_freeze_count() <= FEW
    if is_frozen:
        gc.collect()
        gc.freeze()
    if usual[0]:
        gc.set_threshold(max(usual[0], COLLECT_AFTER), *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        if is_frozen:
            gc.unfreeze()
