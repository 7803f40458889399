"""The same tasks under JAX: compiled once for each task, with few rows."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.adapters.envs.mjx import STATE_KEY, TASKS
from hocket.adapters.envs.mjx.threads import ThreadedRows
from hocket.core.data import Array
from support.parts import needs

pytestmark = [
    needs("jax", is_there=bool(find_spec("jax")), how="make setup"),
    pytest.mark.slow,  # to compile takes most of their time
]

ROWS = 4
_made: dict[str, Any] = {}


@pytest.fixture(params=["reach", "push"])
def sim(request: pytest.FixtureRequest) -> Any:
    """One for each task in all tests: to compile takes most of their time."""
    from hocket.adapters.envs.mjx.jax import JaxRows

    name = request.param
    if name not in _made:
        _made[name] = JaxRows(TASKS[name], ROWS)
    _made[name].reset(np.arange(ROWS), [name] * ROWS, list(range(ROWS)))
    return _made[name]


def waves(turn: int) -> Array:
    return np.sin(np.arange(ROWS * 3) * 1.7 + turn).reshape(ROWS, 3).astype(np.float32)


def test_it_moves_as_mujoco_does_to_single_precision(sim: Any) -> None:
    name = sim.tasks[0]
    other = ThreadedRows(TASKS[name], ROWS, threads=1)
    other.reset(np.arange(ROWS), [name] * ROWS, list(range(ROWS)))
    everyone = np.ones(ROWS, np.bool_)
    for turn in range(5):
        ours, theirs = sim.step(waves(turn), everyone), other.step(waves(turn), everyone)
        np.testing.assert_allclose(ours.rewards, theirs.rewards, atol=1e-4)
    seen = sim.observe(np.arange(ROWS))[STATE_KEY], other.observe(np.arange(ROWS))[STATE_KEY]
    np.testing.assert_allclose(*seen, atol=2e-3)
    other.close()


def test_a_suspended_row_is_the_same_to_the_bit_after_a_thousand_steps(sim: Any) -> None:
    before = sim.get_rows(np.arange(ROWS))
    active = np.array([True, False, True, False])
    for turn in range(1000):
        sim.step(waves(turn // 50), active)
    after = sim.get_rows(np.arange(ROWS))
    assert (after[[1, 3]] == before[[1, 3]]).all()
    assert (after[[0, 2]] != before[[0, 2]]).any(axis=1).all()


def test_a_rows_trajectory_does_not_depend_on_what_others_do(sim: Any) -> None:
    rng = np.random.default_rng(0)
    name = sim.tasks[0]
    ends = []
    for _ in range(3):
        sim.reset(np.arange(ROWS), [name] * ROWS, [3, *rng.integers(0, 1000, ROWS - 1).tolist()])
        moved = 0
        while moved < 20:
            active = rng.random(ROWS) < 0.5
            actions = rng.uniform(-1, 1, (ROWS, 3)).astype(np.float32)
            actions[0] = np.sin(moved)
            moved += bool(active[0])
            sim.step(actions, active)
        ends.append(sim.get_rows(np.array([0]))[0])
    assert (ends[0] == ends[1]).all()
    assert (ends[0] == ends[2]).all()


def test_partial_resets_touch_only_their_rows(sim: Any) -> None:
    sim.step(waves(0), np.ones(ROWS, np.bool_))
    before = sim.get_rows(np.arange(ROWS))
    sim.reset(np.array([2]), [sim.tasks[0]], [99])
    after = sim.get_rows(np.arange(ROWS))
    assert (after[[0, 1, 3]] == before[[0, 1, 3]]).all()
    assert (after[2] != before[2]).any()
    sim.set_rows(np.array([2]), before[[2]])
    assert (sim.get_rows(np.arange(ROWS)) == before).all()


@pytest.mark.slow
def test_the_reference_succeeds() -> None:
    report = hocket.evaluate(env="mjx:all", policy="reference-mjx", lanes=32, episodes=32)
    assert report.overall.rate is not None
    assert report.overall.rate >= 0.8
