"""When rows that share a step take it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hocket.workers.rows.stepping import OVERDUE, Rhythm, StepRule


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


def rhythm(infer_s: float, chunk: int = 16, ends: float = 1 / 12) -> Rhythm:
    return Rhythm(execute_s=0.02 * chunk, infer_s=infer_s, step_s=0.02, ends=ends)


def test_rows_stay_together_where_nobody_could_be_inferred_in_between() -> None:
    for ends in (0.01, 0.1, 0.5):
        assert rhythm(0.2, ends=ends).keeps_together(are_together=True)
        assert rhythm(0.7, ends=ends).keeps_together(are_together=False)


def test_rows_part_where_chunks_are_long_or_episodes_short() -> None:
    assert rhythm(0.11).keeps_together(are_together=True)
    assert not rhythm(0.11, chunk=64).keeps_together(are_together=True)
    assert not rhythm(0.11, ends=0.5).keeps_together(are_together=True)


def test_rows_part_where_inferences_last_whole_steps() -> None:
    assert not rhythm(0.04).keeps_together(are_together=True)
    assert rhythm(0.045).keeps_together(are_together=True)


def test_rows_part_where_smaller_batches_make_the_cycle_shorter() -> None:
    assert not rhythm(0.7).keeps_together(are_together=True, gained_s=0.1)


def test_nothing_is_saved_where_no_episode_ends() -> None:
    assert rhythm(0.05, ends=0.0).saved_s == 0


def test_rows_neither_part_nor_meet_for_a_small_advantage() -> None:
    even = rhythm(0.05, ends=0.0)
    gained_s = even.lost_s
    assert even.keeps_together(are_together=True, gained_s=gained_s)
    assert not even.keeps_together(are_together=False, gained_s=gained_s)


@given(infer_s=st.floats(0.001, 1), spread_s=st.floats(0, 0.1), chunk=st.integers(1, 64))
def test_nobody_waits_longer_than_a_step_for_the_others(
    infer_s: float, spread_s: float, chunk: int
) -> None:
    made = Rhythm(execute_s=0.02 * chunk, infer_s=infer_s, spread_s=spread_s, step_s=0.02, ends=1.0)
    assert 0 < made.lost_s <= 1.05 * 0.02
    assert 0 <= made.saved_s <= made.execute_s / 2
