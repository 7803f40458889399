"""How fast sites are believed to be, and what a slow one begins near the end of a run."""

from __future__ import annotations

import pytest

from hocket.machines.leasing.entries import Expectations, WaitingTrials

LONG, SHORT = ("s", "long"), ("s", "short")


def test_a_site_that_alone_runs_a_task_does_not_look_fast_by_it() -> None:
    expected = Expectations()
    fast, slow = expected.join(), expected.join()
    for _ in range(200):
        expected.add(SHORT, 1.0, fast)
        expected.add(SHORT, 2.0, slow)
        for _ in range(5):
            expected.add(LONG, 20.0, slow)
    assert expected.relative(slow) / expected.relative(fast) == pytest.approx(2.0, rel=0.1)


def test_a_slow_site_begins_nothing_that_outlasts_the_run() -> None:
    expected = Expectations()
    average = expected.join()
    for _ in range(4):
        expected.add(LONG, 10.0, average)
        expected.add(SHORT, 1.0, average)
    tasks = [LONG, SHORT]
    assert expected.choose(tasks, 1.0, left_s=15.0) == LONG
    assert expected.choose(tasks, 2.0, left_s=25.0) == LONG
    assert expected.choose(tasks, 2.0, left_s=15.0) == SHORT
    assert expected.choose(tasks, 2.0, left_s=0.0) == SHORT


def test_what_an_episode_lasts_at_worst_grows_with_how_much_episodes_differ() -> None:
    expected = Expectations()
    average = expected.join()
    for seconds in (10.0, 10.0, 5.0, 15.0):
        expected.add(SHORT if seconds == 10.0 else LONG, seconds, average)
    assert expected.worst(SHORT) == pytest.approx(10.0, rel=0.1)
    assert expected.worst(LONG) > 20.0


def test_tasks_with_the_most_work_go_first_so_that_short_ones_are_left() -> None:
    expected = Expectations()
    average = expected.join()
    waiting = WaitingTrials(expected, in_order=False)
    for i in range(400):
        waiting.add(i, SHORT if i % 2 else LONG)
    expected.add(LONG, 10.0, average)
    expected.add(SHORT, 1.0, average)
    waiting.look(lanes=1)
    taken = [waiting.take([LONG, SHORT], 1.0) % 2 for _ in range(185)]
    assert sum(taken) <= 10
    assert len(waiting) == 215
