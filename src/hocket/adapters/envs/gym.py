"""The suite `gym:<id>`: any env that gymnasium can make, `gym:CartPole-v1` or
`gym:package.module:Id-v0` for one that a package registers when it is imported."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from hocket.core.data import Array, TaskInfo
from hocket.errors import ConfigError, EnvError, UnknownNameError

STATE_KEY = "observation/state"
IMAGE_KEY = "observation/image"


@dataclass(frozen=True, slots=True, kw_only=True)
class GymConfig:
    kwargs: str = "{}"
    """Arguments for gymnasium.make, as a JSON object: '{"g": 9.8}'."""
    render: bool = False
    """Add what the env renders (rgb_array) as `observation/image`."""
    prompt: str = ""
    """What to do, in words, for policies that read it."""
    max_steps: int | None = None
    """Steps after which an episode is truncated; the env's own limit holds besides."""

    def __post_init__(self) -> None:
        try:
            arguments = json.loads(self.kwargs)
        except (TypeError, ValueError) as exc:
            raise ConfigError(f"kwargs is no JSON object: {self.kwargs!r} ({exc})") from exc
        if not isinstance(arguments, dict):
            raise ConfigError(f"kwargs must be a JSON object, not {self.kwargs!r}.")
        if self.max_steps is not None and self.max_steps < 1:
            raise ConfigError(f"max_steps must be at least 1, not {self.max_steps}.")


class Gym:
    """One env of gymnasium's registry, as a suite of one task."""

    Config: ClassVar = GymConfig
    preload: ClassVar[tuple[str, ...]] = ("gymnasium",)

    def __init__(self, argument: str, config: GymConfig) -> None:
        if not argument:
            raise UnknownNameError("Say which env: gym:CartPole-v1, gym:Pendulum-v1 ...")
        self._id = argument
        self._config = config

    def tasks(self) -> tuple[TaskInfo, ...]:
        # An id with a module is registered by importing that, which is the worker's to do.
        if ":" not in self._id:
            try:
                gymnasium.spec(self._id)
            except gymnasium.error.Error as exc:
                raise UnknownNameError(f"gymnasium has no env {self._id!r}: {exc}") from exc
        return (
            TaskInfo(name=self._id, prompt=self._config.prompt, max_steps=self._config.max_steps),
        )

    def make(self, task: str) -> gymnasium.Env[Any, Any]:
        if task != self._id:
            raise UnknownNameError(f"This suite has the task {self._id!r}, not {task!r}.")
        arguments = json.loads(self._config.kwargs)
        if not self._config.render:
            return gymnasium.make(self._id, **arguments)
        return RenderedEnv(gymnasium.make(self._id, render_mode="rgb_array", **arguments))


class RenderedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        inner = env.observation_space
        known = dict(inner.spaces) if isinstance(inner, spaces.Dict) else {STATE_KEY: inner}
        if IMAGE_KEY in known or "image" in known:
            raise ConfigError("The env observes an image already; leave --env.render out.")
        env.reset(seed=0)
        image = spaces.Box(0, 255, self._image().shape, np.uint8)
        self.observation_space = spaces.Dict({**known, IMAGE_KEY: image})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_image(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_image(observation), reward, terminated, truncated, info

    def _with_image(self, observation: Any) -> dict[str, Any]:
        known = observation if isinstance(observation, dict) else {STATE_KEY: observation}
        return {**known, IMAGE_KEY: self._image()}

    def _image(self) -> Array:
        image = self.env.render()
        if not isinstance(image, np.ndarray) or image.ndim != 3:
            raise EnvError(
                f"The env rendered a {type(image).__name__}, not an image; leave --env.render out."
            )
        return image
