"""Vulkan for SAPIEN, which builds no scene without a device of it: what there is, and lavapipe,
Mesa's Vulkan on a CPU, unpacked beside a venv where the system's is too old."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.errors import HocketError

FOLDER = "lavapipe"
ENOUGH = (24, 3)
"""The Mesa from which on SAPIEN can render; 22.3 is refused, 25.0 was seen."""
_ICD = "lvp.json"
_LIBRARIES = ("libdrm.so.2", "libvulkan_lvp.so")
_PACKAGES = ("libdrm2", "mesa-vulkan-drivers")
_CHOSEN = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES")
"""Variables with which a user chooses drivers."""
_DEVICES = """
import ctypes, json, sys
from ctypes import addressof, byref, c_uint32, c_uint64, c_void_p
vk = ctypes.CDLL(sys.argv[1])
about = (c_uint64 * 6)(0, 0, 0, 0, 0, 0x401000 << 32)  # VkApplicationInfo: Vulkan 1.1
create = (c_uint64 * 8)(1, 0, 0, addressof(about))  # VkInstanceCreateInfo
instance, count, found = c_void_p(), c_uint32(), []
if vk.vkCreateInstance(byref(create), None, byref(instance)) == 0:
    vk.vkEnumeratePhysicalDevices(instance, byref(count), None)
    devices = (c_void_p * count.value)()
    vk.vkEnumeratePhysicalDevices(instance, byref(count), devices)
    for device in map(c_void_p, devices):
        driver = (c_uint64 * 80)(1000196000)  # VkPhysicalDeviceDriverProperties, in the chain of
        both = (c_uint64 * 256)(1000059001, addressof(driver))  # VkPhysicalDeviceProperties2
        vk.vkGetPhysicalDeviceProperties2(device, both)
        texts = bytes(both)[36:292], bytes(driver)[276:532]
        found.append([text.split(b"\\0")[0].decode() for text in texts])
print(json.dumps(found))
"""
_SAPIEN = "import sapien; sapien.render.RenderMaterial()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The Vulkan devices of this machine."""

    devices: tuple[str, ...] = ()
    """Each with its driver."""
    reason: str = ""
    """Why none of them will do for SAPIEN; empty where one does."""


def probe(venv: Path | None = None) -> Found:
    """Look for devices: the system's, or those that a venv with SAPIEN sees, which is asked then
    if it can use one."""
    loader = _loader(venv)
    if loader is None:
        return Found(reason="no Vulkan loader is installed (libvulkan1)")
    around = dict(os.environ)
    if venv is not None and (venv / FOLDER / _ICD).exists() and not _is_chosen():
        folder = str(venv / FOLDER)
        around |= {_CHOSEN[0]: f"{folder}/{_ICD}", "LD_LIBRARY_PATH": folder}
    try:
        found = json.loads(_run([sys.executable, "-c", _DEVICES, loader], env=around))
    except (OSError, HocketError, ValueError) as error:
        return Found(reason=f"the Vulkan loader {loader} fails: {error}")
    devices = tuple(f"{name}, {driver}" for name, driver in found)
    if not devices:
        return Found(reason="there is no Vulkan driver (mesa-vulkan-drivers, or that of a GPU)")
    old = f"Mesa is too old for SAPIEN, which needs {ENOUGH[0]}.{ENOUGH[1]} or later"
    versions = [re.match(r"Mesa (\d+)\.(\d+)", driver) for _, driver in found]
    will_do = any(each is None or tuple(map(int, each.groups())) >= ENOUGH for each in versions)
    if venv is not None:
        try:
            _run([str(venv / "bin" / "python"), "-c", _SAPIEN], env=around)
        except HocketError as error:
            told = str(error).splitlines()[-1]
            return Found(devices=devices, reason=f"SAPIEN says: {told}" if will_do else old)
        return Found(devices=devices)
    return Found(devices=devices, reason="" if will_do else old)


def _loader(venv: Path | None) -> str | None:
    """The system's loader, or that which SAPIEN brings."""
    if name := ctypes.util.find_library("vulkan"):
        return name
    own = "lib/python*/site-packages/sapien/vulkan_library/libvulkan.so.1*"
    return next((str(path) for path in sorted(venv.glob(own))), None) if venv is not None else None


def _is_chosen() -> bool:
    return any(os.environ.get(name) for name in _CHOSEN)


def use(prefix: str = sys.prefix) -> None:
    """Let this process render with the lavapipe that lies in its venv, if one does and the user
    chose no other. Called before SAPIEN is imported."""
    folder = Path(prefix) / FOLDER
    if not (folder / _ICD).exists() or _is_chosen():
        return
    try:
        for name in _LIBRARIES:  # The second finds the first where it is loaded already.
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise HocketError(f"Lavapipe in {folder} cannot be loaded: {error}") from error
    os.environ[_CHOSEN[0]] = str(folder / _ICD)


def unpack(venv: Path) -> None:
    """Put lavapipe into a venv: two libraries out of Debian's packages, from the backports of the
    suite that this machine has, by its own sources. The system stays as it is, and nobody need be
    root."""
    folder = venv / FOLDER
    suite = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    listed = "$(RELEASE) deb $(REPO_URI) $(RELEASE)-backports $(COMPONENT)"
    with tempfile.TemporaryDirectory(prefix="hocket-lavapipe-") as scratch:
        known = _run(["apt-get", "indextargets", "--format", listed])
        lines = {line.partition(" ")[2] for line in known.splitlines() if line.split()[0] == suite}
        Path(scratch, "sources.list").write_text("\n".join(sorted(lines)) + "\n")
        Path(scratch, "lists", "partial").mkdir(parents=True)
        own = [f"Dir::Etc::SourceList={scratch}/sources.list", f"Dir::State::Lists={scratch}/lists"]
        own += ["Dir::Etc::SourceParts=-", f"Dir::Cache={scratch}", "APT::Sandbox::User="]
        apt = ["apt-get", *(word for setting in own for word in ("-o", setting))]
        _run([*apt, "update"])
        _run([*apt, "download", *_PACKAGES], cwd=scratch)
        for package in Path(scratch).glob("*.deb"):
            _run(["dpkg", "-x", str(package), f"{scratch}/root"])
        folder.mkdir(exist_ok=True)
        for name in _LIBRARIES:
            shutil.copy(next(Path(scratch, "root").rglob(name)), folder / name)
    about = {"api_version": "1.3.0", "library_path": str((folder / _LIBRARIES[1]).resolve())}
    (folder / _ICD).write_text(json.dumps({"file_format_version": "1.0.0", "ICD": about}))
    if reason := probe(venv).reason:
        raise HocketError(f"Lavapipe of {suite}-backports was unpacked, and will not do: {reason}.")


def _run(command: list[str], **how: Any) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, **how)
    except FileNotFoundError as error:
        raise HocketError(f"{command[0]} is not here, which Debian and Ubuntu have.") from error
    except subprocess.CalledProcessError as error:
        said = (error.stdout + error.stderr)[-2000:].strip()
        raise HocketError(f"{command[0]} ended with {error.returncode}: {said}") from error
    return str(done.stdout)
