"""What works on this machine, and the exact command for what does not."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from hocket import rooms
from hocket.core import plugins
from hocket.core.contracts.runtime import Examined, Usability
from hocket.records import provenance
from hocket.system import machine
from hocket.system.venvs import build, vulkan
from hocket.workers.env import gl
from hocket.workers.shm import create_block

State = Literal["ok", "missing", "slow"]

FRAME_SCRIPT = """
import json, os, sys, time
backend, index = sys.argv[1:]
os.environ["MUJOCO_GL"] = backend
os.environ["MUJOCO_EGL_DEVICE_ID"] = index
if backend == "osmesa":
    os.environ["PYOPENGL_PLATFORM"] = "osmesa"
import mujoco
model = mujoco.MjModel.from_xml_string(
    "<mujoco><visual><global offwidth='224' offheight='224'/></visual><worldbody>"
    "<light pos='0 0 3'/><geom type='plane' size='1 1 .1'/><geom type='sphere' size='.3'/>"
    "</worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 224, 224) as renderer:
    times = []
    for _ in range(6):
        start = time.perf_counter()
        renderer.update_scene(data)
        image = renderer.render()
        times.append(time.perf_counter() - start)
print(json.dumps({"ms": 1e3 * min(times[1:]), "spread": int(image.max()) - int(image.min())}))
"""


class Verdict(NamedTuple):
    """One thing that was looked at. `advice` is a command or a sentence, where it is not ok."""

    topic: str
    name: str
    state: State
    detail: str
    advice: str = ""


def examine() -> list[Verdict]:
    """Look at everything; nothing here raises."""
    return [
        *machine_findings(),
        *runtime_findings(),
        *rendering_findings(),
        *extra_findings(),
        *codec_findings(),
        *room_findings(),
    ]


def machine_findings() -> list[Verdict]:
    cores, total = machine.cores(), os.cpu_count() or 1
    gib = machine.memory_bytes() / (1 << 30)
    limited = "" if cores == total else f" of {total} (affinity or control group)"
    python = f"{platform.python_version()} ({sys.executable})"
    return [
        Verdict("machine", "python", "ok", python),
        Verdict("machine", "cpu", "ok", provenance.hardware()["cpu"]),
        Verdict("machine", "cores", "ok", f"{cores}{limited}"),
        Verdict("machine", "memory", "ok", f"{gib:.1f} GiB"),
        _shared_memory(),
    ]


def runtime_findings() -> list[Verdict]:
    """Every runtime that has a name: whether it works here, why not, and what helps. One that
    cannot be asked is told by what became of asking it."""
    found = []
    for name in plugins.names("runtimes"):
        try:
            build: object = plugins.find("runtimes", name).build
            if isinstance(build, Examined):
                answer = build.examine()
            else:
                answer = Usability(is_usable=True, detail=(build.__doc__ or "").partition("\n")[0])
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything
            answer = Usability(is_usable=False, detail=f"{type(error).__name__}: {error}")
        state: State = "ok" if answer.is_usable else "missing"
        detail = " ".join(answer.detail.split())
        found.append(Verdict("runtimes", name, state, detail, answer.advice))
    return found


def rendering_findings() -> list[Verdict]:
    """Each rendering backend with its devices, and how long a small frame (224 px) takes there."""
    found: list[Verdict] = []
    for backend in gl.BACKENDS:
        result = gl.probe(backend)
        if not result.devices:
            lines = result.reason.strip().splitlines() or ["it does not work"]
            found.append(Verdict("rendering", backend, "missing", lines[-1], gl.APT_COMMAND))
        for device in result.devices:
            detail = f"device {device.index}: {device.renderer}, {_frame_ms(device)}"
            advice = "renders on the CPU; a GPU with its driver's EGL library is far faster"
            if device.on_cpu:
                found.append(Verdict("rendering", backend, "slow", detail, advice))
            else:
                found.append(Verdict("rendering", backend, "ok", detail))
    return [*found, *map(_vulkan, (None, *sorted(build.FOLDER.glob("*/lavapipe"))))]


def _vulkan(lavapipe: Path | None) -> Verdict:
    """The Vulkan device that SAPIEN could use, of the system or of a venv in which one lies."""
    result = vulkan.probe(None if lavapipe is None else lavapipe.parent)
    name = "vulkan" if lavapipe is None else f"vulkan ({lavapipe.parent})"
    devices = "; ".join(result.devices)
    if result.reason:
        detail = f"{devices}: {result.reason}" if devices else result.reason
        advice = "hocket venv maniskill brings one that renders on the CPU"
        return Verdict("rendering", name, "missing", detail, advice)
    return Verdict("rendering", name, "slow" if "llvmpipe" in devices else "ok", devices)


def extra_findings() -> list[Verdict]:
    """The optional dependencies that built-in adapters name."""
    modules: dict[str, set[str]] = {}
    for table in plugins.builtin().values():
        for builtin in table.values():
            if builtin.extra is not None:
                modules.setdefault(builtin.extra, set()).update(builtin.modules)
    found = []
    for extra, names in sorted(modules.items()):
        missing = [name for name in sorted(names) if importlib.util.find_spec(name) is None]
        state: State = "missing" if missing else "ok"
        there = provenance.installed(names - {*missing})
        versions = ", ".join(f"{name} {there.get(name, '')}" for name in sorted(names - {*missing}))
        detail = f"no module {', '.join(missing)}" if missing else versions
        advice = plugins.install_advice(extra) if missing else ""
        found.append(Verdict("extras", extra, state, detail, advice))
    return found


def codec_findings() -> list[Verdict]:
    if importlib.util.find_spec("av") is None:
        return [Verdict("codecs", "av", "missing", "no PyAV", "pip install av")]
    av = importlib.import_module("av")
    advice = "pip install --force-reinstall --only-binary av av"
    return [
        Verdict("codecs", codec, "ok", f"PyAV {av.__version__}")
        if codec in av.codecs_available
        else Verdict("codecs", codec, "missing", "this build of PyAV lacks it", advice)
        for codec in ("libx264", "libsvtav1")
    ]


def room_findings() -> list[Verdict]:
    """The parts of hocket that were taken out."""
    advice = "pip install --force-reinstall hocket"
    return [
        Verdict("parts", room, "missing", use, advice)
        for room, use in rooms.ROOMS.items()
        if not rooms.is_here(room)
    ]


def registry() -> dict[str, Sequence[str]]:
    """The names that can be used without an import path, by kind."""
    return {kind: plugins.names(kind) for kind in plugins.builtin()}


def _frame_ms(device: gl.Device) -> str:
    """How long a frame takes, measured in a process of its own: one can use one GL backend only."""
    if importlib.util.find_spec("mujoco") is None:
        return "not timed without mujoco"
    command = [sys.executable, "-c", FRAME_SCRIPT, device.backend, str(device.index)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        answer = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        return "no frame came"
    if answer["spread"] == 0:
        return "frames come out blank"
    return f"{answer['ms']:.1f} ms a small frame"


def _shared_memory() -> Verdict:
    """Look if shared memory works as workers use it: without a mount, by file descriptor."""
    try:
        os.close(create_block("hocket-doctor", 1 << 20))
    except (OSError, AttributeError) as error:
        detail = f"none to be had ({error}); arrays go through sockets, which is slower"
        return Verdict("machine", "shared memory", "slow", detail)
    return Verdict("machine", "shared memory", "ok", "by file descriptor; /dev/shm is not needed")
