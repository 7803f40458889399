"""What the user is told of an env: in words, and only where there is something to tell."""

from typing import Any

import gymnasium
import numpy as np
import pytest

import hocket
from hocket.core.events import Event, Noted, SpecLearned
from hocket.core.specs import TaskInfo
from hocket.workers.env import remarks
from hocket.workers.suites import limit_of, prompt_of


class Plain(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float64)
    max_steps: int | None = 6

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2), 0.0, False, False, {"success": False}


class Endless(Plain):
    max_steps = None


class Misspelt(Plain):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2), 0.0, False, False, {"Succes": True, "suction": 1}


class Wasteful(Plain):
    observation_space = gymnasium.spaces.Box(0, 255, (4, 4, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros((4, 4, 3), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros((4, 4, 3), np.uint8), 0.0, False, False, {"success": False}


class Ear:
    def __init__(self) -> None:
        self.heard: list[str] = []
        self.tasks: list[TaskInfo] = []

    def on(self, event: Event) -> None:
        if isinstance(event, Noted):
            self.heard.append(event.text)
        elif isinstance(event, SpecLearned):
            self.heard += event.spec.notes
            self.tasks.append(event.spec.task)

    def close(self) -> None: ...


def told_of(env: type[Any], policy: Any = "random", **settings: Any) -> Ear:
    ear = Ear()
    settings = {"lanes": 1, "episodes": 2, **settings}
    hocket.evaluate(env=env, policy=policy, readers=[ear], **settings)
    return ear


def test_nothing_is_told_of_an_env_that_says_all() -> None:
    assert told_of(Plain).heard == []


class Truncating(Endless):
    """Ends its episodes itself, which no attribute says."""

    ends_after = 40

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return np.zeros(2), 0.0, False, self.count >= self.ends_after, {"success": False}


class Lengthy(Truncating):
    ends_after = 1100


def test_an_env_without_a_limit_is_told_once_an_episode_goes_on_and_on() -> None:
    (said,) = told_of(Lengthy).heard
    assert "'Lengthy' has no step limit" in said
    assert "--max-steps" in said
    assert told_of(Truncating).heard == [], "it ends its episodes itself"
    assert told_of(Endless, max_steps=4).heard == []


def test_a_prompt_that_the_policy_reads_and_the_env_lacks_is_told() -> None:
    task = TaskInfo(name="stir", max_steps=3)
    reads = ("observation/state", "prompt")
    (said,) = remarks.of_reset(task, prompt="", reads=reads)
    assert "language_instruction" in said
    assert remarks.of_reset(task, prompt="stir the pot", reads=reads) == []


def test_an_outcome_under_a_wrong_name_is_told_once() -> None:
    (said,) = told_of(Misspelt).heard
    assert "info['Succes']" in said
    assert "info['success']" in said


def test_frames_that_nobody_looks_at_are_told() -> None:
    (said,) = told_of(Wasteful, policy="zero", policy_config={"chunk_length": 3}).heard
    assert "gives observation/image at every step, and few of them are looked at" in said
    assert told_of(Wasteful, policy="zero", policy_config={"chunk_length": 1}).heard == []


@pytest.mark.parametrize(
    "name", ["prompt", "task", "task_description", "language_instruction", "instruction"]
)
def test_a_prompt_is_read_under_the_names_that_people_use(name: str) -> None:
    env = Plain()
    setattr(env, name, "fold the towel")
    assert prompt_of(gymnasium.Wrapper(env)) == "fold the towel"
    setattr(env, name, ["fold"])
    assert prompt_of(env) == ""


def test_the_limit_of_a_wrapper_is_found() -> None:
    env = Endless()
    assert limit_of(env) is None
    assert limit_of(gymnasium.wrappers.TimeLimit(env, 12)) == 12
    assert limit_of(gymnasium.make("CartPole-v1")) == 500
