"""A waker that any thread may call."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from hocket.workers.waker import Waker


@pytest.fixture
def waker() -> Iterator[Waker]:
    waker = Waker()
    yield waker
    waker.close()


def is_heard(waker: Waker, timeout_s: float = 0.0) -> bool:
    poller = select.poll()
    poller.register(waker.fd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def test_a_call_lasts_until_it_is_cleared(waker: Waker) -> None:
    assert not waker.is_woken()
    assert not is_heard(waker)
    for _ in range(3):
        waker.wake()
    assert waker.is_woken()
    assert is_heard(waker)
    waker.clear()
    assert not waker.is_woken()
    assert not is_heard(waker)


def test_to_clear_what_nobody_called_does_nothing(waker: Waker) -> None:
    waker.clear()
    waker.clear()
    assert not is_heard(waker)


def test_a_thread_that_waits_is_woken_by_another(waker: Waker) -> None:
    caller = threading.Thread(target=waker.wake)
    caller.start()
    assert is_heard(waker, timeout_s=60.0)
    caller.join()
    assert waker.is_woken()


def test_every_call_of_many_threads_is_heard(waker: Waker) -> None:
    """What was put down before a call is there for whoever clears it."""
    threads, each = 4, 200
    put: list[int] = []
    heard = 0

    def wake() -> None:
        for number in range(each):
            put.append(number)
            waker.wake()

    callers = [threading.Thread(target=wake) for _ in range(threads)]
    for caller in callers:
        caller.start()
    while heard < threads * each:
        assert is_heard(waker, timeout_s=60.0)
        waker.clear()
        heard = len(put)
    for caller in callers:
        caller.join()
    assert waker.is_woken() == is_heard(waker)


def test_a_closed_waker_touches_no_file() -> None:
    waker = Waker()
    waker.wake()
    waker.close()
    waker.close()
    out, into = os.pipe()
    os.set_blocking(out, False)
    try:
        assert out == waker.fd, "The number was expected to be given again."
        waker.wake()
        waker.clear()
        with pytest.raises(BlockingIOError):
            os.read(out, 9)
        os.write(into, b"theirs")
        waker.clear()
        assert os.read(out, 9) == b"theirs"
    finally:
        os.close(out)
        os.close(into)


def test_more_calls_than_a_pipe_holds_are_one(waker: Waker) -> None:
    for _ in range(70_000):
        waker.wake()
    assert is_heard(waker)
    waker.clear()
    waker.clear()
    assert not is_heard(waker)


@pytest.mark.parametrize("at", range(1, 8))
def test_a_signal_may_wake_while_its_own_thread_clears(waker: Waker, at: int) -> None:
    """As a handler that stops the engine does: it runs between any two lines."""
    lines = 0

    def wake_once(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if frame.f_code is not Waker.clear.__code__:
            return None
        if event == "line":
            lines += 1
            if lines == at:
                waker.wake()
        return wake_once

    waker.wake()
    before = sys.gettrace()
    sys.settrace(wake_once)
    try:
        waker.clear()
    finally:
        sys.settrace(before)
    # (Whoever clears looks at everything next, so a call meanwhile may go unheard.)
    assert is_heard(waker) or not waker.is_woken(), "It would seem to be called for ever."
    waker.clear()
    assert not is_heard(waker)
    assert not waker.is_woken()
