"""What must be the same at every site, and what may differ but is told.

`code` has versions and hashes: hocket, the packages, the modules of envs and policies, and whatever
files their names and settings point at, weights and assets. A difference there means that sites do
not run the same thing, and is refused. `hardware` has what may change the last bits of a result:
processor, GPU and GL. A difference there lowers what a run says of its exactness.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hocket.runs.subject import Subject

Identity = Mapping[str, Mapping[str, str]]

_PIECE = 1 << 20
_PACKAGES = (
    "numpy", "gymnasium", "mujoco", "mujoco-mjx", "metaworld", "jax", "jaxlib", "torch",
    "lerobot", "hf-libero", "robosuite", "mani-skill", "isaaclab", "av",
)  # fmt: skip
"""Packages whose versions change what an episode is, where they are installed."""


def identity_of(
    config: Subject, names: Sequence[str] = (), files: Sequence[str] = ()
) -> dict[str, dict[str, str]]:
    """What this site is, for this configuration, and the further modules and files it names."""
    code = {"python": ".".join(platform.python_version_tuple()[:2]), "hocket": _hash_package()}
    for name in _PACKAGES:
        try:
            code[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    for name in (*config.env, config.policy, *names):
        if (file := _module_file(name)) is not None:
            code[f"code of {name}"] = _hash(file)
    for place in (*_places(config), *filter(os.path.exists, files)):
        code[f"files of {place}"] = _hash(Path(place))
    return {"code": code, "hardware": hardware()}


def differences(ours: Identity, theirs: Identity, part: str) -> list[str]:
    """What differs in a part, in words."""
    mine, other = ours.get(part, {}), theirs.get(part, {})
    return [
        f"{key}: {_said(other.get(key))} there, {_said(mine.get(key))} at the first site"
        for key in sorted({*mine, *other})
        if mine.get(key) != other.get(key)
    ]


def _said(value: str | None) -> str:
    return "missing" if value is None else value


@functools.cache
def _hardware() -> tuple[tuple[str, str], ...]:
    found = {"machine": platform.machine(), "libc": "-".join(platform.libc_ver())}
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    if match := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
        found["cpu"] = match[1].strip()
    if match := re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE):
        # Libraries choose their kernels by these.
        wide = [flag for flag in match[1].split() if flag.startswith(("avx", "fma", "amx"))]
        found["vectors"] = " ".join(sorted(wide))
    found["gl"] = os.environ.get("MUJOCO_GL", "") or "default"
    program = shutil.which("nvidia-smi")
    if program is not None:
        words = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
            found["gpu"] = ", ".join(sorted(set(done.stdout.strip().splitlines())))
        except (OSError, subprocess.SubprocessError):
            pass
    return tuple(found.items())


def hardware() -> dict[str, str]:
    """What may change the last bits of a result here."""
    return dict(_hardware())


@functools.cache
def _hash_package() -> str:
    """A hash of hocket's own source: a version alone does not tell two checkouts apart."""
    import hocket

    return f"{hocket.__version__} {_hash(Path(hocket.__file__).parent, '*.py')}"


def _module_file(name: str) -> Path | None:
    """The file of a module that the user named as `package.module:attr`."""
    module = name.partition(":")[0]
    if ":" not in name or ("." not in module and importlib.util.find_spec(module) is None):
        return None
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if found is None or found.origin is None or not os.path.isfile(found.origin):
        return None
    return Path(found.origin)


def _places(config: Subject) -> Iterator[str]:
    """Files and folders that the names and settings of env and policy point at."""
    words: list[Any] = [name.partition(":")[2] for name in (*config.env, config.policy)]
    settings: list[Any] = [config.env_config, config.policy_config]
    while settings:
        value = settings.pop()
        if isinstance(value, Mapping):
            settings += value.values()
        elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
            settings += value
        else:
            words.append(value)
    for word in words:
        if isinstance(word, str) and word and os.path.exists(word):
            yield word


def _hash(path: Path, pattern: str = "*") -> str:
    """A hash of a file, or of all files in a folder with their names."""
    digest = hashlib.blake2b(digest_size=8)
    files = [path] if path.is_file() else sorted(p for p in path.rglob(pattern) if p.is_file())
    for file in files:
        if "__pycache__" in file.parts:
            continue
        digest.update(b"" if file == path else str(file.relative_to(path)).encode() + b"\0")
        with open(file, "rb") as opened:
            while data := opened.read(_PIECE):
                digest.update(data)
    return digest.hexdigest()
