"""Gymnasium's vector envs as rows, a few lines around them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import hocket
from hocket.adapters.envs.vector import Vector, VectorConfig
from hocket.core.data import Array
from hocket.errors import ConfigError, SuspensionError


class Pendulums(SyncVectorEnv):
    """With its rows' states exposed: physics, and the clock of the time limit."""

    def __init__(self, rows: int) -> None:
        makers = [lambda: gymnasium.make("Pendulum-v1", max_episode_steps=30)] * rows
        super().__init__(makers, autoreset_mode=AutoresetMode.DISABLED)

    def get_rows(self, rows: Array) -> Array:
        envs: list[Any] = [self.envs[row] for row in rows]
        return np.array([[*env.unwrapped.state, env._elapsed_steps] for env in envs])

    def set_rows(self, rows: Array, states: Array) -> None:
        for row, state in zip(rows, states, strict=True):
            env: Any = self.envs[row]
            env.unwrapped.state, env._elapsed_steps = state[:2], int(state[2])


class Bare(SyncVectorEnv):
    """As gymnasium gives it."""

    def __init__(self, rows: int) -> None:
        super().__init__([lambda: gymnasium.make("Pendulum-v1")] * rows)


class Damp:
    """Brakes, and asks again after three steps."""

    def __init__(self) -> None:
        self.spec = hocket.PolicySpec(
            chunk_length=3, action_size=1, max_batch=8, batch_invariant=True
        )

    def infer(self, batch: hocket.Batch) -> hocket.Actions:
        speed = batch.arrays["observation/state"][:, 2]
        return hocket.Actions(np.repeat(-0.3 * speed[:, None, None], 3, axis=1))

    def close(self) -> None:
        """Nothing to let go of."""


def returns(lanes: int) -> dict[str, tuple[int, float]]:
    report = hocket.evaluate(
        env="vector:adapters.envs.test_vector:Pendulums", policy=Damp(), lanes=lanes, episodes=6
    )
    return {e.trial.id: (e.steps, e.total_reward) for e in report.episodes}


def test_trials_are_the_same_whatever_the_number_of_rows() -> None:
    alone = returns(1)
    assert {steps for steps, _ in alone.values()} == {30}
    assert len({total for _, total in alone.values()}) == 6
    assert returns(4) == alone


def test_rows_are_as_the_env_alone() -> None:
    env: Any = gymnasium.make("Pendulum-v1", max_episode_steps=30)
    seen, _ = env.reset(seed=2)
    total, over = 0.0, False
    while not over:
        action = np.float32(-0.3 * seen[2])
        for _ in range(3):
            seen, reward, _, over, _ = env.step(np.array([action]))
            total += reward
    suite = "vector:adapters.envs.test_vector:Pendulums"
    assert returns(4)[f"{suite}/adapters.envs.test_vector:Pendulums/2"][1] == pytest.approx(total)


def test_a_vector_env_without_its_states_is_refused() -> None:
    with pytest.raises(SuspensionError, match="get_rows"):
        Vector("adapters.envs.test_vector:Bare", VectorConfig()).make_rows("pendulum", 2)
    with pytest.raises(ConfigError, match="make\\(rows\\)"):
        Vector("Pendulum-v1", VectorConfig())
