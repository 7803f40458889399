"""Envs that render MuJoCo's cameras themselves, and only those that somebody looks at.

Which OpenGL renders (`workers/env/gl.py`) is chosen when the first image is wanted, so that a
worker without cameras never touches OpenGL.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from hocket.core.data import Array
from hocket.errors import EnvError, ObservationError
from hocket.workers.env import gl

STATE_KEY = "observation/state"
_MAX_GEOMS = 10_000
_VIEWERS = ("glfw", "imageio")
"""What gymnasium imports for its windows, which nobody opens here: a fifth of all that it takes to
import MetaWorld, with another process that glfw asks for its version."""


@contextlib.contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class _WhenUsed(MetaPathFinder):
    """Finds viewers, and has them loaded when they are first used."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        spec: ModuleSpec | None = PathFinder.find_spec(name, path) if name in _VIEWERS else None
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


@contextlib.contextmanager
def no_gl_at_import() -> Iterator[None]:
    """Import mujoco inside this, and it loads no OpenGL: the choice stays open, and the process
    may still be forked."""
    finder = _WhenUsed()
    sys.meta_path.insert(0, finder)
    try:
        with variable("MUJOCO_GL", "disable"):
            yield
    finally:
        sys.meta_path.remove(finder)


class LookingEnv(gymnasium.Env[dict[str, Any], Array], ABC):
    """An env that draws only the cameras in use, and only where it is observed. What it begins in
    follows from the seed alone."""

    _camera_advice: ClassVar[str] = ""
    """Said where a camera is asked for that is not there."""
    _task: str
    _cameras: tuple[str, ...]
    """The observation keys of images."""
    _in_use: tuple[str, ...]

    @abstractmethod
    def _begin(self, seed: int) -> None:
        """Lay out the start that this seed means."""

    @abstractmethod
    def advance(self, action: Array) -> tuple[float, bool, bool, dict[str, Any]]:
        """Step without observing: reward, terminated, truncated, info."""

    @abstractmethod
    def observe(self) -> dict[str, Any]:
        """What is seen now: the state, and an image of each camera in use."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._begin(int(self.np_random.integers(2**31)) if seed is None else seed)
        return self.observe(), {}

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated, info = self.advance(action)
        return self.observe(), reward, terminated, truncated, info

    @property
    def camera_keys(self) -> tuple[str, ...]:
        return self._cameras

    def use_cameras(self, keys: Collection[str]) -> None:
        if missing := sorted(set(keys) - set(self._cameras)):
            raise ObservationError(
                f"{self._task} has no camera for {missing[0]!r}; it has "
                f"{', '.join(self._cameras) or 'none'}.{self._camera_advice}"
            )
        self._in_use = tuple(key for key in self._cameras if key in keys)


class CameraEnv(LookingEnv):
    """One on MuJoCo, with a state beside its cameras."""

    _simulator: ClassVar[str]
    _hidden_groups: ClassVar[tuple[int, ...]] = ()
    """Groups of geoms that no image shows."""
    _data_notes: tuple[str, ...] = ()
    _renderer: OffscreenRenderer | None = None
    _quality: str = "full"

    def __init__(self, task: str, config: Any, keys: Mapping[str, str], state_size: int) -> None:
        """`config` is a GlConfig with `size`, in pixels, and `render`, which is `full` or `fast`;
        `keys` are the observation keys of images, and the camera behind each."""
        config.prefer()
        self._task = task
        self._config = config
        self._keys = keys
        self._cameras = self._in_use = tuple(keys)
        self._state_size = state_size
        self._describe()

    def use_cameras(self, keys: Collection[str]) -> None:
        super().use_cameras(keys)
        self._describe()

    def use_quality(self, quality: str) -> None:
        if quality != self._quality:
            self._quality = quality
            self.free_renderer()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know; complete once the first image was rendered."""
        if not self._in_use:
            return ()
        fast = (
            f"--env.render fast leaves out shadows, multisampling and reflections: images differ "
            f"from {self._simulator}'s own.",
        )
        device = self._renderer.device.notes if self._renderer is not None else ()
        return (*self._data_notes, *(fast if self._config.render == "fast" else ()), *device)

    @property
    def facts(self) -> dict[str, str]:
        """What numbers depend on; the renderer is known once the first image was rendered."""
        return self._renderer.device.facts if self._renderer is not None else {}

    def free_renderer(self) -> None:
        """Free the OpenGL context: a process may have one. The next image makes another."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _picture(self, model: Any, data: Any, camera: str, *, upside_down: bool = False) -> Array:
        """What a camera of this model sees now; a reset may have compiled another one."""
        if self._renderer is not None and self._renderer.model is not model:
            self.free_renderer()
        if self._renderer is None:
            # People look at pictures without shadows, multisampling and reflections too: on a CPU
            # these cost ten times what all else does, and nothing that moves is missing without.
            self._renderer = OffscreenRenderer(
                model,
                self._config.size,
                fast=self._config.render == "fast" or self._quality == "look",
                hidden_groups=self._hidden_groups,
            )
        return self._renderer.render(data, camera, upside_down=upside_down)

    def _parts(self, state: Array, sizes: Sequence[int]) -> list[Array]:
        """Copies of the parts of a state, which have these sizes."""
        if state.shape != (sum(sizes),):
            raise EnvError(
                f"A state of {self._task} has {sum(sizes)} numbers; this has shape {state.shape}."
            )
        return np.split(np.array(state, np.float64), np.cumsum(sizes)[:-1])

    def _describe(self) -> None:
        size = self._config.size
        image = spaces.Box(0, 255, (size, size, 3), np.uint8)
        state = spaces.Box(-np.inf, np.inf, (self._state_size,), np.float64)
        keys: dict[str, spaces.Space[Any]] = {STATE_KEY: state}
        self.observation_space = spaces.Dict({**keys, **dict.fromkeys(self._in_use, image)})


class OffscreenRenderer:
    """Square images of one model, upright, HWC uint8, without the geoms of `hidden_groups`. One may
    live in a process at a time: two OpenGL contexts in one process give silently wrong images."""

    def __init__(
        self, model: Any, size: int, *, fast: bool, hidden_groups: Collection[int] = ()
    ) -> None:
        import mujoco

        self._mujoco = mujoco
        self.model = model
        self.device = gl.choose_device()
        model.vis.global_.offwidth = size
        model.vis.global_.offheight = size
        quality = model.vis.quality
        self._usual = (quality.shadowsize, quality.offsamples)
        """What the model itself says, for renderers that come after this one."""
        if fast:
            quality.shadowsize = quality.offsamples = 0
        if self.device.backend == "egl":  # one device per process, from then on
            os.environ["MUJOCO_EGL_DEVICE_ID"] = str(self.device.index)
        self._gl = importlib.import_module(f"mujoco.{self.device.backend}").GLContext(size, size)
        self._gl.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(model, _MAX_GEOMS)
        if fast:
            self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self._option = mujoco.MjvOption()
        for group in hidden_groups:
            self._option.geomgroup[group] = 0
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._viewport = mujoco.MjrRect(0, 0, size, size)
        self._pixels = np.empty((size, size, 3), np.uint8)

    def render(self, data: Any, camera: str, *, upside_down: bool = False) -> Array:
        """The scene as one camera sees it; `upside_down` says that the camera hangs so."""
        mujoco = self._mujoco
        self._camera.fixedcamid = self.model.camera(camera).id
        mujoco.mjv_updateScene(
            self.model,
            data,
            self._option,
            None,
            self._camera,
            mujoco.mjtCatBit.mjCAT_ALL,
            self._scene,
        )
        self._gl.make_current()
        mujoco.mjr_render(self._viewport, self._scene, self._context)
        mujoco.mjr_readPixels(self._pixels, None, self._viewport, self._context)
        # OpenGL counts rows from the bottom, so an upside-down camera only needs its columns
        # turned.
        turned = self._pixels[:, ::-1] if upside_down else self._pixels[::-1]
        return np.ascontiguousarray(turned)

    def close(self) -> None:
        """Free the OpenGL context."""
        self._gl.make_current()
        self._context.free()
        self._gl.free()
        quality = self.model.vis.quality
        quality.shadowsize, quality.offsamples = self._usual


def axis_angle(wxyz: Array) -> Array:
    """A rotation's axis times its angle, from 0 to 2 pi, as robosuite and OpenPI count it."""
    w = min(max(float(wxyz[0]), -1.0), 1.0)
    length = math.sqrt(1.0 - w * w)
    if math.isclose(length, 0.0):
        return np.zeros(3)
    return np.array(wxyz[1:]) * (2.0 * math.acos(w)) / length
