"""Builds interpreters of their own, in a folder of the user's."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from hocket.errors import HocketError, MissingExtraError, UsageError
from hocket.system.text import did_you_mean
from hocket.system.venvs import vulkan
from hocket.system.venvs.table import PINS, VENVS, Venv

FOLDER = Path("venvs")
STAMP = ".ready"
"""Written into a venv last: one without it is built again from the start."""
CPU_TORCH = Path(__file__).parents[4] / "tools" / "cpu_torch.py"
"""In a checkout: leaves CUDA's libraries out where there is no GPU."""


def venv_named(name: str) -> Venv:
    if name not in VENVS:
        raise UsageError(
            f"No venv is called {name!r}.{did_you_mean(name, VENVS)} Known: {', '.join(VENVS)}."
        )
    return VENVS[name]


def is_built(name: str, folder: Path) -> bool:
    return (folder / name / STAMP).exists()


def find_python(version: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """An interpreter of this version: the one that PYTHON312 (for 3.12) names, else this one, one
    on PATH or of pyenv's; None where there is none."""
    variable = variable_of(version)
    if named := environ.get(variable):
        if _is(named, version):
            return named
        raise UsageError(f"{variable} names {named}, which is not Python {version}.")
    return next((python for python in _candidates(version) if _is(python, version)), None)


def variable_of(version: str) -> str:
    """The environment variable that names an interpreter of this version."""
    return f"PYTHON{version.replace('.', '')}"


def _candidates(version: str) -> Iterator[str]:
    yield sys.executable
    if found := shutil.which(f"python{version}"):
        yield found
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    yield from map(str, sorted((root / "versions").glob(f"{version}.*/bin/python")))


def _is(python: str, version: str) -> bool:
    code = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def build(name: str, folder: Path) -> None:
    """Build a venv; where it is built already it stays as it is."""
    venv, place = venv_named(name), folder / name
    if is_built(name, folder):
        return
    python = find_python(venv.python)
    if python is None:
        raise MissingExtraError(
            f"The pins of venv {name!r} were made for Python {venv.python}, which is not found "
            f"here. Name one: {variable_of(venv.python)}=path/to/python{venv.python}."
        )
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
        pins.write("\n".join(PINS))
        pins.flush()
        for command in commands(venv, place, python, pins.name):
            _do(name, command)
    if "torchvision" in venv.packages:
        _mend_torchvision(place)
    if venv.draws_with_vulkan and vulkan.probe(place).reason:
        vulkan.unpack(place)
    (place / STAMP).touch()


def _mend_torchvision(place: Path) -> None:
    """Let torchvision be imported where its operators are for another device than torch is."""
    tried = [str(place / "bin" / "python"), "-c", "import torchvision"]
    if subprocess.run(tried, capture_output=True, check=False).returncode:
        (site,) = (place / "lib").glob("python*/site-packages")
        mend = Path(__file__).with_name("torchvision_operators.py")
        shutil.copy(mend, site / "sitecustomize.py")


def commands(venv: Venv, place: Path, python: str, pins: str) -> list[list[str]]:
    """What is run to build a venv; `pins` is a file of constraints."""
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    pip += ["--disable-pip-version-check", "--prefer-binary", "--constraint", pins]
    found = [[python, "-m", "venv", "--clear", str(place)]]
    if CPU_TORCH.exists() and "torch" in venv.packages:
        found.append([sys.executable, str(CPU_TORCH), pip[0], PINS[0]])
    if venv.packages:
        found.append([*pip, *venv.packages])
    if venv.bare:
        heedless = ["--ignore-requires-python"] if venv.bare_for_any_python else []
        found.append([*pip, "--no-deps", *heedless, *venv.bare])
    return found


def lacking(venv: Venv) -> list[str]:
    """Debian's packages that a venv needs and whose libraries this machine does not have."""
    return [package for name, package in venv.system if not ctypes.util.find_library(name)]


def _do(name: str, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise HocketError(
            f"Venv {name!r} could not be built: {' '.join(command[:4])} ... ended with "
            f"{done.returncode}. Run hocket venv {name} again. It said: "
            f"{(done.stdout + done.stderr)[-2000:].strip()}"
        )
