"""The one live env of a worker: made, reset, stepped and observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from hocket.core.contracts.env import (
    DeferredObservation,
    Holds,
    RendersForPeople,
    SelectsCameras,
    Snapshot,
    abilities_of,
)
from hocket.core.data import Array, EnvSpec, Observation, Ref, TaskInfo, Trial
from hocket.errors import EnvError, UsageError
from hocket.workers.env.attempt import seed_globals
from hocket.workers.env.perturbation import Perturbation, Scene
from hocket.workers.env.simulator_model import MODEL_DIGEST, find_model, model_digest
from hocket.workers.env.spaces import Drive, array_specs, check_observation_space, is_image
from hocket.workers.suites import Suites, find_task, with_details

if TYPE_CHECKING:
    import gymnasium


class Turn(NamedTuple):
    """What one step of an env gave; `observation` is raw, None where the env defers it."""

    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    observation: object


class _AbleEnv(DeferredObservation, Snapshot, SelectsCameras, RendersForPeople, Holds, Protocol):
    """gymnasium's Env with every ability; `abilities` says which of them one has."""

    @property
    def action_space(self) -> gymnasium.Space[Any]: ...

    def reset(self, *, seed: int) -> Any: ...

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]: ...

    def close(self) -> None: ...


class LiveEnv:
    """Keeps at most one env alive: two GL contexts in one process give silently wrong images."""

    def __init__(self, refs: Mapping[str, Ref], worker: int) -> None:
        self.suites = Suites(refs, worker)
        self._made: _AbleEnv | None = None
        self._name: tuple[str, str] | None = None
        """Suite and task of the env that is alive."""
        self._shown: tuple[str, ...] | None = None
        self._quality = "full"
        self.task = TaskInfo(name="")
        self.abilities: tuple[str, ...] = ()
        """Found once, when the env is built: to look for a Protocol's methods takes time."""
        self.drive: Drive | None = None
        self._scene = Scene()
        self._digests: dict[tuple[str, str], dict[str, str]] = {}
        """What each task's simulator was before its first reset, where its env does not say."""

    @property
    def _env(self) -> _AbleEnv:
        assert self._made is not None  # `build` comes first
        return self._made

    def build(self, suite: str, task: str) -> None:
        """Make this task's env, unless it is the one that is alive."""
        if self._name == (suite, task):
            return
        self.close()
        info = find_task(suite, self.suites[suite].tasks(), task)
        self._made = self.suites[suite].make(task)
        self.task = with_details(info, self._env)
        self.abilities = abilities_of(self._env)
        self.drive = Drive(self._env.action_space)
        check_observation_space(getattr(self._env, "observation_space", None))
        self._name = (suite, task)
        if self._name not in self._digests:
            is_told = MODEL_DIGEST in getattr(self._env, "facts", {})
            model = None if is_told else find_model(self._env)
            found = {} if model is None else {MODEL_DIGEST: model_digest(model)}
            self._digests[self._name] = found

    def reset(self, trial: Trial, perturbation: Perturbation | None = None) -> Any:
        """The first observation of a trial, raw; in the scene that a perturbation makes."""
        seed_globals(trial)
        if perturbation is not None and perturbation.needs_model:
            return self._reset_in_scene(trial, perturbation)
        return self._reset(trial)

    def _reset_in_scene(self, trial: Trial, perturbation: Perturbation) -> Any:
        model = find_model(self._env)
        if model is not None:
            perturbation.scene(model, self._scene)
        first = self._reset(trial)
        made = find_model(self._env)
        if made is None:
            raise UsageError(
                f"The env of {self.task.name!r} shows no MuJoCo model, whose cameras or lights "
                f"could be disturbed."
            )
        # The reset may have put the scene back, or have built another.
        perturbation.scene(made, self._scene)
        if "deferred" in self.abilities:
            return self.observe()
        return first if made is model else self._reset(trial)

    def _reset(self, trial: Trial) -> Any:
        answer = self._env.reset(seed=trial.seed)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise EnvError("reset() must return (observation, info), as gymnasium's envs do.")
        return answer[0]

    def step(self, action: Any) -> Turn:
        """One step; an env that can defer its observation is not observed."""
        assert self.drive is not None
        action = self.drive.dress(action)
        if "deferred" in self.abilities:
            reward, terminated, truncated, info = self._env.advance(action)
            return Turn(float(reward), bool(terminated), bool(truncated), info, None)
        observation, reward, terminated, truncated, info = self._env.step(action)
        return Turn(float(reward), bool(terminated), bool(truncated), info, observation)

    def hold(self, last: Array | None) -> Any:
        """The action of a step in which the robot stays where it is."""
        if "hold" not in self.abilities:
            raise EnvError(
                f"The env of {self.task.name!r} does not say what it means to hold still: it has "
                "no method hold_action(last)."
            )
        return self._env.hold_action(last)

    def observe(self) -> Any:
        """The raw observation now, from an env that can defer it."""
        return self._env.observe()

    def state(self) -> Array | None:
        if "snapshot" not in self.abilities:
            return None
        return np.array(self._env.get_state(), np.float64)

    def restore(self, state: Array) -> None:
        if "snapshot" not in self.abilities:
            raise EnvError(f"The env of {self.task.name!r} cannot take its states back.")
        self._env.set_state(np.array(state))

    @property
    def cameras(self) -> tuple[str, ...]:
        """Keys of the cameras that the env can choose between; none where it always shows all."""
        return tuple(self._env.camera_keys) if "cameras" in self.abilities else ()

    def use_cameras(self, cameras: tuple[str, ...] | None) -> None:
        """Render these cameras from now on, where the env can choose; None means all it has."""
        if "cameras" not in self.abilities:
            return
        keys = self.cameras if cameras is None else cameras
        if keys != self._shown:
            self._env.use_cameras(keys)
            self._shown = keys

    def use_quality(self, quality: str) -> None:
        """Render as policies are given pictures (`full`), or more cheaply for people (`look`),
        where the env can."""
        if "quality" in self.abilities and quality != self._quality:
            self._env.use_quality(quality)
            self._quality = quality

    def spec(self, arrays: Observation, remarks: Sequence[str] = ()) -> EnvSpec:
        """What the env is, with what the user is to be told of it."""
        assert self.drive is not None
        assert self._name is not None
        images = tuple(key for key in sorted(arrays) if is_image(arrays[key]))
        if "cameras" in self.abilities:
            images = self.cameras
        suite = self.suites[self._name[0]]
        notes = (*getattr(suite, "notes", ()), *getattr(self._env, "notes", ()), *remarks)
        told = {**getattr(suite, "facts", {}), **getattr(self._env, "facts", {})}
        return EnvSpec(
            task=self.task,
            action=self.drive.spec,
            observations=array_specs(arrays),
            cameras=images,
            abilities=self.abilities,
            notes=tuple(dict.fromkeys(str(note) for note in notes)),
            facts={**self._digests[self._name], **told},
        )

    def close(self) -> None:
        env, self._made, self._name, self._shown = self._made, None, None, None
        self.abilities = ()
        self._quality = "full"
        if env is not None:
            env.close()
