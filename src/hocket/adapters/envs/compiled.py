"""MuJoCo models that are compiled once: whoever needs one again, in this process or in another,
reads it from the cache folder, to the bit as it was compiled, and its digest beside it.

Compiling is most of what it takes to make an env: for MetaWorld's, ten times what reading takes. To
make the digest takes as long as to read the model.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hocket.workers.env.simulator_model import model_digest

MOST_BYTES = 2 << 30
"""Bytes of models that are kept, the newest; those of all of MetaWorld's tasks take half of it."""
_SUFFIX = ".mjb"
_DIGITS = 64


def compiled(xml: str, assets: Path) -> Any:
    """The `mujoco.MjModel` of an XML file, which depends on nothing but what lies in `assets`."""
    import mujoco

    file = _file(xml, assets)
    # Whatever cannot be read is compiled.
    with contextlib.suppress(OSError, ValueError):
        if file is not None and file.exists():
            os.utime(file)  # the oldest goes first
            return mujoco.MjModel.from_binary_path(str(file))
    model = mujoco.MjModel.from_xml_path(xml)
    if file is not None:
        with contextlib.suppress(OSError):
            _keep(model, file)
    return model


def digest(model: Any, xml: str, assets: Path, variant: str) -> str:
    """The digest of the model that was compiled of an XML file, with the changes to it that
    `variant` names, which are always the same."""
    model_file = _file(xml, assets)
    if model_file is None:
        return model_digest(model)
    file = model_file.with_suffix(f".{variant}.sha256")
    with contextlib.suppress(OSError, ValueError):
        kept = file.read_text("ascii")
        if len(kept) == _DIGITS:
            return kept
    found = model_digest(model)
    with contextlib.suppress(OSError):
        _put(file, lambda draft: Path(draft).write_text(found, "ascii"))
    return found


def _file(xml: str, assets: Path) -> Path | None:
    """Where the model of an XML file is kept; None where that cannot be said."""
    import mujoco

    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: there is no home
        name = hashlib.sha256(f"{mujoco.__version__} {xml} {_state(assets)}".encode()).hexdigest()
        return cache_folder() / (name[:32] + _SUFFIX)
    return None


def cache_folder() -> Path:
    """Where models are kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "hocket" / "models"


@functools.cache
def _state(assets: Path) -> str:
    """What changes with the machine's kind and with every file in a folder."""
    digest = hashlib.sha256(platform.machine().encode())
    for folder, inner, names in os.walk(assets):
        inner.sort()
        for path in sorted(os.path.join(folder, name) for name in names):
            told = os.stat(path)
            digest.update(f"{path} {told.st_size} {told.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _keep(model: Any, file: Path) -> None:
    import mujoco

    def save(draft: str) -> None:
        mujoco.mj_saveModel(model, draft, None)
        if os.path.getsize(draft) != mujoco.mj_sizeModel(model):
            raise OSError("The disk is full.")

    _put(file, save)
    kept = [(path.stat(), path) for path in file.parent.glob(f"*{_SUFFIX}")]
    total = 0
    for told, path in sorted(kept, key=lambda each: each[0].st_mtime_ns, reverse=True):
        total += told.st_size
        if total > MOST_BYTES:
            for each in path.parent.glob(f"{path.stem}.*"):  # its digests too
                each.unlink(missing_ok=True)


def _put(file: Path, save: Callable[[str], object]) -> None:
    """Make a file, which is whole or not there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=file.parent)
    os.close(handle)
    try:
        save(draft)
        os.replace(draft, file)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft)
