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
from support.delayed import Waves


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


class Misshapen(Pendulums):
    """Answers a step with what no vector env answers."""

    def __init__(self, rows: int, flaw: str) -> None:
        super().__init__(rows)
        self.flaw = flaw

    def step(self, actions: Any) -> Any:
        seen, rewards, terminated, truncated, info = super().step(actions)
        return {
            "four values": (seen, rewards, terminated, info),
            "nothing": None,
            "a list as info": (seen, rewards, terminated, truncated, [1]),
            "observations of one row": (seen[:1], rewards, terminated, truncated, info),
            "rewards of one row": (seen, rewards[:1], terminated, truncated, info),
        }[self.flaw]


def four(rows: int) -> Misshapen:
    return Misshapen(rows, "four values")


def nothing(rows: int) -> Misshapen:
    return Misshapen(rows, "nothing")


def listed(rows: int) -> Misshapen:
    return Misshapen(rows, "a list as info")


def one_seen(rows: int) -> Misshapen:
    return Misshapen(rows, "observations of one row")


def one_reward(rows: int) -> Misshapen:
    return Misshapen(rows, "rewards of one row")


@pytest.mark.parametrize("factory", [four, nothing, listed, one_seen, one_reward])
def test_rows_that_answer_a_step_wrongly_are_told_in_words(factory: Any) -> None:
    report = hocket.evaluate(
        env=f"vector:{__name__}:{factory.__name__}",
        policy="zero",
        episodes=2,
        lanes=2,
        retries=0,
        progress=False,
    )
    assert report.overall.errors == 2
    for episode in report.episodes:
        assert str(episode.error).startswith("EnvError: step() of ")


class HoldingPendulums(Pendulums):
    """Holds still by no torque."""

    def hold_actions(self, rows: Array, last: Array) -> Array:
        return np.zeros_like(last)


class Poles(SyncVectorEnv):
    """Episodes that end of themselves, each at another step."""

    def __init__(self, rows: int, autoreset_mode: AutoresetMode = AutoresetMode.DISABLED) -> None:
        makers = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=60)] * rows
        super().__init__(makers, autoreset_mode=autoreset_mode)

    def get_rows(self, rows: Array) -> Array:
        envs: list[Any] = [self.envs[row] for row in rows]
        over = [env.unwrapped.steps_beyond_terminated for env in envs]
        return np.array(
            [
                [*env.unwrapped.state, env._elapsed_steps, np.nan if past is None else past]
                for env, past in zip(envs, over, strict=True)
            ]
        )

    def set_rows(self, rows: Array, states: Array) -> None:
        for row, state in zip(rows, states, strict=True):
            env: Any = self.envs[row]
            env.unwrapped.state, env._elapsed_steps = state[:4], int(state[4])
            past = None if np.isnan(state[5]) else int(state[5])
            env.unwrapped.steps_beyond_terminated = past


class NextStepPoles(Poles):
    def __init__(self, rows: int) -> None:
        super().__init__(rows, AutoresetMode.NEXT_STEP)


class SameStepPoles(Poles):
    def __init__(self, rows: int) -> None:
        super().__init__(rows, AutoresetMode.SAME_STEP)


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


def test_rows_that_ended_let_the_others_go_on() -> None:
    ended = {}
    for lanes in (1, 6):
        report = hocket.evaluate(
            env="vector:adapters.envs.test_vector:Poles",
            policy="random",
            lanes=lanes,
            episodes=24,
            retries=0,
        )
        assert [e.error for e in report.episodes if e.error] == []
        ended[lanes] = {e.trial.id: (e.steps, e.total_reward) for e in report.episodes}
    assert len({steps for steps, _ in ended[1].values()}) > 3
    assert ended[6] == ended[1]


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP])
def test_a_suspended_row_neither_ends_nor_resets_while_others_move(mode: AutoresetMode) -> None:
    alone: Any = gymnasium.make("CartPole-v1", max_episode_steps=60)
    alone.reset(seed=7)
    falls_at = next(step for step in range(60) if alone.step(1)[2])
    sim, push = Poles(2, mode), np.ones(2, np.int64)
    envs = hocket.Suspendable(sim)
    envs.reset(seed=7)
    envs.suspend(1)
    for _ in range(falls_at):
        seen, *_ = envs.step(push)
    envs.suspend(0)
    envs.resume(1)
    for _ in range(3):  # row 0 falls in each of them, and is put back
        again, _, terminated, _, _ = envs.step(push)
        assert (again[0] == seen[0]).all()
        assert not terminated[0]
    envs.resume(0)
    envs.suspend(1)
    assert envs.step(push)[2][0]


@pytest.mark.parametrize("name", ["NextStepPoles", "SameStepPoles"])
def test_a_vector_env_that_resets_itself_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"AutoresetMode\.DISABLED"):
        Vector(f"adapters.envs.test_vector:{name}", VectorConfig()).make_rows("poles", 2)


def test_a_vector_env_without_its_states_is_refused() -> None:
    with pytest.raises(SuspensionError, match="get_rows"):
        Vector("adapters.envs.test_vector:Bare", VectorConfig()).make_rows("pendulum", 2)
    with pytest.raises(ConfigError, match="make\\(rows\\)"):
        Vector("Pendulum-v1", VectorConfig())


def test_rows_hold_still_as_their_vector_env_says() -> None:
    common = {"lanes": 2, "episodes": 2, "method": "blocking", "delay": 2}
    policy = Waves(size=1)
    with pytest.raises(ConfigError, match="does not say how it holds still"):
        hocket.evaluate(env="vector:adapters.envs.test_vector:Pendulums", policy=policy, **common)
    held = hocket.evaluate(
        env="vector:adapters.envs.test_vector:HoldingPendulums", policy=policy, **common
    )
    # Five steps of each chunk and two of holding still, in the 30 of an episode.
    assert [(e.steps, e.chunks) for e in held.episodes] == [(30, 5)] * 2
