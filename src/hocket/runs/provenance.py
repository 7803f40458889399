"""Everything that a run's numbers depend on beyond its configuration, for `about` of its run.yaml:
code, versions, machine, the settings that were meant, and digests of the files that were read.

Nothing is imported to find it out. What only the simulator knows (its renderer, its model) envs
tell themselves, as `facts` of their spec.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import platform
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import hocket
from hocket.core import plugins
from hocket.core.contracts.policy import Policy
from hocket.errors import HocketError
from hocket.runs.config import EvalConfig

_PACKAGES = (
    *("mujoco-mjx", "jax", "lerobot", "transformers", "diffusers", "accelerate", "robosuite"),
    *("hf-libero", "libero", "gymnasium-robotics", "openpi-client", "mani-skill", "sapien"),
)
"""Packages whose versions may change a number, beside those that every run names."""
_GIT_S = 10.0
_MOST_FILES = 2000
"""Files of one folder that are hashed; with more it is no checkpoint. Chosen by hand."""


def provenance(config: EvalConfig, policy: Policy) -> dict[str, Any]:
    """What can be known when a run begins, as plain values."""
    return {
        "code": code_of(config),
        "packages": _packages(),
        "accelerator": _accelerator(),
        **({"policy": dict(policy.spec.origin)} if policy.spec.origin else {}),
        "settings": _settings(config),
        "chunks": _chunks(config, policy),
    }


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def code_of(config: EvalConfig) -> dict[str, dict[str, Any]]:
    """The git state of hocket and of the modules that the user named, by name; where a module is in
    no repository, the digest of its file."""
    found = {"hocket": _git(Path(hocket.__file__).parent)}
    named: list[tuple[plugins.Kind, str]] = [("envs", name) for name in config.env]
    for kind, name in (*named, ("policies", config.policy)):
        module = name.partition(":")[0]
        is_theirs = ":" in name and plugins.is_plain(kind, name)
        file = _source_of(module) if is_theirs else None
        if file is not None:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            found[module] = {**_git(file.parent), "sha256": digest}
    return {name: state for name, state in found.items() if state}


def _source_of(module: str) -> Path | None:
    """The file of a module, which is imported already or found without importing anything."""
    try:
        loaded = sys.modules.get(module)
        top = importlib.util.find_spec(module.partition(".")[0])
        origin = getattr(loaded, "__file__", None) or (top.origin if top is not None else None)
    except (ImportError, ValueError):
        return None
    path = Path(origin) if origin else None
    return path if path is not None and path.is_file() else None


def _git(folder: Path) -> dict[str, Any]:
    """The commit of the repository that a folder is in, and whether files differ from it; empty
    where there is none."""

    def ask(*words: str) -> str:
        done = subprocess.run(
            # Without a lock: one that is killed leaves the user's index locked.
            ["git", "--no-optional-locks", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        return done.stdout.strip()

    try:
        commit = ask("rev-parse", "HEAD")
        tracked = ask("ls-files", "--", ".")
        if not tracked:  # a virtual environment inside of somebody's repository
            return {}
        return {"commit": commit, "changed": bool(ask("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return {}


def _accelerator() -> dict[str, Any]:
    """The CPU, GPUs, driver and CUDA, as far as files and what is imported already tell."""
    found: dict[str, Any] = {"cpu": _cpu()}
    driver = _text(Path("/proc/driver/nvidia/version"))
    if driver:
        found["driver"] = driver.splitlines()[0].partition(":")[2].strip()
        cards = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        found["gpus"] = [
            line.partition(":")[2].strip()
            for card in cards
            for line in _text(card).splitlines()
            if line.startswith("Model:")
        ]
    torch = sys.modules.get("torch")
    if torch is not None:
        found["cuda"] = getattr(torch.version, "cuda", None)
        found["dtype"] = str(torch.get_default_dtype()).removeprefix("torch.")
        found["float32_matmul_precision"] = torch.get_float32_matmul_precision()
    return found


def _cpu() -> str:
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _settings(config: EvalConfig) -> dict[str, Any]:
    """The settings of envs and policy with their defaults, which another version may change."""
    found: dict[str, Any] = {}
    try:
        for name, share in plugins.share_settings("envs", config.env, config.env_config).items():
            found[name] = _configured("envs", name, share)
        if config.policy_python is None:
            found[config.policy] = _configured("policies", config.policy, config.policy_config)
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


def _chunks(config: EvalConfig, policy: Policy) -> dict[str, Any]:
    spec = policy.spec
    return {
        "length": spec.chunk_length,
        "replan": config.replan or spec.replan or spec.chunk_length,
        "ensemble": config.ensemble,
        "delay": config.delay,
        "history": spec.history,
        "policy_control_rate": spec.control_rate,
    }


class FileDigests:
    """The sha256 of files that a run reads, made on a thread beside it: weights may be large."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._found: dict[str, str] = {}
        self._files = list(paths)
        self._thread = threading.Thread(target=self._read, name="hocket-digests", daemon=True)
        if self._files:
            self._thread.start()

    def _read(self) -> None:
        for path in self._files:
            try:
                with open(path, "rb") as file:
                    self._found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError:
                continue

    def finish(self) -> dict[str, str]:
        """The digests by the files' names, once all are made."""
        if self._files:
            self._thread.join()
        return dict(self._found)


def files_of(config: EvalConfig, policy: Policy) -> list[Path]:
    """The files that a policy says it reads (`files`), and those that settings of the env and the
    policy name: weights, mappings, start states."""
    named = [Path(str(each)) for each in getattr(policy, "files", ())]
    _, _, argument = config.policy.partition(":")
    is_ours = not plugins.is_plain("policies", config.policy)
    if is_ours and argument and _exists(Path(argument)):
        named.append(Path(argument))  # a checkpoint
    for settings in (config.policy_config, config.env_config):
        named += [Path(value) for value in settings.values() if _names_path(value)]
    found: list[Path] = []
    for path in named:
        found += (
            sorted(p for p in path.rglob("*") if p.is_file())[:_MOST_FILES]
            if (path.is_dir())
            else [path]
        )
    return list(dict.fromkeys(path for path in found if path.is_file()))


def _names_path(value: Any) -> bool:
    return isinstance(value, str) and "/" in value and _exists(Path(value))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long for one
        return False
