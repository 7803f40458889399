"""When rows that share a step take it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hocket.stepping import OVERDUE, StepRule


def rule(step_s: float = 0.02) -> StepRule:
    made = StepRule()
    for _ in range(5):
        made.stepped(step_s)
    return made


def test_with_nothing_expected_rows_step_at_once() -> None:
    assert rule().hold_s(1, now=10.0) == 0


def test_one_straggler_is_held_for_a_full_batch_that_is_about_to_come() -> None:
    stepping = rule()
    stepping.expect(63, at=10.005)
    assert 0.004 < stepping.hold_s(1, now=10.0) < 0.006


def test_many_rows_are_not_held_for_one() -> None:
    stepping = rule()
    stepping.expect(1, at=10.005)
    assert stepping.hold_s(63, now=10.0) == 0


def test_nobody_is_held_longer_than_a_step() -> None:
    stepping = rule()
    stepping.expect(1000, at=10.021)
    assert stepping.hold_s(1, now=10.0) == 0


def test_chunks_that_are_overdue_are_awaited_no_longer() -> None:
    stepping = rule()
    stepping.expect(63, at=10.0)
    assert stepping.hold_s(1, now=10.0 + 0.9 * OVERDUE * 0.02) > 0
    assert stepping.hold_s(1, now=10.0 + 1.1 * OVERDUE * 0.02) == 0


def test_chunks_that_came_are_awaited_no_longer() -> None:
    stepping = rule()
    stepping.expect(30, at=10.004)
    stepping.expect(30, at=10.005)
    stepping.came(40)
    assert stepping.hold_s(10, now=10.0) > 0
    stepping.came(20)
    assert stepping.hold_s(1, now=10.0) == 0


@given(
    active=st.integers(1, 100),
    coming=st.lists(st.tuples(st.floats(0, 0.05), st.integers(1, 100)), max_size=5),
)
def test_holding_never_costs_the_rows_more_than_stepping(
    active: int, coming: list[tuple[float, int]]
) -> None:
    stepping = rule()
    for wait_s, rows in coming:
        stepping.expect(rows, at=wait_s)
    held_s = stepping.hold_s(active, now=0.0)
    assert 0 <= held_s < stepping.step_s
    if held_s:
        awaited = sum(rows for wait_s, rows in coming if wait_s <= held_s + 1e-12)
        assert active * held_s < awaited * (stepping.step_s - held_s)
