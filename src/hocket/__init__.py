"""hocket runs action-chunking robot policies in many simulated environments at once.

Public names are loaded when they are first used, so that `import hocket` is cheap in a worker and
in a shell: no torch, no scipy, no simulator.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hocket.version import VERSION as __version__

if TYPE_CHECKING:
    from hocket.contracts import Policy, Suite
    from hocket.data import (
        Actions,
        ArraySpec,
        Batch,
        Episode,
        Outcome,
        PolicySpec,
        Row,
        TaskInfo,
        Trial,
    )
    from hocket.errors import HocketError
    from hocket.eval_config import EvalConfig
    from hocket.evaluation import evaluate, resume
    from hocket.replay import ChunkReplay
    from hocket.report import Report
    from hocket.suspendable import Suspendable

_HOME = {
    "Actions": "data",
    "ArraySpec": "data",
    "Batch": "data",
    "ChunkReplay": "replay",
    "Episode": "data",
    "EvalConfig": "eval_config",
    "HocketError": "errors",
    "Outcome": "data",
    "Policy": "contracts",
    "PolicySpec": "data",
    "Report": "report",
    "Row": "data",
    "Suite": "contracts",
    "Suspendable": "suspendable",
    "TaskInfo": "data",
    "Trial": "data",
    "evaluate": "evaluation",
    "resume": "evaluation",
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
