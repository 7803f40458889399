"""Imports LIBERO and robosuite without what they do on import: ask questions on the terminal, load
OpenGL, and write a log to a fixed place."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hocket.adapters.envs.gl.backends import no_gl_at_import
from hocket.adapters.envs.libero.data import LiberoData, find_data


def import_libero() -> Any:
    """The module `libero.libero.envs`, with LIBERO's paths set to the data on this machine."""
    data = find_data()
    _tame_robosuite()
    with no_gl_at_import():
        package = _import_package(data)
        return importlib.import_module(f"{package.__name__}.envs")


def _tame_robosuite() -> None:
    """Load robosuite's macros before robosuite, which reads them once and for all."""
    if "robosuite" in sys.modules:
        return
    package = importlib.util.find_spec("robosuite")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'robosuite'", name="robosuite")
    file = Path(package.submodule_search_locations[0]) / "macros.py"
    spec = importlib.util.spec_from_file_location("robosuite.macros", file)
    assert spec is not None
    assert spec.loader is not None
    macros: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(macros)
    macros.MUJOCO_GPU_RENDERING = False
    macros.FILE_LOGGING_LEVEL = None
    sys.modules["robosuite.macros"] = macros


def _import_package(data: LiberoData) -> Any:
    """`libero.libero`, which prompts unless it finds a configuration."""
    paths = {
        "benchmark_root": str(data.bddl_files.parent),
        "bddl_files": str(data.bddl_files),
        "init_states": str(data.init_states),
        "datasets": str(data.bddl_files.parent / "datasets"),
        "assets": str(data.assets),
    }
    before = os.environ.get("LIBERO_CONFIG_PATH")
    with tempfile.TemporaryDirectory(prefix="hocket-libero-") as folder:
        lines = [f"{key}: {path!r}\n" for key, path in paths.items()]
        Path(folder, "config.yaml").write_text("".join(lines))
        os.environ["LIBERO_CONFIG_PATH"] = folder
        try:
            package: Any = importlib.import_module("libero.libero")
        finally:
            if before is None:
                del os.environ["LIBERO_CONFIG_PATH"]
            else:
                os.environ["LIBERO_CONFIG_PATH"] = before
    # hf-libero looks for its assets here first, and would download them; its configuration file is
    # gone, so that other paths are told from here too.
    package._assets_path_cache = paths["assets"]
    package.get_libero_path = paths.__getitem__
    return package
