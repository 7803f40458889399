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
    from hocket.core.contracts.env import Suite as Suite
    from hocket.core.contracts.policy import Policy as Policy
    from hocket.core.data import Actions as Actions
    from hocket.core.data import Batch as Batch
    from hocket.core.data import Episode as Episode
    from hocket.core.data import Outcome as Outcome
    from hocket.core.data import Row as Row
    from hocket.core.data import Trial as Trial
    from hocket.core.specs import ArraySpec as ArraySpec
    from hocket.core.specs import PolicySpec as PolicySpec
    from hocket.core.specs import TaskInfo as TaskInfo
    from hocket.engine.replay import ChunkReplay as ChunkReplay
    from hocket.errors import HocketError as HocketError
    from hocket.results.report import Report as Report
    from hocket.runs.config import EvalConfig as EvalConfig
    from hocket.runs.evaluation import evaluate as evaluate
    from hocket.runs.evaluation import resume as resume
    from hocket.workers.rows.suspendable import Suspendable as Suspendable

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

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'hocket' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"hocket.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
