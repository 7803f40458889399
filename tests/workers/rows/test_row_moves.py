"""Rows that make a step: found in masks, and looked at no more than is needed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Array, TaskInfo
from hocket.workers.rows.moves import Moving, as_bytes
from hocket.workers.rows.table import RowTable

MASKS = st.integers(1, 40).flatmap(
    lambda rows: st.lists(
        st.lists(st.booleans(), min_size=rows, max_size=rows), min_size=4, max_size=4
    )
)


def mask(*rows: bool) -> Array:
    return np.array(rows, np.bool_)


def moving(among: Array) -> Moving:
    return Moving(among, int(among.sum()))


def steps(
    terminated: Array, truncated: Array | None = None, success: Array | None = None
) -> RowSteps:
    none = np.zeros(len(terminated), np.bool_)
    return RowSteps(
        np.zeros(len(none)), terminated, none if truncated is None else truncated, success
    )


@given(MASKS, st.sampled_from([np.bool_, np.int64, np.float32]))
def test_rows_are_found_in_a_mask_few_or_many(masks: list[list[bool]], kind: type) -> None:
    among, found = mask(*masks[0]), np.array(masks[1], kind)
    expected = np.flatnonzero(among & (found > 0)).tolist()
    rows = moving(among).find(found)
    assert (rows is None) == (not expected)
    assert rows is None or rows.tolist() == expected


@given(st.lists(MASKS.filter(lambda masks: len(masks[0]) >= 6), min_size=1, max_size=8), st.data())
def test_a_step_is_quiet_where_no_row_that_moves_is_in_it(
    drawn: list[list[list[bool]]], data: st.DataObject
) -> None:
    among = mask(*drawn[0][0][:6])
    rows = moving(among)
    is_judging: bool | None = None
    for masks in drawn:
        found = [mask(*one[:6]) for one in masks[1:]]
        if data.draw(st.booleans()):
            found = [one & ~among for one in found]
        result = steps(found[0], found[1], found[2] if data.draw(st.booleans()) else None)
        judged = result.success is not None
        is_silent = not any((one & among).any() for one in result[1:] if one is not None)
        if rows.is_quiet(result):
            assert is_silent
            assert is_judging in (None, judged), "Quiet steps in a row are judged, or not."
            assert rows.is_judging == judged
            is_judging = judged
        else:
            assert not is_silent or is_judging == (not judged)


@pytest.mark.parametrize("judges", [False, True])
def test_a_row_that_ended_is_not_looked_at_again(judges: bool) -> None:
    rows = moving(mask(True, True, True))
    ended = mask(False, True, False)
    result = steps(ended, success=ended if judges else None)
    assert not rows.is_quiet(result)
    rest = rows.without(np.array([1]))
    assert (rest.count, rest.rows.tolist()) == (2, [0, 2])
    assert rows.count == 3, "The rows that made the last step stay what they were."
    assert rest.is_quiet(result)
    assert rest.is_judging == judges
    assert not rest.is_quiet(steps(mask(True, True, False)))


def test_a_success_that_ends_nothing_is_looked_at_in_every_step() -> None:
    rows = moving(mask(True, True))
    succeeds = steps(mask(False, False), success=mask(False, True))
    assert not rows.is_quiet(succeeds)
    rest = rows.without(np.array([0]))
    assert not rest.is_quiet(succeeds)


def test_rewards_are_float64_whatever_they_were() -> None:
    for kind in (np.float64, np.float32, np.int64):
        assert np.frombuffer(as_bytes(np.array([1, -2, 3], kind))).tolist() == [1.0, -2.0, 3.0]


def begun(rows: int, limits: list[int]) -> RowTable:
    table = RowTable(rows)
    task = TaskInfo(name="any", prompt="")
    table.begin(np.arange(rows), [0] * rows, [task] * rows, limits, final=False)
    return table


def step_once(table: RowTable) -> list[int]:
    """One step by which the simulator ends nothing; the rows that ended all the same."""
    now = table.moving()
    quiet = steps(np.zeros(table.rows, np.bool_))
    finished = table.finished(now, table.judge(now, quiet))
    if finished is None:
        return []
    table.halt(finished.rows, 0.0)
    return finished.rows.tolist()


def test_a_row_at_its_limit_does_not_keep_the_others_from_quiet_steps() -> None:
    table = begun(3, [2, 0, 0])
    table.load(np.arange(3), [0] * 3, np.array([9, 9, 9]), 0.0)
    assert [step_once(table), step_once(table)] == [[], [0]]
    step_once(table)
    assert table.quiet_steps == 9 - 3 - 1


def test_steps_are_counted_for_each_row_as_they_are_asked_for() -> None:
    counters = np.zeros(3, np.int64)
    table = RowTable(3, counters)
    task = TaskInfo(name="any", prompt="")
    table.begin(np.arange(3), [0] * 3, [task] * 3, [0] * 3, final=False)
    table.load(np.array([0, 2]), [0, 0], np.array([4, 4]), 0.0)
    table.moving()
    table.passed([np.arange(3.0).tobytes(), np.ones(3).tobytes()], is_judging=True)
    table.halt(np.array([2]), 5.0)
    table.passed([np.full(3, 7.0).tobytes()], is_judging=True)
    assert counters.tolist() == [0, 0, 0]
    assert table.steps.tolist() == [3, 0, 2]
    assert table.done.tolist() == [3, 0, 2]
    assert counters.tolist() == [3, 0, 2]
    assert table.active.tolist() == [True, False, False]
    assert table.ended.tolist() == [0.0, 0.0, 5.0]
    packed = table.packed_rewards(np.array([0, 2]))
    assert np.frombuffer(packed).tolist() == [0.0, 1.0, 7.0, 2.0, 1.0]
