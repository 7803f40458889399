"""hocket runs action-chunking robot policies in many simulated environments at once.

Public names are loaded when they are first used, so that `import hocket` is cheap in a worker and
in a shell: no torch, no scipy, no simulator.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    sys.exit("hocket does not run on Windows itself: install it in WSL (wsl --install).")

if TYPE_CHECKING:
    from hocket.core.contracts.env import Suite
    from hocket.core.contracts.policy import Policy
    from hocket.core.data import Actions, Batch, Episode, Outcome, Row, Trial
    from hocket.core.specs import ArraySpec, PolicySpec, TaskInfo
    from hocket.engine.replay import ChunkReplay
    from hocket.errors import HocketError
    from hocket.results.report import Report
    from hocket.runs.config import EvalConfig
    from hocket.runs.evaluation import evaluate, resume
    from hocket.workers.rows.suspendable import Suspendable

__version__ = "0.1.0"

BUILTIN = "hocket.adapters.builtin:BUILTIN"
"""The table of built-in adapters, which `core/plugins.py` looks names up in."""

_HOME = {
    "Actions": "core.data",
    "ArraySpec": "core.specs",
    "Batch": "core.data",
    "ChunkReplay": "engine.replay",
    "Episode": "core.data",
    "EvalConfig": "runs.config",
    "HocketError": "errors",
    "Outcome": "core.data",
    "Policy": "core.contracts.policy",
    "PolicySpec": "core.specs",
    "Report": "results.report",
    "Row": "core.data",
    "Suite": "core.contracts.env",
    "Suspendable": "workers.rows.suspendable",
    "TaskInfo": "core.specs",
    "Trial": "core.data",
    "evaluate": "runs.evaluation",
    "resume": "runs.evaluation",
}

__all__ = [
    "Actions",
    "ArraySpec",
    "Batch",
    "ChunkReplay",
    "Episode",
    "EvalConfig",
    "HocketError",
    "Outcome",
    "Policy",
    "PolicySpec",
    "Report",
    "Row",
    "Suite",
    "Suspendable",
    "TaskInfo",
    "Trial",
    "__version__",
    "evaluate",
    "resume",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'hocket' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"hocket.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
