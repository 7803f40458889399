from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hocket.core.data import Trial
from hocket.engine.trials import TrialQueue


def plan(tasks: int, seeds: int) -> list[Trial]:
    return [Trial(suite="s", task=f"t{t}", seed=k) for k in range(seeds) for t in range(tasks)]


def test_a_lane_keeps_its_task_while_trials_of_it_are_left() -> None:
    queue = TrialQueue(plan(3, 4))
    first = queue.take(0, None)
    assert first is not None
    live = ("s", first.task)
    seeds = [first.seed]
    for _ in range(3):
        trial = queue.take(0, live)
        assert trial is not None
        assert trial.task == first.task
        seeds.append(trial.seed)
    assert seeds == [0, 1, 2, 3]
    other = queue.take(0, live)
    assert other is not None
    assert other.task != first.task


def test_lanes_without_an_env_spread_over_the_tasks() -> None:
    queue = TrialQueue(plan(4, 5))
    taken = [queue.take(lane, None) for lane in range(4)]
    assert {trial.task for trial in taken if trial} == {"t0", "t1", "t2", "t3"}


def test_a_trial_given_back_is_next_in_its_task() -> None:
    queue = TrialQueue(plan(1, 3))
    trial = queue.take(0, None)
    assert trial is not None
    queue.give_back(trial)
    assert queue.take(1, None) == trial


def test_an_empty_queue_gives_none_and_takes_more_trials() -> None:
    queue = TrialQueue()
    assert queue.take(0, ("s", "t0")) is None
    queue.add(plan(1, 1))
    assert len(queue) == 1
    assert queue.take(0, None) == Trial(suite="s", task="t0", seed=0)
    assert not queue


@given(
    tasks=st.integers(1, 5),
    seeds=st.integers(1, 6),
    moves=st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=80),
)
def test_every_trial_is_handed_out_exactly_once_unless_given_back(
    tasks: int, seeds: int, moves: list[tuple[int, bool]]
) -> None:
    queue = TrialQueue(plan(tasks, seeds))
    done: list[Trial] = []
    live: dict[int, tuple[str, str]] = {}

    def take(lane: int) -> Trial | None:
        trial = queue.take(lane, live.get(lane))
        if trial is not None:
            live[lane] = (trial.suite, trial.task)
        return trial

    for lane, is_lost in moves:
        trial = take(lane)
        if trial is None:
            break
        if is_lost:
            queue.give_back(trial)
        else:
            done.append(trial)
    while (trial := take(0)) is not None:
        done.append(trial)
    assert sorted(t.id for t in done) == sorted(t.id for t in plan(tasks, seeds))
