"""Everything that a run's numbers depend on beyond its configuration: code, versions, hardware, the
settings that were meant, and digests of the files that were read.

`run.yaml` of evaluations and of training, cards and sites take it from here, so that they name the
same things. Nothing is imported to find it out. What only the simulator knows (its renderer, its
model) envs tell themselves, as `facts` of their spec.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import hocket
from hocket.core import plugins
from hocket.core.modules import Target, target_of
from hocket.errors import HocketError, UnknownNameError
from hocket.system import machine

PACKAGES = (
    *("numpy", "gymnasium", "mujoco", "mujoco-mjx", "metaworld", "robosuite", "hf-libero"),
    *("libero", "gymnasium-robotics", "mani-skill", "sapien", "isaaclab", "av"),
    *("torch", "jax", "jaxlib", "lerobot", "transformers", "diffusers", "accelerate"),
    "openpi-client",
)
"""Packages whose versions may change a number."""
_PROCESS_S = 20.0
"""Longest wait for git and for nvidia-smi."""
_MOST_FILES = 2000
"""Files of one folder that are named; with more it is no checkpoint."""


class Named(Protocol):
    """The envs and the policy of a run, by name, with their settings."""

    @property
    def env(self) -> tuple[str, ...]: ...
    @property
    def policy(self) -> str: ...
    @property
    def env_config(self) -> Mapping[str, Any]: ...
    @property
    def policy_config(self) -> Mapping[str, Any]: ...
    @property
    def policy_python(self) -> str | None: ...


def provenance(named: Named, modules: Sequence[str] = ()) -> dict[str, Any]:
    """What can be known when a run begins, as plain values; `modules` are further names of code, as
    package.module:attr."""
    return {
        "versions": versions(),
        "code": code_of(named, modules),
        "hardware": {**hardware(), **_numerics()},
        "settings": _settings(named),
    }


def this_process() -> dict[str, Any]:
    """Where and by which command a run is made."""
    room = {"cores": machine.cores(), "memory_bytes": machine.memory_bytes()}
    return {"machine": {"platform": platform.platform(), **room}, "command": list(sys.argv)}


def versions() -> dict[str, str]:
    """The versions of Python, hocket and the packages that are installed."""
    return {"python": platform.python_version(), **installed(("hocket", *PACKAGES))}


def installed(names: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are there."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


# -- code ------------------------------------------------------------------------------------------


def code_of(named: Named, modules: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """The git state of hocket, and that of the modules that the user named with the digest of each
    one's file."""
    found = {"hocket": _git(Path(hocket.__file__).parent)}
    for module, file in sources(named, modules).items():
        found[module] = {**_git(file.parent), "sha256": sha256_of(file)}
    return {name: state for name, state in found.items() if state}


def sources(named: Named, modules: Sequence[str] = ()) -> dict[str, Path]:
    """The files of the modules that the user named, by the name of each."""
    found = {}
    for word in (*_words(named), *modules):
        try:
            target = target_of(word)
        except UnknownNameError:
            continue
        file = None if target is None else _source_of(target)
        if target is not None and file is not None:
            found[target.module] = file
    return found


def _words(named: Named) -> Iterator[str]:
    """What may name a module or a place: names, or the arguments of hocket's own, and settings."""
    names: list[tuple[plugins.Kind, str]] = [("envs", env) for env in named.env]
    for kind, name in (*names, ("policies", named.policy)):
        yield name if plugins.is_plain(kind, name) else name.partition(":")[2] or name
    left: list[Any] = [named.env_config, named.policy_config]
    while left:
        value = left.pop(0)
        if isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, str):
            yield from (value, value.partition(":")[2])
        elif isinstance(value, Sequence):
            left += value


def _source_of(target: Target) -> Path | None:
    """The file of a module, which is imported already, or is found without importing it."""
    if target.is_file:
        return Path(target.module)
    origin = getattr(sys.modules.get(target.module), "__file__", None)
    top, *inner = target.module.split(".")
    if origin is None and (spec := importlib.util.find_spec(top)) is not None:
        origin = spec.origin
        if origin is not None and inner:
            place = Path(origin).parent.joinpath(*inner)
            module = place.with_suffix(".py")
            origin = module if module.is_file() else place / "__init__.py"
    return Path(origin) if origin is not None and Path(origin).is_file() else None


