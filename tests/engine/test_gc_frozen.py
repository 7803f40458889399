"""What exists when many lanes start is looked through once, and given back to the collector."""

from __future__ import annotations

import gc
import weakref

import pytest

from hocket.engine.garbage import COLLECT_AFTER, FEW, MANY, gc_frozen


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


def test_few_lanes_freeze_nothing_and_are_collected_less_often() -> None:
    before, usual = gc.get_freeze_count(), gc.get_threshold()
    with gc_frozen(MANY - 1):
        assert gc.get_freeze_count() == before
        assert gc.get_threshold() == (COLLECT_AFTER, *usual[1:])
    assert gc.get_threshold() == usual


def test_a_collector_that_is_off_or_rarer_stays_so() -> None:
    usual = gc.get_threshold()
    try:
        for rarer in (0, 10 * COLLECT_AFTER):
            gc.set_threshold(rarer)
            with gc_frozen(1):
                assert gc.get_threshold()[0] == rarer
    finally:
        gc.set_threshold(*usual)


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
