"""The one live env of a worker: made, reset, stepped and observed."""

from __future__ import annotations

import inspect
import logging
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from hocket.core.arrays import as_numpy
from hocket.core.contracts.env import (
    DeferredObservation,
    Holds,
    RendersForPeople,
    SelectsCameras,
    Snapshot,
    abilities_of,
)
from hocket.core.data import Array, Observation, Ref, Trial
from hocket.core.specs import EnvSpec, TaskInfo
from hocket.errors import EnvError, UsageError
from hocket.system.text import account
from hocket.workers.env.attempt import seed_globals
from hocket.workers.env.perturbation import Perturbation, Scene
from hocket.workers.env.simulator_model import (
    MODEL_DIGEST,
    SimulatorData,
    find_data,
    find_model,
    model_digest,
    warnings_in,
)
from hocket.workers.env.spaces import Drive, array_specs, check_observation_space, is_image
from hocket.workers.suites import Suites, find_task, told_by, with_details

if TYPE_CHECKING:
    import gymnasium


_LOG = logging.getLogger(__name__)
_NEEDED = ("reset", "step", "action_space")
Number = TypeVar("Number", bool, float)


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
        self._defers = False
        self.drive: Drive | None = None
        self._scene = Scene()
        self._digests: dict[tuple[str, str], dict[str, str]] = {}
        """What each task's simulator was before its first reset, where its env does not say."""
        self._data: SimulatorData | None = None
        """MuJoCo's data of the env, found again after each reset; None where there is none."""
        self._looks_for_data = True
        self._warned = 0
        """MuJoCo's warnings that the reset left."""
        self._first: Array | None = None
        """The state that the reset gave, where MuJoCo's cannot be seen and the env tells one."""

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
        self.task = info
        self._made = self.suites[suite].make(task)
        lacks = [name for name in _NEEDED if not hasattr(self._made, name)]
        if lacks:
            raise EnvError(
                f"The env of {task!r}, a {type(self._made).__name__}, has no "
                f"{' and no '.join(lacks)}: gymnasium's envs have reset(), step(), and say with "
                "action_space what moves them, as in gymnasium.spaces.Box(-1, 1, (7,))."
            )
        self.task = with_details(info, self._env)
        self.abilities = abilities_of(self._env)
        self._defers = "deferred" in self.abilities
        self.drive = Drive(self._env.action_space)
        check_observation_space(getattr(self._env, "observation_space", None))
        self._looks_for_data = True
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
            first = self._reset_in_scene(trial, perturbation)
        else:
            first = self._reset(trial)
        self._data = find_data(self._env) if self._looks_for_data else None
        self._looks_for_data = self._data is not None
        self._warned = warnings_in(self._data)
        self._first = self.state() if self._data is None else None
        return first

    def has_diverged(self) -> bool | None:
        """True if a number in the simulator's state is NaN or infinite that was not so after the
        reset, or MuJoCo has warned of one; None where no state is to be seen."""
        if (data := self._data) is not None:
            is_sound = np.isfinite(data.qpos).all() and np.isfinite(data.qvel).all()
            return not is_sound or warnings_in(data) > self._warned
        if (first := self._first) is None or (state := self.state()) is None:
            return None
        is_alike = state.shape == first.shape
        return bool((~np.isfinite(state) & (np.isfinite(first) if is_alike else True)).any())

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
        try:
            answer = self._env.reset(seed=trial.seed)
        except TypeError as exc:
            if _takes_seed(self._env.reset):
                raise
            raise EnvError(
                f"reset() of the env of {self.task.name!r} takes no seed, so that no trial of it "
                "could be repeated: write it as gymnasium's envs do, "
                "def reset(self, *, seed=None, options=None)."
            ) from exc
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self._misshapen("reset()", answer, "(observation, info)")
        return answer[0]

    def _misshapen(self, what: str, answer: object, wanted: str) -> EnvError:
        count = f" of {len(answer)}" if isinstance(answer, (tuple, list)) else ""
        return EnvError(
            f"{what} of the env of {self.task.name!r} gave a {type(answer).__name__}{count}; it "
            f"must return {wanted}, as gymnasium's envs do."
        )

    def step(self, action: Any) -> Turn:
        """One step; an env that can defer its observation is not observed."""
        assert self._made is not None
        assert self.drive is not None
        if self.drive.keys:
            action = self.drive.dress(action)
        observation: object = None
        if self._defers:
            answer: Any = self._made.advance(action)
            if not isinstance(answer, (tuple, list)) or len(answer) != 4:
                raise self._misshapen("advance()", answer, "(reward, terminated, truncated, info)")
            reward, terminated, truncated, info = answer
        else:
            answer = self._made.step(action)
            if not isinstance(answer, (tuple, list)) or len(answer) != 5:
                wanted = "(observation, reward, terminated, truncated, info)"
                raise self._misshapen("step()", answer, wanted)
            observation, reward, terminated, truncated, info = answer
        if not (type(terminated) is bool is type(truncated)):
            terminated = self._number("terminated", terminated, bool)
            truncated = self._number("truncated", truncated, bool)
        if type(reward) is not float:
            reward = self._number("reward", reward, float)
        if not isinstance(info, dict):
            raise EnvError(
                f"step() of the env of {self.task.name!r} gave a {type(info).__name__} as info; it "
                "must be a dict."
            )
        return Turn(reward, terminated, truncated, info, observation)

    def _number(self, name: str, value: Any, kind: Callable[[Any], Number]) -> Number:
        """What a step told, as `kind`: of a number or truth value of any library."""
        found = as_numpy(value)
        if np.ndim(found) == 0 or np.size(found) == 1:
            array = np.asarray(found)
            if array.dtype.kind in "biuf":
                return kind(array.item())
        raise EnvError(
            f"step() of the env of {self.task.name!r} gave {reprlib.repr(value)} as {name}, a "
            f"{type(value).__name__}; it must be one {'number' if kind is float else 'bool'}."
        )

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
        notes, told = told_by(self.suites[self._name[0]], self._env)
        return EnvSpec(
            task=self.task,
            action=self.drive.spec,
            observations=array_specs(arrays),
            cameras=images,
            abilities=self.abilities,
            notes=(*notes, *remarks),
            facts={**self._digests[self._name], **told},
        )

    def close(self) -> None:
        env, self._made, self._name, self._shown = self._made, None, None, None
        self.abilities = ()
        self._quality = "full"
        try:
            if callable(close := getattr(env, "close", None)):
                close()
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # noqa: BLE001 - what it did is done
            _LOG.warning("close() of the env of %r raised %s", self.task.name, account(exc))


def _takes_seed(reset: Callable[..., Any]) -> bool:
    """True where `reset(seed=0)` fits, as far as that can be known."""
    try:
        inspect.signature(reset).bind(seed=0)
    except TypeError:
        return False
    except ValueError:  # one that is not written in Python
        return True
    return True