def _git(folder: Path) -> dict[str, Any]:
    """The commit of the repository that a folder is in, and whether files differ from it; empty
    where there is none."""

    def ask(*words: str) -> str:
        # Without a lock: a git that is killed leaves the user's index locked.
        return _said("git", "--no-optional-locks", "-C", str(folder), *words)

    try:
        commit = ask("rev-parse", "HEAD")
        if not ask("ls-files", "--", "."):  # a virtual environment inside of somebody's repository
            return {}
        return {"commit": commit, "changed": bool(ask("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return {}


def _said(*command: str) -> str:
    """What a command prints."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_PROCESS_S,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.strip()


# -- hardware --------------------------------------------------------------------------------------


def hardware() -> dict[str, str]:
    """What may change the last bits of a result here: processor, libraries, GPU and GL."""
    return {**_hardware(), "gl": os.environ.get("MUJOCO_GL", "") or "default"}


@functools.cache
def _hardware() -> Mapping[str, str]:
    found = {"machine": platform.machine(), "libc": "-".join(platform.libc_ver())}
    text = ""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    found["cpu"] = name[1].strip() if name else platform.processor() or platform.machine()
    if flags := re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE):
        # Libraries choose their kernels by these.
        wide = [flag for flag in flags[1].split() if flag.startswith(("avx", "fma", "amx"))]
        found["vectors"] = " ".join(sorted(wide))
    if (program := shutil.which("nvidia-smi")) is not None:
        words = ("--query-gpu=name,driver_version", "--format=csv,noheader")
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            found["gpu"] = ", ".join(sorted(set(_said(program, *words).splitlines())))
    return found


def _numerics() -> dict[str, Any]:
    """How torch computes, where it is imported already."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "cuda": getattr(torch.version, "cuda", None),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }


# -- settings --------------------------------------------------------------------------------------


def _settings(named: Named) -> dict[str, Any]:
    """The settings of envs and policy with their defaults, which another version may change."""
    found: dict[str, Any] = {}
    try:
        for name, share in plugins.share_settings("envs", named.env, named.env_config).items():
            found[name] = _configured("envs", name, share)
        if named.policy_python is None:
            found[named.policy] = _configured("policies", named.policy, named.policy_config)
    except (HocketError, ImportError):
        return found  # a live object, or one that another interpreter knows
    return {name: settings for name, settings in found.items() if settings}


def _configured(kind: plugins.Kind, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    built = plugins.configure(plugins.find(kind, name), settings)
    if not dataclasses.is_dataclass(built) or isinstance(built, type):
        return dict(settings)
    return {key: _plain(value) for key, value in dataclasses.asdict(built).items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each) for each in value]
    return str(value)


# -- files -----------------------------------------------------------------------------------------


def places_of(named: Named, more: Iterable[str | Path] = ()) -> list[Path]:
    """The files and folders that the names and settings of envs and policy point at, and those of
    `more`: weights, mappings, start states, assets."""
    words = [word for word in (*more, *_words(named)) if word and os.path.exists(word)]
    return list(dict.fromkeys(map(Path, words)))


def files_in(place: Path) -> Iterator[Path]:
    """The file itself, or those of a folder but for what Python compiled."""
    if place.is_file():
        yield place
        return
    for path in sorted(place.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def sha256_of(path: Path) -> str:
    """The digest of a file; a file that did not change is read once."""
    about = path.stat()
    return _sha256(path.absolute(), about.st_size, about.st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _sha256(path: Path, _size: int, _changed: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_all(place: Path, suffix: str = "") -> str:
    """One digest of a file, or of all files in a folder with their names."""
    if place.is_file():
        return sha256_of(place)
    lines = [
        f"{path.relative_to(place)} {sha256_of(path)}\n"
        for path in files_in(place)
        if path.name.endswith(suffix)
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class FileDigests:
    """The sha256 of files that a run reads, made on a thread beside it: weights may be large."""

    def __init__(self, places: Iterable[Path]) -> None:
        self._found: dict[str, str] = {}
        self._places = list(places)
        self._thread = threading.Thread(target=self._read, name="hocket-digests", daemon=True)
        if self._places:
            self._thread.start()

    def _read(self) -> None:
        for place in self._places:
            for path, _ in zip(files_in(place), range(_MOST_FILES), strict=False):
                try:
                    self._found[path.relative_to(place.parent).as_posix()] = sha256_of(path)
                except OSError:
                    continue

    def finish(self) -> dict[str, str]:
        """The digests by the files' names, once all are made."""
        if self._places:
            self._thread.join()
        return dict(self._found)
