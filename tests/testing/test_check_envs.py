"""Each rule of check_env and check_suite catches an env or suite that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest

from hocket.core.contracts.env import ABILITIES, abilities_of
from hocket.core.specs import TaskInfo
from hocket.errors import HocketError, UnknownNameError
from hocket.testing import (
    ConformanceError,
    ToySuite,
    check_env,
    check_suite,
    env_findings,
    suite_findings,
)

CAMERA = "observation/image"


class Sound(gymnasium.Env[Any, Any]):
    """A point that is pushed; has every ability."""

    observation_space = gymnasium.spaces.Dict(
        {
            "state": gymnasium.spaces.Box(-np.inf, np.inf, (2,)),
            "image": gymnasium.spaces.Box(0, 255, (2, 2, 3), np.uint8),
        }
    )
    action_space: Any = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def __init__(self) -> None:
        self.at = np.zeros(2)
        self.cameras: tuple[str, ...] = (CAMERA,)
        self.quality = "full"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = self.np_random.normal(size=2)
        return self.observe(), {}

    def advance(self, action: Any) -> Any:
        self.at = self.at + 0.1 * action
        return float(-np.abs(self.at).sum()), False, False, {"success": bool(self.at[0] > 1)}

    def observe(self) -> Any:
        seen: dict[str, Any] = {"state": self.at.copy()}
        if CAMERA in self.cameras:
            seen["image"] = np.full((2, 2, 3), int(abs(self.at[0]) * 50) % 256, np.uint8)
            if self.quality == "look":
                seen["image"] //= 16
        return seen

    def step(self, action: Any) -> Any:
        turn = self.advance(action)
        return (self.observe(), *turn)

    def get_state(self) -> Any:
        return self.at.copy()

    def set_state(self, state: Any) -> None:
        self.at = np.array(state)

    @property
    def camera_keys(self) -> tuple[str, ...]:
        return (CAMERA,)

    def use_cameras(self, keys: Collection[str]) -> None:
        self.cameras = tuple(keys)

    def use_quality(self, quality: str) -> None:
        self.quality = quality

    def hold_action(self, last: Any) -> Any:
        return np.zeros(2, np.float32)


class Plain(gymnasium.Env[Any, Any]):
    """No ability at all, and a number for an action."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.full(1, action, np.float32), 0.0, bool(action == 2), False, {}


class NoClose:
    reset = step = None
    action_space = None


class Undrivable(Sound):
    action_space = gymnasium.spaces.Dict(
        {"arm": gymnasium.spaces.Box(-1, 1, (2,)), "hand": gymnasium.spaces.Box(-1, 1, (1,))}
    )


class Wordy(Sound):
    observation_space = gymnasium.spaces.Text(10)  # type: ignore[assignment]


class BareReset(Sound):
    def reset(self, **arguments: Any) -> Any:
        return super().reset(**arguments)[0]


class OldStep(Sound):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


class NanReward(Sound):
    def advance(self, action: Any) -> Any:
        return (np.nan, *super().advance(action)[1:])


class NumberedEnd(Sound):
    def advance(self, action: Any) -> Any:
        reward, _, truncated, info = super().advance(action)
        return reward, None, truncated, info


class GrowingObservation(Sound):
    def observe(self) -> Any:
        seen = super().observe()
        seen["state"] = np.zeros(2 + int(abs(self.at[0]) * 10) % 2)
        return seen


class LosesKey(Sound):
    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        del observation["state"]
        return (observation, *rest)


class RatedSuccess(Sound):
    def advance(self, action: Any) -> Any:
        return (*super().advance(action)[:3], {"success": 0.3})


class RareSuccess(Sound):
    def advance(self, action: Any) -> Any:
        return (
            *super().advance(action)[:3],
            {"success": True} if int(abs(self.at[0]) * 10) % 2 else {},
        )


class JudgedAtTheEnd(Plain):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"success": 1.0} if terminated else {}


class UnjudgedEnd(Plain):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {} if terminated else {"success": False}


class Unseeded(Sound):
    def reset(self, **arguments: Any) -> Any:
        super().reset()
        self.at = np.random.default_rng().normal(size=2)
        return self.observe(), {}


