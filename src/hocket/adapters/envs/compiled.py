"""MuJoCo models that are compiled once: whoever needs one again, in this process or in another,
reads it from the cache folder, to the bit as it was compiled.

Compiling is most of what it takes to make an env: for MetaWorld's, ten times what reading takes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

MOST_BYTES = 2 << 30
"""Bytes of models that are kept, the newest; those of all of MetaWorld's tasks take half of it."""
_SUFFIX = ".mjb"


def compiled(xml: str, assets: Path) -> Any:
    """The `mujoco.MjModel` of an XML file, which depends on nothing but what lies in `assets`."""
    import mujoco

    file: Path | None = None
    # Whatever cannot be read is compiled; RuntimeError: there is no home.
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        name = hashlib.sha256(f"{mujoco.__version__} {xml} {_state(assets)}".encode()).hexdigest()
        file = cache_folder() / (name[:32] + _SUFFIX)
        if file.exists():
            os.utime(file)  # the oldest goes first
            return mujoco.MjModel.from_binary_path(str(file))
    model = mujoco.MjModel.from_xml_path(xml)
    if file is not None:
        with contextlib.suppress(OSError):
            _keep(model, file)
    return model


def cache_folder() -> Path:
    """Where models are kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "hocket" / "models"


@functools.cache
def _state(assets: Path) -> str:
    """What changes with the machine's kind and with every file in a folder."""
    digest = hashlib.sha256(platform.machine().encode())
    for path in sorted(assets.rglob("*")):
        told = path.stat()
        digest.update(f"{path} {told.st_size} {told.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _keep(model: Any, file: Path) -> None:
    import mujoco

    file.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=file.parent)
    os.close(handle)
    try:
        mujoco.mj_saveModel(model, draft, None)
        if os.path.getsize(draft) != mujoco.mj_sizeModel(model):
            raise OSError("The disk is full.")
        os.replace(draft, file)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft)
    kept = [(path.stat(), path) for path in file.parent.glob(f"*{_SUFFIX}")]
    total = 0
    for told, path in sorted(kept, key=lambda each: each[0].st_mtime_ns, reverse=True):
        total += told.st_size
        if total > MOST_BYTES:
            path.unlink(missing_ok=True)
