"""A bell that any thread may ring."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from hocket.workers.waker import Bell


@pytest.fixture
def bell() -> Iterator[Bell]:
    bell = Bell()
    yield bell
    bell.close()


def is_heard(bell: Bell, timeout_s: float = 0.0) -> bool:
    poller = select.poll()
    poller.register(bell.fd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def test_a_bell_rings_until_it_is_hushed(bell: Bell) -> None:
    assert not bell.is_ringing()
    assert not is_heard(bell)
    for _ in range(3):
        bell.ring()
    assert bell.is_ringing()
    assert is_heard(bell)
    bell.hush()
    assert not bell.is_ringing()
    assert not is_heard(bell)


def test_to_hush_a_silent_bell_does_nothing(bell: Bell) -> None:
    bell.hush()
    bell.hush()
    assert not is_heard(bell)


def test_a_thread_that_waits_is_woken_by_another(bell: Bell) -> None:
    ringer = threading.Thread(target=bell.ring)
    ringer.start()
    assert is_heard(bell, timeout_s=60.0)
    ringer.join()
    assert bell.is_ringing()


def test_every_ring_of_many_threads_is_heard(bell: Bell) -> None:
    """What was put down before a ring is there for whoever hushes it."""
    threads, each = 4, 200
    put: list[int] = []
    heard = 0

    def ring() -> None:
        for number in range(each):
            put.append(number)
            bell.ring()

    ringers = [threading.Thread(target=ring) for _ in range(threads)]
    for ringer in ringers:
        ringer.start()
    while heard < threads * each:
        assert is_heard(bell, timeout_s=60.0)
        bell.hush()
        heard = len(put)
    for ringer in ringers:
        ringer.join()
    assert bell.is_ringing() == is_heard(bell)


def test_a_closed_bell_touches_no_file() -> None:
    bell = Bell()
    bell.ring()
    bell.close()
    bell.close()
    other = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        assert other == bell.fd, "The number was expected to be given again."
        bell.ring()
        bell.hush()
        with pytest.raises(BlockingIOError):
            os.eventfd_read(other)
        os.eventfd_write(other, 1)
        bell.hush()
        assert os.eventfd_read(other) == 1
    finally:
        os.close(other)


@pytest.mark.parametrize("at", range(1, 8))
def test_a_signal_may_ring_while_its_own_thread_hushes(bell: Bell, at: int) -> None:
    """As a handler that stops the engine does: it runs between any two lines."""
    lines = 0

    def ring_once(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if frame.f_code is not Bell.hush.__code__:
            return None
        if event == "line":
            lines += 1
            if lines == at:
                bell.ring()
        return ring_once

    bell.ring()
    before = sys.gettrace()
    sys.settrace(ring_once)
    try:
        bell.hush()
    finally:
        sys.settrace(before)
    # (Whoever hushes looks at everything next, so what rang meanwhile may go unheard.)
    assert is_heard(bell) or not bell.is_ringing(), "It would seem to ring for ever."
    bell.hush()
    assert not is_heard(bell)
    assert not bell.is_ringing()
