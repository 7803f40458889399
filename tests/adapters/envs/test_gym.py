from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest

from hocket.adapters.envs.gym import Gym
from hocket.core import plugins
from hocket.core.contracts.env import abilities_of
from hocket.errors import ConfigError, UnknownNameError


def test_any_id_is_a_suite_of_one_task():
    suite = plugins.build("envs", "gym:CartPole-v1", {"prompt": "balance", "max_steps": 9})
    (task,) = suite.tasks()
    assert (task.name, task.prompt, task.max_steps) == ("CartPole-v1", "balance", 9)
    env = suite.make(task.name)
    assert env.reset(seed=0)[0].shape == (4,)
    env.close()


def test_kwargs_reach_the_env():
    env = Gym("Pendulum-v1", Gym.Config(kwargs='{"g": 1.5}')).make("Pendulum-v1")
    assert env.unwrapped.g == 1.5
    env.close()


def test_the_limit_of_a_registered_env_is_told_and_the_nearer_one_holds():
    limits = [
        Gym("CartPole-v1", Gym.Config(max_steps=limit)).tasks()[0].max_steps
        for limit in (None, 9, 9000)
    ]
    assert limits == [500, 9, 500]


def test_the_success_rule_of_an_env_is_a_setting():
    suite = plugins.build("envs", "gym:CartPole-v1", {"success_rule": "final"})
    assert suite.tasks()[0].success_rule == "final"


REGISTERS = """
import gymnasium
from gymnasium.envs.classic_control import PendulumEnv

gymnasium.register("shelf_of_envs/Swing-v0", entry_point=PendulumEnv, max_episode_steps=7)
"""


def test_the_namespace_of_an_id_names_the_package_that_registers_it(tmp_path, monkeypatch):
    (tmp_path / "shelf_of_envs.py").write_text(REGISTERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "shelf_of_envs/Swing-v0"
    try:
        assert Gym(name, Gym.Config()).tasks()[0].max_steps == 7
        Gym(name, Gym.Config()).make(name).close()
        with pytest.raises(UnknownNameError, match="Swing"):
            Gym("shelf_of_envs/Swnig-v0", Gym.Config()).tasks()
    finally:
        gymnasium.registry.pop(name, None)
        sys.modules.pop("shelf_of_envs", None)


def test_an_id_of_a_package_that_is_not_installed_is_told_with_the_package():
    with pytest.raises(UnknownNameError, match=r"no package 'gym_absent'.*gym:PACKAGE:"):
        Gym("gym_absent/Thing-v0", Gym.Config()).tasks()


def test_arguments_that_an_env_does_not_take_are_told(painted):
    suite = Gym(painted, Gym.Config(kwargs='{"colour": 3}'))
    with pytest.raises(ConfigError, match="cannot make Painted-v0"):
        suite.make(painted)


def test_a_module_before_the_id_is_imported_by_the_worker_only():
    suite = Gym("gymnasium.envs.classic_control:Pendulum-v1", Gym.Config())
    assert suite.tasks()[0].name == "gymnasium.envs.classic_control:Pendulum-v1"
    suite.make(suite.tasks()[0].name).close()


def test_an_unknown_id_is_refused_with_what_gymnasium_suggests():
    with pytest.raises(UnknownNameError, match="CartPole"):
        Gym("CartPoel-v1", Gym.Config()).tasks()
    with pytest.raises(UnknownNameError, match="which env"):
        Gym("", Gym.Config())


@pytest.mark.parametrize("kwargs", ["[1]", "{", "3"])
def test_kwargs_that_are_no_json_object_are_refused(kwargs):
    with pytest.raises(ConfigError, match="JSON object"):
        Gym.Config(kwargs=kwargs)


class Painted(gymnasium.Env):
    """Paints its step number."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None, *, nested=False):
        self.render_mode = render_mode
        self.steps = 0
        self.nested = nested
        box = gymnasium.spaces.Box(0, 9, (1,), np.float32)
        self.observation_space = gymnasium.spaces.Dict({"place": box}) if nested else box

    def _observe(self):
        state = np.array([self.steps], np.float32)
        return {"place": state} if self.nested else state

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        return self._observe(), 1.0, False, self.steps == 2, {}

    def render(self):
        return np.full((4, 6, 3), self.steps, np.uint8)


@pytest.fixture
def painted():
    gymnasium.register("Painted-v0", entry_point=Painted)
    yield "Painted-v0"
    gymnasium.registry.pop("Painted-v0")


@pytest.mark.parametrize(("nested", "key"), [(False, "observation/state"), (True, "place")])
def test_what_the_env_renders_becomes_an_image(painted, nested, key):
    kwargs = '{"nested": true}' if nested else "{}"
    env = Gym(painted, Gym.Config(render=True, kwargs=kwargs)).make(painted)
    observation, _ = env.reset(seed=0)
    assert set(observation) == {key, "observation/image"}
    assert env.observation_space.contains(observation)
    observation, *_ = env.step(1)
    assert observation["observation/image"].shape == (4, 6, 3)
    assert (observation["observation/image"] == 1).all()
    assert observation[key] == 1
    env.close()


def test_a_picture_is_drawn_only_where_somebody_looks(painted, monkeypatch):
    drawn = []
    draw = Painted.render
    monkeypatch.setattr(Painted, "render", lambda env: drawn.append(env.steps) or draw(env))
    env = Gym(painted, Gym.Config(render=True)).make(painted)
    assert abilities_of(env) == ("deferred",)
    env.reset(seed=0)
    drawn.clear()
    env.advance(1)
    assert drawn == []
    assert (env.observe()["observation/image"] == 1).all()
    assert drawn == [1]
    env.close()


class ManyRows(gymnasium.Env):  # type: ignore[type-arg]
    """As simulators of rows are registered: with batches on every side."""

    num_envs = 4
    single_action_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = observation_space = gymnasium.spaces.Box(-1, 1, (4, 2))


def test_an_env_that_answers_with_batches_is_refused_with_the_adapter_that_runs_it() -> None:
    gymnasium.register("Rows-v0", entry_point=ManyRows, disable_env_checker=True)
    gymnasium.register("Isaac-Lift-v0", entry_point="isaaclab.envs:ManagerBasedRLEnv")
    try:
        with pytest.raises(ConfigError, match="vector:MODULE:make"):
            Gym("Rows-v0", Gym.Config()).make("Rows-v0")
        with pytest.raises(ConfigError, match="isaaclab:MODULE:make"):
            Gym("Isaac-Lift-v0", Gym.Config()).make("Isaac-Lift-v0")
    finally:
        for name in ("Rows-v0", "Isaac-Lift-v0"):
            gymnasium.registry.pop(name)
