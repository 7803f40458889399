"""What is known of rows: the ring of their steps, and who ends when, by the table."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hocket.core.contracts.batched import RowSteps
from hocket.core.specs import TaskInfo
from hocket.workers.rows.table import RowTable, StepRing

CHUNKS = st.tuples(st.integers(0, 3), st.integers(0, 9))
"""Steps that a chunk begins later, and its length."""


@given(st.lists(CHUNKS, min_size=1, max_size=40), st.integers(1, 4))
def test_every_step_has_what_was_put_there_however_the_ring_grows(
    chunks: list[tuple[int, int]], rows: int
) -> None:
    ring, waiting = StepRing(rows), chunks[::-1]
    put: dict[tuple[int, int], float] = {}
    left = np.zeros(rows, np.int64)
    tick = 0
    while waiting or (left > 0).any():
        free = np.flatnonzero(left <= 0)[: len(waiting)]
        if len(free):
            held, counts = np.array([waiting.pop() for _ in free]).T
            values = np.arange(counts.sum()) + 100.0 * tick
            left[free] = held + counts
            ring.reserve(int(left[free].max()), tick)
            ring.put(free, tick + held, counts, values)
            assert ring.take(free, tick + held, counts).tolist() == values.tolist()
            steps = [
                (row, tick + h + i)
                for row, h, c in zip(free, held, counts, strict=True)
                for i in range(c)
            ]
            put.update(zip(steps, values.tolist(), strict=True))
        for row in range(rows):
            assert (row, tick) not in put or ring[tick][row] == put[row, tick]
        tick += 1
        left -= 1


def begun(rows: int, limits: list[int]) -> RowTable:
    table = RowTable(rows)
    task = TaskInfo(name="any", prompt="")
    table.begin(np.arange(rows), [0] * rows, [task] * rows, limits, final=False)
    return table


def step_once(table: RowTable, rewards: list[float] | None = None) -> list[int]:
    """One step by which the simulator ends nothing; the rows that ended all the same."""
    moving, none = table.moving(), np.zeros(table.rows, np.bool_)
    table.tick += 1
    given = np.zeros(table.rows) if rewards is None else np.array(rewards)
    ended = table.judge(moving, RowSteps(given, none, none, None))
    if ended is None:
        return []
    table.halt(ended.rows, 5.0)
    return list(ended.rows.tolist())


def test_a_row_ends_at_its_limit_and_at_the_end_of_its_chunk() -> None:
    table = begun(3, [2, 0, 0])
    table.load(np.arange(3), [0] * 3, np.array([9, 9, 4]), 0.0)
    assert [step_once(table) for _ in range(9)] == [[], [0], [], [2], [], [], [], [], [1]]


def test_steps_are_counted_for_each_row_as_they_are_asked_for() -> None:
    counters = np.zeros(3, np.int64)
    table = RowTable(3, counters)
    task = TaskInfo(name="any", prompt="")
    table.begin(np.arange(3), [0] * 3, [task] * 3, [0] * 3, final=False)
    table.load(np.array([0, 2]), [0, 0], np.array([4, 2]), 0.0)
    assert [step_once(table, [i, i, i + 0.5]) for i in (1, 2, 3)] == [[], [2], []]
    assert table.steps.tolist() == table.done.tolist() == [3, 0, 2]
    table.publish()
    assert counters.tolist() == [3, 0, 2]
    assert table.active.tolist() == [True, False, False]
    assert table.ended.tolist() == [0.0, 0.0, 5.0]
    packed = table.packed_rewards(np.array([0, 2]))
    assert np.frombuffer(packed).tolist() == [1.0, 2.0, 3.0, 1.5, 2.5]


def test_a_new_attempt_begins_at_no_step_and_what_was_made_still_counts() -> None:
    counters = np.zeros(1, np.int64)
    table = RowTable(1, counters)
    task, row = TaskInfo(name="any", prompt=""), np.array([0])
    for attempt in range(2):
        table.begin(row, [attempt], [task], [0], final=False)
        assert table.steps.tolist() == [0]
        for chunk in range(2):
            table.load(row, [chunk], np.array([2]), 0.0)
            assert [step_once(table), step_once(table)] == [[], [0]]
            assert (table.steps.tolist(), table.done.tolist()) == ([2 * chunk + 2], [2])
    table.publish()
    assert counters.tolist() == [8]
