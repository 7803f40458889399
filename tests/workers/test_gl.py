from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from hocket.adapters.envs.metaworld import MetaWorld
from hocket.errors import ConfigError, MissingExtraError
from hocket.workers.env import gl
from hocket.workers.env.gl import Device, GlProbe

GPUS = tuple(Device(backend="egl", index=i, renderer="NVIDIA H200/PCIe") for i in range(2))
CPU = Device(backend="egl", index=2, renderer="llvmpipe (LLVM 15.0.6, 256 bits)")


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in ("MUJOCO_GL", "MUJOCO_EGL_DEVICE_ID"):
        monkeypatch.delenv(name, raising=False)
    yield
    gl.set_worker(0)


def offer(monkeypatch, **devices):
    """Pretend that a machine has these devices: ours has one kind only."""
    monkeypatch.setattr(
        gl,
        "probe",
        lambda backend: GlProbe(devices=devices.get(backend, ()), reason=f"{backend}: no library"),
    )


def test_workers_take_turns_over_gpus_and_leave_the_software_device(monkeypatch):
    offer(monkeypatch, egl=(*GPUS, CPU))
    chosen = []
    for worker in range(4):
        gl.set_worker(worker)
        chosen.append(gl.choose_device().index)
    assert chosen == [0, 1, 0, 1]


def test_osmesa_is_taken_where_egl_has_no_device(monkeypatch):
    mesa = Device(backend="osmesa", index=0, renderer="llvmpipe")
    offer(monkeypatch, osmesa=(mesa,))
    assert gl.choose_device() == mesa


def test_a_machine_where_nothing_renders_is_told_the_command(monkeypatch):
    offer(monkeypatch)
    with pytest.raises(MissingExtraError, match="apt-get install -y libegl1 libosmesa6"):
        gl.choose_device()


def test_what_the_user_set_is_respected(monkeypatch):
    offer(monkeypatch, egl=(*GPUS, CPU), osmesa=(Device(backend="osmesa", index=0, renderer="x"),))
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "2")
    assert gl.choose_device() == CPU
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "7")
    with pytest.raises(ConfigError, match="these do: 0, 1, 2"):
        gl.choose_device()
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    assert gl.choose_device().backend == "osmesa"
    monkeypatch.setenv("MUJOCO_GL", "disable")
    with pytest.raises(ConfigError, match="forbids rendering"):
        gl.choose_device()


def test_settings_of_an_env_go_before_what_the_machine_would_take(monkeypatch):
    pytest.importorskip("metaworld")
    offer(monkeypatch, egl=(*GPUS, CPU), osmesa=(Device(backend="osmesa", index=0, renderer="x"),))
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "0")
    MetaWorld("push", MetaWorld.Config(gl_device=1)).make("push-v3")
    assert gl.choose_device() == GPUS[1]
    MetaWorld("push", MetaWorld.Config(gl="osmesa")).make("push-v3")
    assert gl.choose_device().backend == "osmesa"
    MetaWorld("push", MetaWorld.Config(gl="egl", gl_device=5)).make("push-v3")
    with pytest.raises(ConfigError, match=r"EGL device 5 .* these do: 0, 1, 2"):
        gl.choose_device()


def test_rendering_on_the_cpu_is_said():
    assert "on the CPU" in CPU.notes[0]
    assert GPUS[0].notes == ()


def test_a_library_that_is_missing_is_a_reason_not_a_crash(tmp_path):
    script = os.path.join(os.path.dirname(gl.__file__), "gl_probe.py")
    broken = (
        "import ctypes, runpy, sys\n"
        "def missing(name): raise OSError(f'{name}: cannot open')\n"
        "ctypes.CDLL = missing\n"
        f"sys.argv = ['gl_probe.py', 'osmesa']\nrunpy.run_path({script!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", broken], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "libOSMesa.so.8: cannot open" in done.stderr


def test_at_least_one_backend_works_where_the_tests_run():
    found = [device for backend in gl.BACKENDS for device in gl.probe(backend).devices]
    assert found, "install libegl1 or libosmesa6"
    assert all(device.renderer for device in found)


@pytest.mark.slow
@pytest.mark.heavy
def test_workers_forked_after_the_preload_render_alike():
    pytest.importorskip("metaworld")
    code = """
import hashlib, os
from hocket.adapters.envs.metaworld import MetaWorld
for name in MetaWorld.preload:
    __import__(name)
digests = []
for index in range(2):
    read, write = os.pipe()
    if os.fork() == 0:
        MetaWorld.prepare_worker(index)
        env = MetaWorld("push", MetaWorld.Config(size=48, render="fast")).make("push-v3")
        image = env.reset(seed=0)[0]["observation/image"]
        env.close()
        os.write(write, hashlib.sha256(image.tobytes()).digest() + bytes([int(image.std() > 5)]))
        os._exit(0)
    os.close(write)
    digests.append(os.read(read, 64))
    os.wait()
assert len(digests[0]) == 33 and digests[0][-1] == 1 and digests[0] == digests[1], digests
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.heavy
def test_envs_rendered_one_after_the_other_in_a_process_do_not_disturb_each_other():
    pytest.importorskip("metaworld")

    def image(task):
        suite = MetaWorld(task, MetaWorld.Config(size=48, render="fast"))
        env = suite.make(suite.tasks()[0].name)
        seen = env.reset(seed=0)[0]["observation/image"]
        env.close()
        env.close()
        return seen

    first, other, again = image("drawer-open"), image("push"), image("drawer-open")
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
