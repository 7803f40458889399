"""The suite `gym:<id>`: any env that gymnasium can make, such as `gym:CartPole-v1`,
`gym:gym_pusht/PushT-v0`, or `gym:package.module:Id-v0` where importing that registers the id."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from hocket.core.data import Array, SuccessRule
from hocket.core.settings import check_at_least, json_object
from hocket.core.specs import TaskInfo
from hocket.errors import ConfigError, EnvError, MissingExtraError, UnknownNameError
from hocket.workers.env import gl
from hocket.workers.suites import find_task

STATE_KEY = "observation/state"
IMAGE_KEY = "observation/image"
_PACKAGES = ("gymnasium_robotics", "shimmy", "ale_py", "minigrid", "highway_env")
"""Packages whose ids have no namespace that would name them; they are only looked for, to say how
an id of theirs is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GymConfig(gl.GlConfig):
    plain_texts: ClassVar[tuple[str, ...]] = ("prompt",)
    kwargs: str = "{}"
    """Arguments for gymnasium.make, as a JSON object: '{"g": 9.8}'."""
    render: bool = False
    """Add what the env renders (rgb_array) as `observation/image`. It is asked for a picture only
    where somebody looks."""
    prompt: str = ""
    """What to do, in words, for policies that read it; without it the env's own, where it has one
    (an attribute prompt, task_description, language_instruction, instruction or task)."""
    success_rule: SuccessRule = "first"
    """Which info["success"] (or "is_success") counts: the first, which ends the episode; one at any
    step; or only that of the final step."""
    score_key: str = ""
    """Where its info tells a score, a number from 0 to 1."""
    success_at: float | None = None
    """The least score that is a success."""
    max_steps: int | None = None
    """Steps after which an episode is truncated; the env's own limit holds besides."""

    def __post_init__(self) -> None:
        json_object("kwargs", self.kwargs)
        check_at_least(self, max_steps=1)


class Gym:
    """One env of gymnasium's registry, as a suite of one task."""

    Config: ClassVar = GymConfig
    preload: ClassVar[tuple[str, ...]] = ("gymnasium",)
    prepare_worker = staticmethod(gl.set_worker)

    def __init__(self, argument: str, config: GymConfig) -> None:
        if not argument:
            raise UnknownNameError("Say which env: gym:CartPole-v1, gym:Pendulum-v1 ...")
        self._id = argument
        self._config = config

    def tasks(self) -> tuple[TaskInfo, ...]:
        limits = [self._config.max_steps]
        # An id with a module is registered by importing that, which is the worker's to do.
        if ":" not in self._id:
            limits.append(find_spec(self._id).max_episode_steps)
        known = [limit for limit in limits if limit is not None]
        return (
            TaskInfo(
                name=self._id,
                prompt=self._config.prompt,
                max_steps=min(known, default=None),
                success_rule=self._config.success_rule,
                score_key=self._config.score_key,
                success_at=self._config.success_at,
            ),
        )

    def make(self, task: str) -> gymnasium.Env[Any, Any]:
        find_task("gym", self.tasks(), task)
        arguments = json_object("kwargs", self._config.kwargs)
        if self._config.render:
            arguments.setdefault("render_mode", "rgb_array")
        if arguments.get("render_mode") or "obs_type" in arguments:
            self._config.prefer()
            gl.choose_at_import()
        if ":" not in self._id:
            find_spec(self._id)  # imports the package that registers it
        try:
            module, _, bare = self._id.rpartition(":")
            if module:
                importlib.import_module(module)
            _refuse_rows(bare, gymnasium.spec(bare).entry_point)
            made = gymnasium.make(self._id, **arguments)
            _refuse_rows(bare, None, made)
            return RenderedEnv(made) if self._config.render else made
        except gymnasium.error.DependencyNotInstalled as exc:
            raise MissingExtraError(f"{self._id} needs what is not installed: {exc}") from exc
        except (gymnasium.error.Error, TypeError, ImportError) as exc:
            raise ConfigError(f"gymnasium cannot make {self._id}: {exc}") from exc


def _refuse_rows(name: str, entry: Any, made: Any = None) -> None:
    """Raise for an env that answers with batches, whose first axis would be taken for its own; by
    who makes it, since some need more than gymnasium.make gives them, or once it is made."""
    inner = getattr(made, "unwrapped", None)
    own = {"mani_skill": f"maniskill:{name}", "isaaclab": "isaaclab:MODULE:make"}
    maker = getattr(entry, "func", entry)
    by = getattr(maker, "__module__", str(maker)).partition(".")[0]
    use = own.get(by, "")
    if not use and not (hasattr(inner, "num_envs") and hasattr(inner, "single_action_space")):
        return
    raise ConfigError(
        f"{name} is a simulator of rows that answers with batches of tensors, not one env. Run it "
        f"as {use or 'vector:MODULE:make'}, or register it inside of a wrapper that takes the "
        "batch away, such as ManiSkill's CPUGymWrapper."
    )


def find_spec(name: str) -> Any:
    """What gymnasium's registry says of an id. A package that is called like the id's namespace is
    imported, since that is what registers its envs."""
    try:
        try:
            return gymnasium.spec(name)
        except gymnasium.error.NamespaceNotFound:
            package = name.partition("/")[0].replace("-", "_")
            if not package.isidentifier() or importlib.util.find_spec(package) is None:
                raise UnknownNameError(
                    f"gymnasium has no env {name!r}, and no package {package!r} is installed that "
                    f"would register it. If another package does: gym:PACKAGE:{name}"
                ) from None
            importlib.import_module(package)
            return gymnasium.spec(name)
    except gymnasium.error.Error as exc:
        installed = [one for one in _PACKAGES if importlib.util.find_spec(one) is not None]
        package = " or ".join(installed) or "PACKAGE"
        raise UnknownNameError(
            f"gymnasium has no env {name!r}: {exc} Where importing a package registers it, say so: "
            f"gym:{package}:{name}"
        ) from exc


class RenderedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env that observes what it renders, too, and renders only when it is observed."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        inner = env.observation_space
        known = dict(inner.spaces) if isinstance(inner, spaces.Dict) else {STATE_KEY: inner}
        if IMAGE_KEY in known or "image" in known:
            raise ConfigError("The env observes an image already; leave --env.render out.")
        self._seen, _ = env.reset(seed=0)
        image = spaces.Box(0, 255, self._image().shape, np.uint8)
        self.observation_space = spaces.Dict({**known, IMAGE_KEY: image})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._seen, info = self.env.reset(seed=seed, options=options)
        return self.observe(), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        reward, terminated, truncated, info = self.advance(action)
        return self.observe(), reward, terminated, truncated, info

    def advance(self, action: Any) -> tuple[float, bool, bool, dict[str, Any]]:
        self._seen, reward, terminated, truncated, info = self.env.step(action)
        return float(reward), terminated, truncated, info

    def observe(self) -> dict[str, Any]:
        known = self._seen if isinstance(self._seen, dict) else {STATE_KEY: self._seen}
        return {**known, IMAGE_KEY: self._image()}

    def _image(self) -> Array:
        image = self.env.render()
        if not isinstance(image, np.ndarray) or image.ndim != 3:
            raise EnvError(
                f"The env rendered a {type(image).__name__}, not an image; leave --env.render out."
            )
        return image
