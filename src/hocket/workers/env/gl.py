"""How MuJoCo renders without a screen: EGL where it works, OSMesa otherwise, and on which device.

What the user set for the env, or else in MUJOCO_GL or MUJOCO_EGL_DEVICE_ID, is respected.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Literal

from hocket.errors import ConfigError, MissingExtraError

APT_COMMAND = "apt-get install -y libegl1 libosmesa6"
BACKENDS = ("egl", "osmesa")
_OFF = ("disable", "disabled", "off", "false", "0")
_ON_CPU = ("llvmpipe", "softpipe", "swrast", "swiftshader", "software")
_RENDERERS = ("mujoco", "dm_control", "robosuite")
"""Modules that look at MUJOCO_GL when they are imported; dm_control does so before mujoco is."""
_PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An OpenGL device that gave a working context."""

    backend: str
    index: int
    renderer: str
    vendor: str = ""
    version: str = ""

    @property
    def facts(self) -> dict[str, str]:
        """What pictures depend on, by name."""
        return {
            "gl_backend": self.backend,
            "gl_vendor": self.vendor,
            "gl_renderer": self.renderer,
            "gl_version": self.version,
        }

    @property
    def on_cpu(self) -> bool:
        return any(word in self.renderer.lower() for word in _ON_CPU)

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.on_cpu:
            return ()
        return (
            f"Images are rendered on the CPU ({self.backend}, {self.renderer}), which is slow. "
            f"On a machine with a GPU, check that its driver's EGL library is visible.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GlProbe:
    devices: tuple[Device, ...]
    reason: str = ""
    """Why there is no device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlConfig:
    """Settings of envs that render with OpenGL."""

    gl: Literal["auto", "egl", "osmesa"] = "auto"
    """What renders: egl on a GPU, or on the CPU where that is what it finds; osmesa on the CPU."""
    gl_device: int | None = None
    """The EGL device that all workers render with, as `hocket doctor` numbers them; otherwise they
    take turns over those of the best kind."""

    def prefer(self) -> None:
        """Have this process render so, whoever asks."""
        if self.gl != "auto":
            os.environ["MUJOCO_GL"] = self.gl
        if self.gl_device is not None:
            os.environ["MUJOCO_EGL_DEVICE_ID"] = str(self.gl_device)


_worker_index = 0


def set_worker(index: int) -> None:
    """Tell which worker this process is: workers take turns over EGL devices. Suites whose envs
    render have it called first in each worker, as `prepare_worker`."""
    global _worker_index
    _worker_index = index


@functools.cache
def probe(backend: str) -> GlProbe:
    """Try a backend in a process of its own, since a broken driver may abort the process."""
    script = Path(__file__).with_name("gl_probe.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(script), backend],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        reason = f"{backend}: no answer within {_PROBE_TIMEOUT_S:.0f} s"
        return GlProbe(devices=(), reason=reason)
    devices = tuple(
        Device(backend=backend, **json.loads(line))
        for line in done.stdout.splitlines()
        if line.startswith("{")
    )
    reason = "" if devices else done.stderr.strip() or f"{backend}: exit code {done.returncode}"
    return GlProbe(devices=devices, reason=reason)


def choose_device() -> Device:
    """The device that this process renders with.

    EGL on a GPU comes first, then EGL on the CPU, then OSMesa. Where several EGL devices are of
    the better kind, worker i takes the i-th of them, going round.
    """
    wanted = os.environ.get("MUJOCO_GL", "").lower().strip()
    if wanted in _OFF:
        raise ConfigError(
            f"MUJOCO_GL={wanted} forbids rendering, but images were asked for. Unset it, or run "
            f"without cameras."
        )
    if wanted and wanted not in BACKENDS:
        # glfw and its aliases need a display that only the user can vouch for.
        return Device(backend="glfw", index=0, renderer="display")
    tried = [probe(backend) for backend in BACKENDS if wanted in ("", backend)]
    for result in tried:
        if result.devices:
            return _turn(result.devices, _worker_index)
    reasons = "; ".join(result.reason for result in tried)
    raise MissingExtraError(
        f"Nothing renders on this machine ({reasons}). On Debian or Ubuntu run: {APT_COMMAND}"
    )


def _turn(devices: tuple[Device, ...], index: int) -> Device:
    fixed = os.environ.get("MUJOCO_EGL_DEVICE_ID")
    if fixed is not None and devices[0].backend == "egl":
        for device in devices:
            if str(device.index) == fixed.strip():
                return device
        choices = ", ".join(str(device.index) for device in devices)
        raise ConfigError(
            f"EGL device {fixed} (--env.gl-device, or MUJOCO_EGL_DEVICE_ID) does not work; these "
            f"do: {choices}"
        )
    on_gpu = tuple(device for device in devices if not device.on_cpu)
    best = on_gpu or devices
    return best[index % len(best)]


def choose_at_import() -> None:
    """Have the device chosen when this process imports MuJoCo, or now where it has. An env of
    somebody else's that renders then does so without a screen; one that never imports mujoco costs
    nothing."""
    if any(name in sys.modules for name in _RENDERERS):
        _set_device()
    elif not any(isinstance(finder, _AtImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AtImport())


class _AtImport:
    """Finds no module: it only notices that one which renders is asked for."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if name in _RENDERERS:
            sys.meta_path.remove(self)
            _set_device()
        return None


def _set_device() -> None:
    if any(os.environ.get(name) for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY")):
        return
    try:
        device = choose_device()
    except MissingExtraError:
        return  # Whoever renders will say so; whoever does not must not fail.
    os.environ["MUJOCO_GL"] = device.backend
    if device.backend == "egl":
        os.environ["MUJOCO_EGL_DEVICE_ID"] = str(device.index)
