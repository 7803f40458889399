"""The one live env of a worker: made, reset, stepped and observed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.core.data import Array, ArraySpec, EnvSpec, Observation, Ref, TaskInfo, Trial
from hocket.core.plugins import did_you_mean
from hocket.errors import EnvError, UnknownNameError
from hocket.workers.attempt import seed_globals
from hocket.workers.spaces import Drive, check_observation_space, is_image
from hocket.workers.suites import open_suite


class Turn(NamedTuple):
    """What one step of an env gave; the observation, raw, only from envs that always observe."""

    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    observation: Any


class Stage:
    """Keeps at most one env alive: two GL contexts in one process give silently wrong images."""

    def __init__(self, suites: dict[str, Ref], worker: int) -> None:
        self._refs = suites
        self._worker = worker
        self._suites: dict[str, Any] = {}
        self._env: Any = None
        self._shown: tuple[str, ...] | None = None
        self.live: tuple[str, str] | None = None
        self.task = TaskInfo(name="")
        self.abilities: tuple[str, ...] = ()
        self.drive: Drive | None = None

    def tasks(self, suite: str) -> Sequence[TaskInfo]:
        """The tasks of a suite."""
        found: Sequence[TaskInfo] = self._suite(suite).tasks()
        return found

    def build(self, suite: str, task: str) -> bool:
        """Have this task's env; false where it was there already."""
        if self.live == (suite, task):
            return False
        self.close()
        infos = {info.name: info for info in self.tasks(suite)}
        if task not in infos:
            raise UnknownNameError(
                f"Suite {suite!r} has no task {task!r}.{did_you_mean(task, infos)}"
            )
        self._env = self._suite(suite).make(task)
        self.task = infos[task]
        self.abilities = _abilities(self._env)
        self.drive = Drive(self._env.action_space)
        check_observation_space(getattr(self._env, "observation_space", None))
        self.live = (suite, task)
        return True

    def reset(self, trial: Trial) -> Any:
        """The first observation of a trial, raw."""
        seed_globals(trial)
        answer = self._env.reset(seed=trial.seed)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise EnvError("reset() must return (observation, info), as gymnasium's envs do.")
        return answer[0]

    def step(self, action: Any) -> Turn:
        """One step; envs that can defer it are not observed."""
        if "deferred" in self.abilities:
            reward, terminated, truncated, info = self._env.advance(action)
            return Turn(float(reward), bool(terminated), bool(truncated), info, None)
        observation, reward, terminated, truncated, info = self._env.step(action)
        return Turn(float(reward), bool(terminated), bool(truncated), info, observation)

    def observe(self) -> Any:
        """The observation now, raw, of an env that can defer it."""
        return self._env.observe()

    def state(self) -> Array | None:
        """The simulator's state, where the env can tell it."""
        if "snapshot" not in self.abilities:
            return None
        return np.array(self._env.get_state(), np.float64)

    def restore(self, state: Array) -> None:
        """Put the simulator where `state` was taken."""
        if "snapshot" not in self.abilities:
            raise EnvError(f"The env of {self.task.name!r} cannot take its states back.")
        self._env.set_state(np.array(state))

    @property
    def cameras(self) -> tuple[str, ...]:
        """Keys of the cameras that the env can choose between; none where it always shows all."""
        return tuple(self._env.camera_keys) if "cameras" in self.abilities else ()

    def show(self, cameras: tuple[str, ...] | None) -> None:
        """Render these cameras from now on, where the env can choose; None means all it has."""
        if "cameras" not in self.abilities:
            return
        keys = self.cameras if cameras is None else cameras
        if keys != self._shown:
            self._env.use_cameras(keys)
            self._shown = keys

    def spec(self, arrays: Observation) -> EnvSpec:
        """What the env is, told by its first observation."""
        if self.drive is None or self.live is None:
            raise EnvError("The env is closed.")
        images = tuple(key for key in sorted(arrays) if is_image(arrays[key]))
        if "cameras" in self.abilities:
            images = tuple(self._env.camera_keys)
        suite = self._suites[self.live[0]]
        notes = (*getattr(suite, "notes", ()), *getattr(self._env, "notes", ()))
        return EnvSpec(
            task=self.task,
            action=self.drive.spec,
            observations={
                key: ArraySpec(shape=array.shape, dtype=array.dtype.str)
                for key, array in sorted(arrays.items())
            },
            cameras=images,
            abilities=self.abilities,
            notes=tuple(dict.fromkeys(str(note) for note in notes)),
        )

    def close(self) -> None:
        """Close the env, if there is one."""
        env, self._env, self.live, self._shown = self._env, None, None, None
        self.abilities = ()
        if env is not None:
            env.close()

    def _suite(self, name: str) -> Any:
        if name not in self._suites:
            if name not in self._refs:
                raise UnknownNameError(
                    f"This worker knows no suite {name!r}.{did_you_mean(name, self._refs)}"
                )
            self._suites[name] = open_suite(self._refs[name], self._worker)
        return self._suites[name]


def _abilities(env: Any) -> tuple[str, ...]:
    """Looked for on the class of the outermost env: old wrappers forward attributes of the env
    inside, and would be stepped around."""

    def has(*names: str) -> bool:
        return all(hasattr(type(env), name) for name in names)

    found = {
        "deferred": has("advance", "observe"),
        "snapshot": has("get_state", "set_state"),
        "cameras": has("camera_keys", "use_cameras"),
    }
    return tuple(name for name, is_there in found.items() if is_there)
