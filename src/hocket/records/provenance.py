"""Everything that a run's numbers depend on beyond its configuration: code, versions, hardware, the
settings that were meant, and digests of the files that were read.

`run.yaml` of evaluations and of training, cards and sites take it from here, so that they name the
same things. Nothing is imported to find it out. What only the simulator knows (its renderer, its
model) envs tell themselves, as `facts` of their spec.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import dataclasses
import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import hocket
from hocket.core import plugins
from hocket.core.modules import Target, target_of
from hocket.errors import HocketError, UnknownNameError
from hocket.records.digests import sha256_of, sha256_of_all
from hocket.system import machine
from hocket.system.json_file import plain

PACKAGES = (
    *("numpy", "gymnasium", "mujoco", "mujoco-mjx", "metaworld", "robosuite", "hf-libero"),
    *("libero", "gymnasium-robotics", "mani-skill", "sapien", "isaaclab", "av"),
    *("torch", "jax", "jaxlib", "lerobot", "transformers", "diffusers", "accelerate"),
    "openpi-client",
)
"""Packages whose versions may change a number."""
_PROCESS_S = 20.0
"""Longest wait for git and for nvidia-smi."""
_INSTALLED = frozenset(("site-packages", "dist-packages"))


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
        "hardware": hardware(),
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
    """The git state of hocket and of the modules that the user named, with the digest of each one's
    source, and the digests of what these modules import of their own folder or package."""
    folders = {name: file.parent for name, file in sources(named, modules).items()}
    folders["hocket"] = Path(hocket.__file__).parent
    return {
        name: {**(_git(folders[name]) if name in folders else {}), "sha256": digest}
        for name, digest in code_digests(named, modules).items()
    }


def code_digests(named: Named, modules: Sequence[str] = ()) -> dict[str, str]:
    """The digests of the source of hocket, of modules that the user named, and of what these
    import."""
    files = sources(named, modules)
    digests = {name: sha256_of(file) for name, file in {**_imported(files), **files}.items()}
    return {"hocket": sha256_of_all(Path(hocket.__file__).parent, ".py"), **digests}


def sources(named: Named, modules: Sequence[str] = ()) -> dict[str, Path]:
    """The files of the modules that the user named, by the name of each."""
    found = {}
    for word in (*_words(named), *modules):
        try:
            # A class inside of a function has no name to import, but a module that it lies in.
            target = target_of(word.partition(".<locals>")[0])
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
            # Of a key not even the digest is kept.
            left += [each for name, each in value.items() if not str(name).endswith("key_file")]
        elif isinstance(value, str):
            yield from (value, value.partition(":")[2])
        elif isinstance(value, Sequence):
            left += value


def places_of(named: Named, more: Iterable[str | Path] = ()) -> list[Path]:
    """The files and folders that the names and settings of envs and policy point at, and those of
    `more`: weights, mappings, start states, assets."""
    words = [word for word in (*more, *_words(named)) if word and os.path.exists(word)]
    return list(dict.fromkeys(map(Path, words)))


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


def _imported(named: Mapping[str, Path]) -> dict[str, Path]:
    """The files that modules import, and these in turn, as far as they lie beside them or in their
    package, by the names of the modules. What is installed has a version, and hocket a digest: of
    these only the package that was named is looked into."""
    found: dict[str, Path] = {}
    for module, file in named.items():
        is_file = module.endswith(".py")
        parts = [file.stem] if is_file else module.split(".")
        root = file.parents[len(parts) - (file.name != "__init__.py")]
        is_installed = not _INSTALLED.isdisjoint(root.parts)
        left, seen = [file], {file}
        while left:
            one = left.pop()
            for path in _beside(one, root, sha256_of(one)):
                first, *_ = names = path.relative_to(root).with_suffix("").parts
                if path in seen or first == "hocket" or (is_installed and first != parts[0]):
                    continue
                seen.add(path)
                left.append(path)
                name = ".".join(names).removesuffix(".__init__")
                found[os.path.join(os.path.dirname(module), name) if is_file else name] = path
    return found


@functools.lru_cache(maxsize=4096)
def _beside(file: Path, root: Path, _digest: str) -> tuple[Path, ...]:
    """The files below `root` that a module imports, with the packages that these are in."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(root, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if node.level else root
            names += [
                (base, f"{node.module or ''}.{alias.name}".strip(".")) for alias in node.names
            ]
            names.append((base, node.module or ""))
    found: dict[Path, None] = {}
    for base, name in names:
        place = base
        for part in filter(None, name.split(".")):
            place /= part
            found.update(dict.fromkeys((place.with_suffix(".py"), place / "__init__.py")))
    return tuple(path for path in found if path.is_file() and root in path.parents)


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


def hardware() -> dict[str, Any]:
    """What may change the last bits of a result here: processor, libraries, GPU and GL, and how
    torch computes, where it is imported already."""
    gl = os.environ.get("MUJOCO_GL", "") or "default"
    return {**_hardware(), "gl": gl, **_numerics()}


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
    if (kernels := _openblas()) is not None:
        found["openblas"] = kernels
    if (program := shutil.which("nvidia-smi")) is not None:
        words = ("--query-gpu=name,driver_version", "--format=csv,noheader")
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            found["gpu"] = ", ".join(sorted(set(_said(program, *words).splitlines())))
    return found


def _openblas() -> str | None:
    """The kernels that numpy's own OpenBLAS chose for this processor, or was told to choose by
    OPENBLAS_CORETYPE: others differ in last bits. None where numpy has another BLAS."""
    found = importlib.util.find_spec("numpy")
    place = Path(found.origin if found is not None and found.origin else "").parent.parent
    for library in sorted(place.glob("numpy.libs/*openblas*")):
        with contextlib.suppress(OSError, AttributeError):
            ask = ctypes.CDLL(str(library)).scipy_openblas_get_corename64_
            ask.restype = ctypes.c_char_p
            return str(ask().decode())
    return None


def _numerics() -> dict[str, Any]:
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
    if not dataclasses.is_dataclass(built):
        return dict(settings)
    return dict(plain(built))
