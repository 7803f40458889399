"""Finds LIBERO's data: scenes and objects, task descriptions, and the states that trials start in.

`HOCKET_LIBERO_DATA` names a folder with `assets/`, `bddl_files/` and either `init_states.npz` (one
array `[n, S]` under `suite/task`) or LIBERO's own `init_files/`. Without it LIBERO's own
config.yaml is read. Nothing is ever downloaded.
"""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.data import Array
from hocket.errors import ConfigError

VARIABLE = "HOCKET_LIBERO_DATA"
_STATES_FILE = "init_states.npz"
_ADVICE = (
    f"Set {VARIABLE} to a folder with LIBERO's assets/, bddl_files/ and init_files/ (of a checkout "
    f"of LIBERO: its libero/libero folder)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiberoData:
    assets: Path
    bddl_files: Path
    init_states: Path
    """A folder of `suite/task.pruned_init`, or an .npz file."""
    origin: str
    """The variable or file that named these paths, for messages."""

    def bddl_file(self, suite: str, task: str) -> Path:
        path = self.bddl_files / suite / f"{task}.bddl"
        if not path.is_file():
            have = sorted(p.name for p in self.bddl_files.iterdir() if p.is_dir())
            raise ConfigError(
                f"LIBERO's data, found by {self.origin}, has no {suite}/{task}.bddl. It has files "
                f"for: {', '.join(have) or 'no suite'}. {_ADVICE}."
            )
        return path

    def states(self, suite: str, task: str) -> Array:
        """The states `[n, S]` that trials of a task start in."""
        try:
            if self.init_states.suffix == ".npz":
                with np.load(self.init_states, allow_pickle=False) as archive:
                    states: Array = archive[f"{suite}/{task}"]
            else:
                states = read_pruned_init(self.init_states / suite / f"{task}.pruned_init")
        except (OSError, KeyError, ValueError) as exc:
            raise ConfigError(
                f"LIBERO's data, found by {self.origin}, has no readable start states for "
                f"{suite}/{task}: {exc}. {_ADVICE}."
            ) from exc
        if states.ndim != 2 or not len(states) or states.dtype.kind != "f":
            raise ConfigError(f"The start states of {suite}/{task} are no table of numbers.")
        return states


def find_data() -> LiberoData:
    """LIBERO's data on this machine; an error says where it was looked for."""
    named = os.environ.get(VARIABLE)
    folder = os.environ.get("LIBERO_CONFIG_PATH") or "~/.libero"
    file = Path(folder).expanduser() / "config.yaml"
    if named:
        root = Path(named).expanduser().absolute()
        states = root / _STATES_FILE
        data = LiberoData(
            assets=root / "assets",
            bddl_files=root / "bddl_files",
            init_states=states if states.is_file() else root / "init_files",
            origin=f"{VARIABLE}={root}",
        )
    elif file.is_file():
        data = _by_config(file)
    else:
        raise ConfigError(
            f"LIBERO's data was not found: {VARIABLE} is not set, and there is no {file}. "
            f"{_ADVICE}."
        )
    for name in ("assets", "bddl_files", "init_states"):
        path: Path = getattr(data, name)
        if not path.exists():
            raise ConfigError(
                f"{data.origin} leads to {path}, which does not exist: LIBERO's {name} are "
                f"missing. {_ADVICE}."
            )
    return data


def _by_config(file: Path) -> LiberoData:
    import yaml

    from hocket.system.bounded_yaml import load_yaml

    try:
        plain = load_yaml(file.read_text())
        keys = ("assets", "bddl_files", "init_states")
        paths = {key: Path(plain[key]).absolute() for key in keys}
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as exc:
        raise ConfigError(f"LIBERO's configuration {file} cannot be used: {exc!r}") from exc
    states = paths["init_states"]
    if (states / _STATES_FILE).is_file():
        paths["init_states"] = states / _STATES_FILE
    return LiberoData(**paths, origin=str(file))


_ALLOWED: Mapping[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    # Both spellings of one private function: numpy moved it between versions 1 and 2.
    ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
}


class _ArraysOnly(pickle.Unpickler):
    """Unpickles plain arrays of numbers, and refuses everything that could be executed."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) == ("_codecs", "encode"):
            return _encode_latin1
        try:
            return _ALLOWED[module_name, global_name]
        except KeyError:
            raise ValueError(
                f"it holds {module_name}.{global_name}, not only numbers: refused, since reading "
                f"it could run code"
            ) from None


def _encode_latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"it is encoded as {encoding}")
    return text.encode("latin1")


def read_pruned_init(path: Path) -> Array:
    """The array in a file of torch's format, read without torch and without running anything."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("data.pkl")]
            if len(names) != 1:
                raise ValueError("it is no file of LIBERO's start states")
            data = archive.read(names[0])
    except zipfile.BadZipFile as exc:
        raise ValueError(f"{path} is no sound archive: {exc}") from exc
    try:
        found = _ArraysOnly(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, TypeError, AttributeError, IndexError) as exc:
        raise ValueError(f"{path} cannot be read: {exc}") from exc
    if not isinstance(found, np.ndarray) or found.dtype.kind != "f":
        raise ValueError(f"{path} holds no table of numbers")
    return found
