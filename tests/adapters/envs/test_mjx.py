"""The MJX tasks, simulated by MuJoCo's threads and by JAX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hocket
from hocket.adapters.envs.mjx import STATE_KEY, TASKS, Mjx, MjxConfig, uniform
from hocket.adapters.envs.mjx.threads import ThreadedRows
from hocket.core.data import Array
from hocket.errors import EnvError, UnknownNameError

EVERYONE = np.arange(6)


def waves(turn: int, rows: int = 6) -> Array:
    return np.sin(np.arange(rows * 3) * 1.7 + turn).reshape(rows, 3).astype(np.float32)


@pytest.fixture(params=sorted(TASKS))
def sim(request: pytest.FixtureRequest) -> Iterator[ThreadedRows]:
    made = ThreadedRows(TASKS[request.param], 6, threads=2)
    made.reset(EVERYONE, [request.param] * 6, list(range(6)))
    yield made
    made.close()


def test_the_adapter_names_its_tasks_without_a_simulator() -> None:
    assert [task.name for task in Mjx("all", MjxConfig()).tasks()] == ["reach", "push"]
    assert [task.name for task in Mjx("push", MjxConfig()).tasks()] == ["push"]
    with pytest.raises(UnknownNameError, match="Did you mean 'reach'"):
        Mjx("reech", MjxConfig())


def test_a_start_depends_on_the_seed_alone() -> None:
    for task in TASKS.values():
        qpos, goal = task.rules.start(np.arange(50))
        one, its_goal = task.rules.start(np.array([17]))
        assert (one[0] == qpos[17]).all()
        assert (its_goal[0] == goal[17]).all()
        assert len(np.unique(goal[:, 0])) == 50


def test_draws_fill_their_range_evenly() -> None:
    draws = uniform(np.arange(4000), 3, -1.0, 3.0)
    counts, _ = np.histogram(draws, bins=8, range=(-1.0, 3.0))
    assert counts.sum() == 4000
    assert counts.min() > 400


def test_a_suspended_row_is_the_same_to_the_bit_after_a_thousand_steps(sim: ThreadedRows) -> None:
    before = sim.get_rows(EVERYONE)
    active = np.ones(6, np.bool_)
    active[[1, 4]] = False
    for turn in range(1000):
        sim.step(waves(turn // 50), active)
    after = sim.get_rows(EVERYONE)
    assert (after[[1, 4]] == before[[1, 4]]).all()
    assert (after[[0, 2, 3, 5], :3] != before[[0, 2, 3, 5], :3]).any(axis=1).all()


def test_partial_resets_touch_only_their_rows(sim: ThreadedRows) -> None:
    sim.step(waves(0), np.ones(6, np.bool_))
    before = sim.get_rows(EVERYONE)
    sim.reset(np.array([3]), [sim.tasks[0]], [99])
    after = sim.get_rows(EVERYONE)
    others = [0, 1, 2, 4, 5]
    assert (after[others] == before[others]).all()
    assert (after[3] != before[3]).any()


def test_rows_go_on_from_a_snapshot_as_they_went_on_before(sim: ThreadedRows) -> None:
    for turn in range(5):
        sim.step(waves(turn), np.ones(6, np.bool_))
    state = sim.get_rows(EVERYONE)
    first = [sim.step(waves(turn), np.ones(6, np.bool_)).rewards for turn in range(5)]
    sim.set_rows(EVERYONE, state)
    again = [sim.step(waves(turn), np.ones(6, np.bool_)).rewards for turn in range(5)]
    assert (np.array(first) == np.array(again)).all()


@given(
    schedule=st.lists(st.sets(st.integers(0, 2), min_size=1), min_size=1, max_size=25),
    name=st.sampled_from(sorted(TASKS)),
)
def test_a_rows_trajectory_does_not_depend_on_others_or_on_their_number(
    schedule: list[set[int]], name: str
) -> None:
    sim, alone = ThreadedRows(TASKS[name], 3, threads=2), ThreadedRows(TASKS[name], 1, threads=1)
    try:
        sim.reset(np.arange(3), [name] * 3, [5, 6, 7])
        taken: list[Array] = []
        for turn, moving in enumerate(schedule):
            active = np.isin(np.arange(3), sorted(moving))
            actions = waves(turn, 3)
            sim.step(actions, active)
            if 1 in moving:
                taken.append(actions[[1]])
        alone.reset(np.array([0]), [name], [6])
        for action in taken:
            alone.step(action, np.ones(1, np.bool_))
        assert (alone.get_rows(np.array([0]))[0] == sim.get_rows(np.array([1]))[0]).all()
    finally:
        sim.close()
        alone.close()


def evaluate(lanes: int, **config: Any) -> hocket.Report:
    return hocket.evaluate(
        env="mjx:all",
        policy="reference-mjx",
        lanes=lanes,
        episodes=config.pop("episodes", 20),
        env_config={"backend": "c", **config},
        policy_config={"chunk_length": 8},
    )


def test_the_reference_succeeds_and_trials_are_the_same_one_by_one() -> None:
    together, alone = evaluate(16), evaluate(1)
    assert together.overall.rate is not None
    assert together.overall.rate >= 0.8
    results = [
        {e.trial.id: (e.outcome, e.steps, e.total_reward) for e in report.episodes}
        for report in (together, alone)
    ]
    assert len(results[0]) == 40
    assert results[0] == results[1]


def test_the_reference_answers_a_row_the_same_in_any_batch(sim: ThreadedRows) -> None:
    from hocket.adapters.policies.reference_mjx import push, reach

    state = sim.observe(EVERYONE)[STATE_KEY].astype(np.float64)
    plan = reach if state.shape[1] == 12 else push
    together = plan(state, 8)
    for row in range(6):
        assert (plan(state[[row]], 8)[0] == together[row]).all()


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_view_shows_what_a_row_kept_of_itself(name: str) -> None:
    rows = ThreadedRows(TASKS[name], 6, threads=2)
    rows.reset(EVERYONE, [name] * 6, list(range(6)))
    view = Mjx(name, MjxConfig()).make(name)
    first, _ = view.reset(seed=4)
    assert (first[STATE_KEY] == rows.observe(np.array([4]))[STATE_KEY][0]).all()
    for turn in range(10):
        rows.step(waves(turn), np.ones(6, np.bool_))
    state = rows.get_rows(np.array([4]))[0]
    view.set_state(state)
    assert (view.get_state() == state).all()
    assert (view.observe()[STATE_KEY] == rows.observe(np.array([4]))[STATE_KEY][0]).all()
    rows.close()
    view.close()


def test_a_view_is_an_image_only_where_a_camera_is_asked_for() -> None:
    view = Mjx("reach", MjxConfig()).make("reach")
    assert sorted(view.reset(seed=0)[0]) == [STATE_KEY]
    view.use_cameras(view.camera_keys)
    near = view.reset(seed=0)[0]["observation/image"]
    far = view.reset(seed=1)[0]["observation/image"]
    assert near.shape == (256, 256, 3)
    assert near.std() > 5
    assert (near != far).any()
    view.close()
    view.close()


def test_a_view_cannot_be_stepped() -> None:
    view = Mjx("push", MjxConfig()).make("push")
    view.reset(seed=0)
    with pytest.raises(EnvError, match="simulated as rows"):
        view.step(np.zeros(3, np.float32))
    view.close()
