"""What exists when many lanes start is looked through once, and given back to the collector."""

from __future__ import annotations

import gc
import weakref

import pytest

from hocket.engine.garbage import FEW, MANY, gc_frozen


class Node:
    """Garbage that only a collection finds: it refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_what_was_there_is_left_alone_until_the_end() -> None:
    with gc_frozen(MANY):
        assert gc.get_freeze_count() > FEW
    assert gc.get_freeze_count() == 0


def test_garbage_from_before_is_not_kept() -> None:
    seen = weakref.ref(Node())
    with gc_frozen(MANY):
        assert seen() is None


def test_garbage_of_the_run_is_collected_as_always() -> None:
    with gc_frozen(MANY):
        seen = weakref.ref(Node())
        gc.collect()
        assert seen() is None


def test_few_lanes_change_nothing() -> None:
    before = gc.get_freeze_count()
    with gc_frozen(MANY - 1):
        assert gc.get_freeze_count() == before


def test_an_error_gives_it_back_too() -> None:
    with pytest.raises(ValueError, match="end"), gc_frozen(MANY):
        raise ValueError("end")
    assert gc.get_freeze_count() == 0


def test_what_others_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with gc_frozen(MANY):
            pass
        assert gc.get_freeze_count() == count
    finally:
        gc.unfreeze()