class Tired(Sound):
    """Moves less with each episode."""

    episodes = 0

    def reset(self, **arguments: Any) -> Any:
        self.episodes += 1
        return super().reset(**arguments)

    def advance(self, action: Any) -> Any:
        return super().advance(action / (1 + self.episodes // 3))


class Individual(Sound):
    """Each object has a character of its own."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Individual.made += 1
        self.character = Individual.made

    def advance(self, action: Any) -> Any:
        return super().advance(action / self.character)


class HalfDeferred(Plain):
    def advance(self, action: Any) -> Any:
        return self.step(action)[1:]


class OtherAdvance(Sound):
    def step(self, action: Any) -> Any:
        return super().step(0.5 * action)


class FiveAdvance(Sound):
    def advance(self, action: Any) -> Any:
        return (*super().advance(action), None)

    def step(self, action: Any) -> Any:
        return (self.observe(), *self.advance(action)[:4])


class FlickeringObserve(Sound):
    seen = 0

    def observe(self) -> Any:
        self.seen += 1
        return {**super().observe(), "state": self.at + self.seen}

    def reset(self, **arguments: Any) -> Any:
        self.seen = 0
        return super().reset(**arguments)


class PushingObserve(Sound):
    """Looking moves it, on the next step."""

    push = 0.0

    def observe(self) -> Any:
        self.push += 0.5
        return super().observe()

    def advance(self, action: Any) -> Any:
        self.at, self.push = self.at + self.push, 0.0
        return super().advance(action)


class Float32State(Sound):
    def get_state(self) -> Any:
        return self.at.astype(np.float32)


class SharedState(Sound):
    def get_state(self) -> Any:
        return self.at

    def advance(self, action: Any) -> Any:
        self.at += 0.1 * action
        return 0.0, False, False, {}


class ForgetfulState(Sound):
    """A velocity that the state leaves out."""

    velocity = np.zeros(2)

    def reset(self, **arguments: Any) -> Any:
        self.velocity = np.zeros(2)
        return super().reset(**arguments)

    def advance(self, action: Any) -> Any:
        self.velocity = self.velocity + action
        return super().advance(self.velocity)


class DeafState(Sound):
    def set_state(self, state: Any) -> None: ...


class MisnamedCamera(Sound):
    @property
    def camera_keys(self) -> tuple[str, ...]:
        return ("observation/wrist",)


class DeafCamera(Sound):
    def use_cameras(self, keys: Collection[str]) -> None: ...


class MovingCamera(Sound):
    """Choosing cameras changes what the state says."""

    def observe(self) -> Any:
        seen = super().observe()
        return seen if "image" in seen else {**seen, "state": seen["state"] + 1}


class MovingLook(Sound):
    """Rendering for people changes what the state says."""

    def observe(self) -> Any:
        seen = super().observe()
        return seen if self.quality == "full" else {**seen, "state": seen["state"] + 1}


class LastingLook(Sound):
    """What was asked for once stays."""

    def use_quality(self, quality: str) -> None:
        self.quality = "look"


class WideHold(Sound):
    def hold_action(self, last: Any) -> Any:
        return np.zeros(7)


class FragileHold(Sound):
    def hold_action(self, last: Any) -> Any:
        return last * 0.0


class FragileClose(Sound):
    is_open = True

    def close(self) -> None:
        if not self.is_open:
            raise RuntimeError("closed already")
        self.is_open = False


BROKEN: list[tuple[Callable[[], Any], str]] = [
    (NoClose, "make() gives an env."),
    (Undrivable, "The action space can be driven."),
    (Wordy, "The observation space has fixed shapes."),
    (BareReset, "reset(seed=...) returns (observation, info)."),
    (OldStep, "step(action) returns"),
    (NanReward, "step(action) returns"),
    (NumberedEnd, "step(action) returns"),
    (GrowingObservation, "An observation keeps its keys, shapes and dtypes."),
    (LosesKey, "An observation keeps its keys, shapes and dtypes."),
    (RatedSuccess, "info['success'] is a truth value"),
    (RareSuccess, "info['success'] is a truth value"),
    (UnjudgedEnd, "info['success'] is a truth value"),
    (Unseeded, "The same seed and actions give the same episode"),
    (Tired, "An episode does not depend on the episodes before it."),
    (Individual, "A new env gives the same episode."),
    (HalfDeferred, "An ability is whole or not there."),
    (OtherAdvance, "step() is advance() and then observe()."),
    (FiveAdvance, "step() is advance() and then observe()."),
    (FlickeringObserve, "observe() is pure."),
    (PushingObserve, "observe() is pure."),
    (Float32State, "get_state() is a float64 vector"),
    (SharedState, "get_state() is a float64 vector"),
    (ForgetfulState, "set_state() brings an earlier state back."),
    (DeafState, "set_state() brings an earlier state back."),
    (MisnamedCamera, "camera_keys are keys of the observation."),
    (DeafCamera, "use_cameras() leaves out"),
    (MovingCamera, "use_cameras() leaves out"),
    (MovingLook, "use_quality() changes pictures alone"),
    (LastingLook, "use_quality() changes pictures alone"),
    (WideHold, "hold_action() gives an action"),
    (FragileHold, "hold_action() gives an action"),
    (FragileClose, "close() may be called twice."),
]


@pytest.mark.parametrize(
    "make", [Sound, Plain, JudgedAtTheEnd, lambda: gymnasium.make("CartPole-v1")]
)
def test_sound_envs_pass(make: Callable[[], Any]) -> None:
    check_env(make)


def test_the_sound_env_has_every_ability_there_is() -> None:
    assert abilities_of(Sound()) == tuple(ABILITIES)


@pytest.mark.parametrize(("make", "rule"), BROKEN)
def test_a_broken_env_is_told_which_rule_it_breaks(make: Callable[[], Any], rule: str) -> None:
    findings = env_findings(make)
    assert any(finding.rule.startswith(rule) for finding in findings), findings
    with pytest.raises(ConformanceError) as caught:
        check_env(make)
    assert rule in str(caught.value)


def test_one_fault_is_not_held_against_other_rules() -> None:
    for make in (RatedSuccess, DeafState, DeafCamera, FragileClose):
        assert len(env_findings(make)) == 1, make


def test_the_error_is_an_assertion_and_hockets_own() -> None:
    with pytest.raises(AssertionError):
        check_env(Undrivable)
    with pytest.raises(HocketError):
        check_env(Undrivable)


def test_an_env_that_raises_is_a_finding_with_its_place() -> None:
    def make() -> Any:
        raise OSError("no simulator here")

    (finding,) = env_findings(make)
    assert "OSError: no simulator here" in finding.detail
    assert "test_check_envs.py" in finding.detail


def test_checks_leave_the_callers_randomness_alone() -> None:
    np.random.seed(5)
    expected = np.random.uniform()
    np.random.seed(5)
    check_env(Sound)
    assert np.random.uniform() == expected


def test_only_one_env_is_alive_at_a_time() -> None:
    alive: set[int] = set()

    class Lone(Sound):
        def __init__(self) -> None:
            assert not alive, "two envs at once"
            super().__init__()
            alive.add(id(self))

        def close(self) -> None:
            alive.discard(id(self))

    check_env(Lone)
    assert not alive


@pytest.mark.parametrize("task", [task.name for task in ToySuite("", ToySuite.Config()).tasks()])
def test_every_toy_is_sound(task: str) -> None:
    suite = ToySuite("", ToySuite.Config())
    check_suite(suite, tasks=[task], steps=80)


class Suite:
    """One task, soundly described."""

    def __init__(self, tasks: Sequence[Any] = (TaskInfo(name="push"),)) -> None:
        self._tasks = tasks

    def tasks(self) -> Sequence[TaskInfo]:
        return self._tasks

    def make(self, task: str) -> Any:
        if task not in [each.name for each in self._tasks]:
            raise UnknownNameError(task)
        return Sound()


class CarelessSuite(Suite):
    def make(self, task: str) -> Any:
        return Sound()


class ChangingSuite(Suite):
    calls = 0

    def tasks(self) -> Sequence[TaskInfo]:
        self.calls += 1
        return [TaskInfo(name="push", prompt=str(self.calls))]


class BrokenEnvSuite(Suite):
    def make(self, task: str) -> Any:
        super().make(task)
        return Unseeded()


def test_a_sound_suite_passes() -> None:
    check_suite(Suite())


@pytest.mark.parametrize(
    ("suite", "rule"),
    [
        (Suite([]), "tasks() lists"),
        (Suite(["push"]), "tasks() lists"),
        (Suite([TaskInfo(name="push")] * 2), "tasks() lists"),
        (Suite([TaskInfo(name="push", max_steps=0)]), "tasks() lists"),
        (Suite([TaskInfo(name="push", control_rate=0.0)]), "tasks() lists"),
        (Suite([TaskInfo(name="push", success_rule="last")]), "tasks() lists"),  # type: ignore[arg-type]
        (CarelessSuite(), "make() refuses a task"),
        (ChangingSuite(), "tasks() says the same each time."),
        (BrokenEnvSuite(), "The same seed and actions"),
    ],
)
def test_a_broken_suite_is_told_which_rule_it_breaks(suite: Any, rule: str) -> None:
    findings = suite_findings(suite)
    assert any(finding.rule.startswith(rule) for finding in findings), findings
    with pytest.raises(ConformanceError):
        check_suite(suite)
