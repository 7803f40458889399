"""Waiting for clients that come straight back; no clock, no server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hocket.engine.scheduling.estimates import Latency
from hocket.serve.closed_loop import LATE, SHORT, ClosedLoop


def seconds(batch: int) -> float:
    return 0.075 + 0.0085 * batch


def learned(max_batch: int = 64) -> ClosedLoop:
    return ClosedLoop(max_batch, Latency({n: seconds(n) for n in (1, 2, 4, 8, 16, 32, 64)}))


def test_half_that_comes_straight_back_is_waited_for() -> None:
    loop = learned()
    for lane in range(16):
        loop.answered(lane, 0.01, seconds(16), now=1.0)
    until = loop.hold_until(16, now=1.0)
    assert until is not None
    assert 1.0 < until <= 1.0 + LATE * 0.01


def test_batch_leaves_once_all_have_come() -> None:
    loop = learned()
    for lane in range(3):
        loop.answered(lane, 0.01, seconds(3), now=1.0)
    for lane in range(3):
        assert loop.hold_until(lane, now=1.005) is not None or lane == 0
        loop.came(lane)
    assert loop.hold_until(3, now=1.005) is None


def test_robot_that_thinks_is_not_waited_for() -> None:
    loop = learned()
    loop.answered(0, 0.5, seconds(1), now=1.0)
    loop.answered(1, None, seconds(1), now=1.0)
    assert loop.hold_until(1, now=1.0) is None


def test_client_that_stays_away_is_given_up() -> None:
    loop = learned()
    loop.answered(0, 0.01, seconds(2), now=1.0)
    assert loop.hold_until(1, now=1.0) is not None
    assert loop.hold_until(1, now=1.0 + LATE * 0.01) is None
    assert loop.hold_until(1, now=1.001) is None, "and is not remembered"


def test_full_batch_waits_for_nobody() -> None:
    loop = learned(max_batch=8)
    loop.answered(0, 0.001, seconds(8), now=1.0)
    assert loop.hold_until(8, now=1.0) is None


def test_waiting_that_costs_more_than_a_second_batch_is_not_done() -> None:
    # No gain from batches at all.
    loop = ClosedLoop(64, Latency({size: 0.010 * size for size in (1, 2, 4)}))
    loop.answered(0, 0.002, 0.010, now=1.0)
    assert loop.hold_until(1, now=1.0) is None


@given(
    st.lists(st.floats(0.0, 1.0) | st.none(), max_size=40),
    st.integers(0, 64),
    st.floats(0.0, 2.0),
)
def test_no_hold_is_longer_than_a_share_of_the_batch(
    thinks: list[float | None], ready: int, later: float
) -> None:
    loop = learned()
    for lane, think_s in enumerate(thinks):
        loop.answered(lane, think_s, seconds(32), now=1.0)
    until = loop.hold_until(ready, now=1.0 + later)
    assert until is None or 1.0 + later < until <= 1.0 + LATE * SHORT * seconds(32)
