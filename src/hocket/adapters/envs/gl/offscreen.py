"""Renders a MuJoCo scene into arrays, on the device that `backends` chose."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from hocket.adapters.envs.gl import backends
from hocket.core.data import Array

_MAX_GEOMS = 10_000


class OffscreenRenderer:
    """Square images of one model, upright, HWC uint8, without the geoms of `hidden_groups`. One may
    live in a process at a time: two OpenGL contexts in one process give silently wrong images."""

    def __init__(
        self, model: Any, size: int, *, fast: bool, hidden_groups: Collection[int] = ()
    ) -> None:
        import mujoco

        self._mujoco = mujoco
        self._model = model
        self.device = backends.choose_device()
        model.vis.global_.offwidth = size
        model.vis.global_.offheight = size
        if fast:
            model.vis.quality.shadowsize = 0
            model.vis.quality.offsamples = 0
        self._gl = backends.make_context(self.device, size, size)
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
        self._camera.fixedcamid = self._model.camera(camera).id
        mujoco.mjv_updateScene(
            self._model,
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
        """Free the OpenGL context. Closing twice is safe."""
        if self._gl is None:
            return
        self._gl.make_current()
        self._context.free()
        self._gl.free()
        self._gl = None
