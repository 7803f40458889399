"""The suite `lerobot:<type>`: what LeRobot's own evaluation runs for this `--env.type`, its EnvHub
repositories and envs of third parties among them. Importing it needs no LeRobot.

MetaWorld and LIBERO are hocket's own, laid out and started as LeRobot does, where the settings ask
for nothing else; every other env is LeRobot's object, stepped and shown as its `rollout` does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from hocket.adapters.envs.libero import STEP_LIMITS as LIBERO_LIMITS
from hocket.adapters.envs.libero import SUITES, LiberoConfig, language
from hocket.adapters.envs.libero.data import find_data
from hocket.adapters.envs.metaworld import MetaWorld, MetaWorldConfig
from hocket.adapters.policies.lerobot.folder import default_key, mend_torchvision
from hocket.core.contracts.env import LEROBOT
from hocket.core.data import Array
from hocket.core.settings import json_object
from hocket.core.specs import TaskInfo
from hocket.errors import ConfigError, EnvError, HocketError
from hocket.system.text import account
from hocket.workers.env import gl
from hocket.workers.suites import find_task

_LIMITS = {**LIBERO_LIMITS, "libero_spatial": 280}
"""LeRobot's, which differ from the published ones in one suite."""
_LIBERO_AS_OURS: Mapping[str, Any] = {
    "init_states": True,
    "hard_reset": True,
    "control_mode": "relative",
    "fps": 20,
    "camera_name": "agentview_image,robot0_eye_in_hand_image",
    "camera_name_mapping": None,
}
"""LeRobot's defaults, and what hocket's LIBERO does."""
_SIZE = 360
"""Height and width of LeRobot's LIBERO, where nobody says another."""
_ROUNDING = 1e-3
_LIBERO_NOTES = (
    "LeRobot's LIBERO draws what is open or on once more at each reset, so that where fixtures "
    "stand depends on the episodes that its process ran before: hocket's own does not.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotEnvConfig(gl.GlConfig):
    settings: str = "{}"
    """The fields of LeRobot's EnvConfig that are not as it sets them, as a JSON object:
    '{"task": "AlohaTransferCube-v0"}'."""
    first_seed: int = 0
    """The first seed of the run: LIBERO's start states are counted from it."""
    module: str = ""
    """A module that registers the type when it is imported."""
    trust_remote_code: bool = False
    """Let code of an EnvHub repository run."""
    native: bool = True
    """Run MetaWorld and LIBERO by hocket's own envs, which render only where somebody looks. False
    runs LeRobot's."""

    def __post_init__(self) -> None:
        json_object("settings", self.settings)


@dataclass(frozen=True, slots=True)
class _Task:
    info: TaskInfo
    make: Callable[[], gymnasium.Env[Any, Any]]


class LeRobotEnvs:
    """The tasks of a type of LeRobot's, each called by LeRobot's group and number: `pusht_0`."""

    Config: ClassVar = LeRobotEnvConfig

    def __init__(self, argument: str, config: LeRobotEnvConfig) -> None:
        self._type = argument
        self._config = config
        self._plain = json_object("settings", config.settings)
        self._envs: dict[str, Any] = {}
        """LeRobot's envs that were made and not given out yet."""

    @staticmethod
    def prepare_worker(index: int) -> None:
        gl.set_worker(index)
        gl.choose_at_import()

    def tasks(self) -> tuple[TaskInfo, ...]:
        return tuple(task.info for task in self._tasks.values())

    def make(self, task: str) -> gymnasium.Env[Any, Any]:
        find_task(f"lerobot:{self._type}", self.tasks(), task)
        return self._tasks[task].make()

    @cached_property
    def _tasks(self) -> dict[str, _Task]:
        plain = self._plain
        size = {plain.get("observation_height", _SIZE), plain.get("observation_width", _SIZE)}
        is_ours = len(size) == 1 and all(
            plain.get(key, usual) == usual for key, usual in _LIBERO_AS_OURS.items()
        )
        if self._config.native and self._type == "metaworld":
            return self._metaworld()
        if self._config.native and self._type == "libero" and is_ours:
            return self._libero(*size)
        self._config.prefer()
        gl.choose_at_import()
        self._envs = self._made()
        return {
            name: _Task(self._info(name, vector), partial(self._take, name))
            for name, vector in self._envs.items()
        }

    def _metaworld(self) -> dict[str, _Task]:
        package = find_spec("lerobot")
        assert package is not None  # or this adapter had been refused
        file = Path(package.origin or "").parent / "envs" / "metaworld_config.json"
        groups = json.loads(file.read_text())["DIFFICULTY_TO_TASKS"]
        own: dict[str, Any] = {"layout": "lerobot", "start_scheme": LEROBOT, "prompts": str(file)}
        config = MetaWorldConfig(**own, **self._gl)
        found = {}
        for group in _listed(self._plain.get("task")):
            for i, task in enumerate(groups.get(group, [group])):
                suite = MetaWorld(task.removeprefix("metaworld-"), config)
                (info,) = suite.tasks()
                name = f"{group}_{i}"
                found[name] = _Task(replace(info, name=name), partial(suite.make, info.name))
        return found

    @property
    def _gl(self) -> dict[str, Any]:
        return {"gl": self._config.gl, "gl_device": self._config.gl_device}

    def _libero(self, size: int) -> dict[str, _Task]:
        plain, found = self._plain, {}
        for group in _listed(plain.get("task", "libero_10")):
            if group not in SUITES:
                raise ConfigError(f"LIBERO has no suite {group!r}, but {', '.join(SUITES)}.")
            steps = plain.get("episode_length") or _LIMITS[group]
            own: dict[str, Any] = {"start_scheme": LEROBOT, "first_seed": self._config.first_seed}
            config = LiberoConfig(size=size, max_steps=steps, **own, **self._gl)
            known = dict(enumerate(SUITES[group]))
            for i in sorted(set(plain.get("task_ids") or known)):
                if i not in known:
                    raise ConfigError(f"{group} has no task {i}: it has {len(known)}.")
                task = known[i]
                info = TaskInfo(
                    name=f"{group}_{i}",
                    prompt=language(task),
                    max_steps=steps,
                    control_rate=_LIBERO_AS_OURS["fps"],
                )
                found[info.name] = _Task(info, partial(_make_libero, group, task, config))
        return found

    @cached_property
    def _settings(self) -> Any:
        """LeRobot's own configuration of the env."""
        mend_torchvision()
        import draccus
        from lerobot.envs.configs import EnvConfig
        from lerobot.utils.import_utils import register_third_party_plugins

        register_third_party_plugins()
        if self._config.module:
            importlib.import_module(self._config.module)
        return draccus.decode(EnvConfig, {**self._plain, "type": self._type})

    def _made(self) -> dict[str, Any]:
        """LeRobot's vector envs of one env each, by group and number."""
        if self._type.startswith("libero"):
            find_data()  # LIBERO itself would ask for it on the terminal
        try:
            with contextlib.redirect_stdout(sys.stderr):
                settings = self._settings
                from lerobot.envs import make_env

                trusted = self._config.trust_remote_code
                groups = make_env(settings, n_envs=1, trust_remote_code=trusted)
        except (HocketError, KeyboardInterrupt):
            raise
        except BaseException as exc:  # of a simulator that is somebody else's
            raise ConfigError(
                f"LeRobot cannot make its env {self._type!r}: {account(exc)}"
            ) from exc
        return {f"{group}_{i}": each for group in groups for i, each in groups[group].items()}

    def _info(self, name: str, vector: Any) -> TaskInfo:
        if getattr(vector, "num_envs", 1) != 1 or not hasattr(vector, "envs"):
            raise ConfigError(
                f"LeRobot's env {self._type!r} is a simulator of rows ({type(vector).__name__}), "
                f"which cannot be stepped one by one."
            )
        limit, prompt = _told(vector, "_max_episode_steps"), _told(vector, "task_description")
        return TaskInfo(
            name=name,
            prompt=str(prompt or _told(vector, "task") or ""),
            max_steps=limit,
            success_rule="any",
            control_rate=float(self._settings.fps),
        )

    def _take(self, name: str) -> LeRobotEnv:
        made = self._envs if name in self._envs else self._made()
        return LeRobotEnv(made.pop(name), self._settings, self._config.first_seed)


def _told(vector: Any, name: str) -> Any:
    """An attribute as LeRobot asks for it; None where the env has none of this name."""
    try:
        return vector.call(name)[0]
    except (AttributeError, NotImplementedError):
        return None


def _listed(names: Any) -> list[str]:
    found = [name.strip() for name in str(names or "").split(",") if name.strip()]
    if not found:
        raise ConfigError("Say which task: --env.task NAME.")
    return found


def _make_libero(group: str, task: str, config: LiberoConfig) -> gymnasium.Env[Any, Any]:
    from hocket.adapters.envs.libero.env import LiberoEnv

    return LiberoEnv(group, task, config)


class LeRobotEnv(gymnasium.Env[Any, Any]):
    """One env of LeRobot's, as its `rollout` steps and shows it: through LeRobot's own
    preprocessing and the env's processors, with pictures given back as bytes."""

    def __init__(self, vector: Any, settings: Any, first_seed: int) -> None:
        self._vector = vector
        self._env = vector.envs[0]
        self._space = vector.single_observation_space
        self._before, self._after = settings.get_env_processors()
        self._first_seed = first_seed
        self._seen: Any = None
        self.notes = _LIBERO_NOTES if hasattr(self._env.unwrapped, "init_state_id") else ()
        self.metadata = self._env.metadata
        self.action_space = self._env.action_space
        found = self._shown(gymnasium.vector.utils.create_empty_array(self._space, 1))
        self.observation_space = spaces.Dict({key: _box(array) for key, array in found.items()})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        inner = self._env.unwrapped
        if seed is not None and hasattr(inner, "init_state_id"):
            inner.init_state_id = seed - self._first_seed  # else it counts its own episodes
        self._seen, info = self._env.reset(seed=seed, options={"lerobot_new_rollout": True})
        return self.observe(), info

    def step(self, action: Array) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated, info = self.advance(action)
        return self.observe(), reward, terminated, truncated, info

    def advance(self, action: Array) -> tuple[float, bool, bool, dict[str, Any]]:
        if self._after.steps:
            import torch

            given = {"action": torch.from_numpy(np.asarray(action, np.float32))[None]}
            action = self._after(given)["action"][0].numpy()
        self._seen, reward, terminated, truncated, info = self._env.step(action)
        # As it was told: what is no outcome is refused where outcomes are read.
        told = {**info, "success": info.get("is_success", False)}
        return float(reward), bool(terminated), bool(truncated), told

    def observe(self) -> dict[str, Array]:
        rows: Any = gymnasium.vector.utils.create_empty_array(self._space, 1)
        return self._shown(gymnasium.vector.utils.concatenate(self._space, [self._seen], rows))

    def close(self) -> None:
        self._vector.close()

    def _shown(self, rows: Any) -> dict[str, Array]:
        """A batch of one observation, as policies are given it."""
        import torch
        from lerobot.envs.utils import preprocess_observation

        if isinstance(rows, np.ndarray):  # LeRobot's rollout would not take it either
            raise EnvError("The env observes no dict: give it an obs_type that does.")
        seen = self._before({**preprocess_observation(rows), "task": [""]})
        found = {}
        for key, value in seen.items():
            if not key.startswith("observation.") or not isinstance(value, torch.Tensor):
                continue
            array = value[0].numpy()
            if key.startswith("observation.image"):
                picture = np.moveaxis(array, 0, -1) * 255
                array = np.rint(picture).astype(np.uint8)
                if np.abs(picture - array).max() > _ROUNDING:
                    raise EnvError(f"{key} is no picture of bytes after the env's processors.")
            found[default_key(key)] = np.array(array)
        return found


def _box(array: Array) -> spaces.Box:
    if array.dtype == np.uint8:
        return spaces.Box(0, 255, array.shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, array.shape, np.float32)
