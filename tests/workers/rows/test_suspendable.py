"""`Suspendable` around a user's own batched env."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hocket
from hocket.core.contracts.batched import HoldsRows
from hocket.core.data import Array
from hocket.errors import SuspensionError, UsageError


class Drift:
    """N points that drift even under a zero action, with clocks, limits and an automatic reset."""

    def __init__(self, rows: int = 4, limit: int = 10_000) -> None:
        self.num_envs = rows
        self.limit = limit
        self.at = np.zeros((rows, 2))
        self.clocks = np.zeros(rows, np.int64)
        self.resets = np.zeros(rows, np.int64)

    def reset(self, *, seed: int = 0) -> tuple[Array, dict[str, Any]]:
        self.at = np.random.default_rng(seed).normal(size=self.at.shape)
        self.clocks[:] = 0
        return self.at.copy(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        self.at = np.sin(self.at * 1.1 + actions + 0.3)
        self.clocks += 1
        ended = self.clocks >= self.limit
        rewards = self.at.sum(1)
        self.at[ended], self.clocks[ended] = 0.5, 0
        self.resets += ended
        never = np.zeros(self.num_envs, np.bool_)
        return self.at.copy(), rewards, never, ended, {"_ended": ended.copy()}

    def get_rows(self, rows: Array) -> Any:
        return self.at[rows].copy(), self.clocks[rows].copy(), self.resets[rows].copy()

    def set_rows(self, rows: Array, state: Any) -> None:
        self.at[rows], self.clocks[rows], self.resets[rows] = state


class Holding(Drift):
    def hold_actions(self, rows: Array, last: Array) -> Array:
        return last[rows]


def test_whether_rows_can_hold_still_is_their_simulators_to_say() -> None:
    # Looked up as Protocols are from Python 3.12 on: without what __getattr__ would find.
    assert inspect.getattr_static(hocket.Suspendable(Holding()), "hold_actions", None) is not None
    assert isinstance(hocket.Suspendable(Holding()), HoldsRows)
    assert not isinstance(hocket.Suspendable(Drift()), HoldsRows)


def actions(turn: int, rows: int = 4) -> Array:
    return np.cos(np.arange(rows * 2) + turn).reshape(rows, 2)


def test_a_suspended_row_stands_still_to_the_bit_for_a_thousand_steps() -> None:
    sim = Drift(limit=300)
    envs = hocket.Suspendable(sim)
    first, _ = envs.reset(seed=3)
    envs.suspend([1, 3])
    assert envs.suspension == "snapshot"
    for turn in range(1000):
        seen, rewards, _, truncated, info = envs.step(actions(turn))
        assert (seen[[1, 3]] == first[[1, 3]]).all()
        assert (rewards[[1, 3]] == 0).all()
        assert not truncated[[1, 3]].any()
        assert not info["_ended"][[1, 3]].any()
    assert sim.clocks[[1, 3]].tolist() == [0, 0]
    assert sim.resets.tolist() == [3, 0, 3, 0]
    assert (sim.at[[1, 3]] == first[[1, 3]]).all()


def test_without_the_wrapper_the_same_rows_drift() -> None:
    sim = Drift()
    first, _ = sim.reset(seed=3)
    sim.step(np.zeros((4, 2)))
    assert (sim.at != first).all()


@given(schedule=st.lists(st.sets(st.integers(0, 3), max_size=3), min_size=1, max_size=30))
def test_a_rows_trajectory_depends_on_its_own_actions_alone(schedule: list[set[int]]) -> None:
    sim = Drift()
    envs = hocket.Suspendable(sim)
    envs.reset(seed=5)
    taken: list[list[Array]] = [[] for _ in range(4)]
    for turn, held in enumerate(schedule):
        envs.resume(np.arange(4))
        envs.suspend(sorted(held))
        given_ = actions(turn)
        envs.step(given_)
        for row in set(range(4)) - held:
            taken[row].append(given_[row])
    for row in range(4):
        alone = Drift(1)
        alone.at = np.random.default_rng(5).normal(size=(4, 2))[[row]]
        for action in taken[row]:
            alone.step(action[None])
        assert (alone.at[0] == sim.at[row]).all()
        assert sim.clocks[row] == len(taken[row])


@pytest.mark.heavy
def test_resumed_rows_go_on_from_where_they_stand() -> None:
    torch = pytest.importorskip("torch")
    plain, sim = Drift(), Drift()
    envs = hocket.Suspendable(sim)
    plain.reset(seed=1)
    envs.reset(seed=1)
    envs.suspend(2)
    envs.step(actions(50))
    envs.resume(torch.tensor([2]))
    envs.step(actions(0))
    plain.step(actions(0))
    assert (sim.at[2] == plain.at[2]).all()


def test_rows_are_put_back_even_where_the_step_raises() -> None:
    sim = Drift()
    envs = hocket.Suspendable(sim)
    first, _ = envs.reset(seed=2)
    envs.suspend(np.array([False, True, False, False]))

    def broken(_: Array) -> None:
        sim.at += 1
        raise RuntimeError("broken")

    sim.step = broken  # type: ignore[assignment, method-assign]
    with pytest.raises(RuntimeError, match="broken"):
        envs.step(actions(0))
    assert (sim.at[1] == first[1]).all()


@pytest.mark.heavy
def test_tensors_and_dicts_of_them_stay_what_they_are() -> None:
    torch = pytest.importorskip("torch")

    class Torch(Drift):
        def reset(self, *, seed: int = 0) -> Any:
            seen, info = super().reset(seed=seed)
            return {"policy": torch.tensor(seen)}, info

        def step(self, actions: Any) -> Any:
            seen, rewards, terminated, truncated, info = super().step(actions.numpy())
            parts = (rewards, terminated, truncated)
            return {"policy": torch.tensor(seen)}, *(torch.tensor(p) for p in parts), info

    envs = hocket.Suspendable(Torch())
    first, _ = envs.reset(seed=4)
    envs.suspend(0)
    seen, rewards, *_ = envs.step(torch.tensor(actions(1)))
    assert (seen["policy"][0] == first["policy"][0]).all()
    assert (seen["policy"][1:] != first["policy"][1:]).all()
    assert rewards[0] == 0


class Reusing(Drift):
    """Answers with the one buffer that it writes into at every step."""

    def __init__(self, rows: int = 4) -> None:
        super().__init__(rows)
        self.buffer = np.zeros((rows, 2))

    def reset(self, *, seed: int = 0) -> tuple[Array, dict[str, Any]]:
        self.buffer[:] = super().reset(seed=seed)[0]
        return self.buffer, {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        seen, *rest = super().step(actions)
        self.buffer[:] = seen
        return self.buffer, *rest  # type: ignore[return-value]


def test_a_suspended_row_sees_what_it_saw_where_the_simulator_reuses_its_buffer() -> None:
    plain, reusing = hocket.Suspendable(Drift()), hocket.Suspendable(Reusing())
    plain.reset(seed=3)
    reusing.reset(seed=3)
    for turn in range(12):
        for envs in (plain, reusing):
            envs.resume(np.arange(4))
            envs.suspend([row for row in range(3) if (turn >> row) & 1])
        expected = plain.step(actions(turn))[0]
        assert (reusing.step(actions(turn))[0] == expected).all()


def test_what_a_caller_does_to_its_observations_is_not_what_rows_saw() -> None:
    envs = hocket.Suspendable(Drift())
    first, _ = envs.reset(seed=3)
    kept = first.copy()
    envs.suspend([1, 3])
    for turn in range(3):
        first *= 0.0
        first, *_ = envs.step(actions(turn))
        assert (first[[1, 3]] == kept[[1, 3]]).all()


class Partial(Drift):
    """Resets some rows, and answers with what these see; counts its steps."""

    steps = 0

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        options = kwargs.get("options") or {}
        chosen = (
            args[0] if args else kwargs.get("rows", kwargs.get("lanes", options.get("env_idx")))
        )
        rows = np.arange(self.num_envs) if chosen is None else np.atleast_1d(chosen)
        self.at[rows] = np.random.default_rng(8).normal(size=(len(rows), 2))
        return self.at[rows].copy(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        self.steps += 1
        return super().step(actions)


@pytest.mark.parametrize(
    "how", [([[2, 0]], {}), ([], {"rows": [2, 0]}), ([], {"options": {"env_idx": [2, 0]}})]
)
def test_a_reset_may_return_the_rows_that_it_names_alone(how: tuple[Any, Any]) -> None:
    args, named = how
    envs = hocket.Suspendable(Partial())
    first, _ = envs.reset()
    envs.suspend(3)
    envs.step(actions(0))
    some, _ = envs.reset(*args, **named)
    assert some.shape == (2, 2)
    envs.suspend([0, 2])
    seen, *_ = envs.step(actions(1))
    assert (seen[[2, 0]] == some).all()
    assert (seen[3] == first[3]).all()


def test_where_nobody_knows_what_a_held_row_saw_nothing_moves() -> None:
    sim = Partial()
    envs = hocket.Suspendable(sim)
    envs.suspend(1)
    with pytest.raises(UsageError, match="Reset through Suspendable"):
        envs.step(actions(0))
    assert sim.steps == 0
    envs.reset(lanes=[0, 2])
    before = sim.at.copy()
    with pytest.raises(UsageError, match="env_ids"):
        envs.step(actions(0))
    assert sim.steps == 0
    assert (sim.at == before).all()
    envs.resume(1)
    envs.step(actions(0))
    envs.suspend(1)
    envs.step(actions(1))


def test_state_functions_may_be_given() -> None:
    class Bare(Drift):
        get_rows = None  # type: ignore[assignment]
        set_rows = None  # type: ignore[assignment]

    sim = Bare()
    with pytest.raises(SuspensionError, match="cannot be suspended"):
        hocket.Suspendable(sim)
    envs = hocket.Suspendable(
        sim,
        get_rows=lambda rows: (sim.at[rows].copy(), sim.clocks[rows].copy()),
        set_rows=lambda rows, state: (
            sim.at.__setitem__(rows, state[0]),
            sim.clocks.__setitem__(rows, state[1]),
        )[0],
    )
    first, _ = envs.reset(seed=0)
    envs.suspend([0, 1, 2])
    envs.step(actions(0))
    assert (sim.at[:3] == first[:3]).all()
    assert (sim.at[3] != first[3]).all()


def test_to_step_nobody_is_an_error() -> None:
    envs = hocket.Suspendable(Drift())
    envs.reset()
    envs.suspend([0, 1, 2, 3])
    with pytest.raises(UsageError, match="All rows are suspended"):
        envs.step(actions(0))


def test_a_row_out_of_range_is_an_error() -> None:
    with pytest.raises((UsageError, IndexError)):
        hocket.Suspendable(Drift()).suspend(4)


def test_everything_else_of_the_simulator_is_reached() -> None:
    envs = hocket.Suspendable(Drift(limit=12))
    assert envs.limit == 12
    assert envs.rows == envs.num_envs == 4


class Pendulums(gymnasium.vector.SyncVectorEnv):
    """A vector env of gymnasium's with its state exposed: physics, and both clocks."""

    def get_rows(self, rows: Array) -> Array:
        envs: list[Any] = [self.envs[row] for row in rows]
        return np.array([[*env.unwrapped.state, env._elapsed_steps] for env in envs])

    def set_rows(self, rows: Array, states: Array) -> None:
        for row, state in zip(rows, states, strict=True):
            env: Any = self.envs[row]
            env.unwrapped.state, env._elapsed_steps = state[:2], int(state[2])


def test_a_vector_env_of_gymnasiums_with_state_access_is_wrapped_as_it_is() -> None:
    make = [lambda: gymnasium.make("Pendulum-v1", max_episode_steps=50) for _ in range(3)]
    mode = gymnasium.vector.AutoresetMode.DISABLED
    sim = Pendulums(make, autoreset_mode=mode)
    envs = hocket.Suspendable(sim)
    first, _ = envs.reset(seed=0)
    envs.suspend(1)
    for _ in range(40):
        seen, *_ = envs.step(np.ones((3, 1), np.float32))
    assert (seen[1] == first[1]).all()
    assert [env._elapsed_steps for env in sim.envs] == [40, 0, 40]  # type: ignore[attr-defined]
    envs.resume(1)
    alone = gymnasium.make("Pendulum-v1")
    alone.reset(seed=1)
    expected, *_ = alone.step(np.ones(1, np.float32))
    seen, *_ = envs.step(np.ones((3, 1), np.float32))
    assert (seen[1] == expected).all()
    envs.close()
