"""Disturbs what an env gives and takes, between the env and whoever looks: records hold what the
policy saw. All of it is keyed by trial, step and key, and so the same in any number of lanes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hocket.core.contracts.runtime import Factor
from hocket.core.data import Array, Observation, Trial, noise_seed
from hocket.core.specs import ActionSpec, TaskInfo
from hocket.errors import UsageError
from hocket.workers.env.spaces import is_image

if TYPE_CHECKING:
    import mujoco

_KEY = -2
"""Stands for a chunk's index in the seeds of disturbances, which no chunk has."""


class Perturbation:
    """The disturbances of one attempt."""

    def __init__(self, factors: Sequence[Factor], trial: Trial) -> None:
        self._amounts = {factor.name: factor.amount for factor in factors}
        self._prompts = [factor.prompts for factor in factors if factor.prompts is not None]
        self._seed = noise_seed(trial, _KEY)

    def observation(self, arrays: Observation, step: int) -> Observation:
        """The arrays as they are to be seen at a step; those of the env stay as they are."""
        return {key: self._seen(array, key, step) for key, array in arrays.items()}

    def require(self, arrays: Observation, prompt: str) -> None:
        """Refuse a disturbance of what is not there: it would pass for a policy that bears it."""
        lacks = {
            "image": not any(map(is_image, arrays.values())),
            "state": not any(array.dtype.kind == "f" for array in arrays.values()),
            "prompt": not prompt,
        }
        for name in self._amounts:
            kind = name.partition(":")[0]
            if lacks.get(kind, False):
                raise UsageError(
                    f"{name} disturbs nothing: the policy is given no {kind} (only "
                    f"{', '.join(sorted(arrays)) or 'nothing'})."
                )

    def prompt(self, prompt: str, task: TaskInfo) -> str:
        if "prompt:empty" in self._amounts:
            return ""
        for prompts in self._prompts:
            new = prompts.get(prompt, prompts.get(task.name))
            if new is None:
                raise UsageError(
                    f"The file of prompts has none for {prompt!r} or the task {task.name!r}."
                )
            prompt = new
        return prompt

    def action(self, action: Array, step: int, spec: ActionSpec) -> Array:
        """The action that the env executes for one that was asked for."""
        amount = self._amounts.get("action:noise")
        if amount is None:
            return action
        if spec.kind != "box":
            raise UsageError("action:noise needs actions that are numbers of a Box space.")
        noisy = action + amount * self._rng("action", step).standard_normal(np.shape(action))
        low, high = spec.low.reshape(spec.shape), spec.high.reshape(spec.shape)
        return np.clip(noisy, low, high).astype(action.dtype)

    @property
    def needs_model(self) -> bool:
        return "camera:shift" in self._amounts or "light:dim" in self._amounts

    def scene(self, model: mujoco.MjModel, scene: Scene) -> None:
        """Move the cameras and dim the lights of a MuJoCo model, from how it was made."""
        scene.restore(model)
        shift, dim = self._amounts.get("camera:shift"), self._amounts.get("light:dim")
        if shift is not None:
            way = self._rng("camera", 0).standard_normal(model.cam_pos.shape)
            model.cam_pos[:] += shift * way / np.linalg.norm(way, axis=-1, keepdims=True)
        if dim is not None:
            for light in _lights(model):
                light[:] *= 1 - dim

    def _seen(self, array: Array, key: str, step: int) -> Array:
        if is_image(array):
            return self._picture(array, key, step)
        noise = self._amounts.get("state:noise")
        if noise is None or array.dtype.kind != "f":
            return array
        drawn = noise * self._rng(key, step).standard_normal(array.shape)
        return (array + drawn).astype(array.dtype)

    def _picture(self, image: Array, key: str, step: int) -> Array:
        amounts = self._amounts
        if "image:blank" in amounts:
            return np.zeros_like(image)
        if "image:blur" in amounts:
            image = blurred(image, amounts["image:blur"])
        if "image:noise" in amounts:
            drawn = 255 * amounts["image:noise"] * self._rng(key, step).standard_normal(image.shape)
            image = np.clip(np.rint(image + drawn), 0, 255).astype(np.uint8)
        if "image:occlude" in amounts:
            image = self._occluded(image, amounts["image:occlude"], key)
        return image

    def _occluded(self, image: Array, share: float, key: str) -> Array:
        height, width = image.shape[:2]
        tall, wide = round(height * share**0.5), round(width * share**0.5)
        # One place for the whole episode, as dirt on a lens has.
        top, left = self._rng(key, -1).random(2) * (height - tall + 1, width - wide + 1)
        image = image.copy()
        image[int(top) : int(top) + tall, int(left) : int(left) + wide] = 0
        return image

    def _rng(self, key: str, step: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, zlib.crc32(key.encode()), step + 1])


class Scene:
    """How a model's cameras and lights were before anything was disturbed."""

    def __init__(self) -> None:
        self._model: mujoco.MjModel | None = None
        self._kept: list[Array] = []

    def restore(self, model: mujoco.MjModel) -> None:
        """Put a model back to how it was when it was first seen."""
        if model is not self._model:
            self._model = model
            self._kept = [np.array(part) for part in self._parts(model)]
        for part, kept in zip(self._parts(model), self._kept, strict=True):
            part[:] = kept

    @staticmethod
    def _parts(model: mujoco.MjModel) -> list[Array]:
        return [model.cam_pos, *_lights(model)]


def blurred(image: Array, sigma: float) -> Array:
    """A picture under a Gaussian of this standard deviation in pixels; edges are continued."""
    reach = max(1, round(3 * sigma))
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weights = (weights / weights.sum()).astype(np.float32)
    found = image.astype(np.float32)
    for axis in (0, 1):
        size = found.shape[axis]
        pad = [(reach, reach) if one == axis else (0, 0) for one in range(found.ndim)]
        padded = np.pad(found, pad, mode="edge")
        found = sum(
            weight * np.take(padded, range(at, at + size), axis)
            for at, weight in enumerate(weights)
        )
    return np.rint(found).astype(np.uint8)


def _lights(model: mujoco.MjModel) -> list[Array]:
    head = model.vis.headlight
    lights = [model.light_diffuse, model.light_ambient, model.light_specular]
    return [*lights, head.diffuse, head.ambient, head.specular]
