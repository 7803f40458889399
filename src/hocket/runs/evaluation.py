"""Evaluates a policy: plans trials, runs them, and says what came of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hocket.core.contracts.policy import Policy
from hocket.core.contracts.recorder import Reader
from hocket.errors import UsageError
from hocket.results.report import Report
from hocket.runs.assembly import require_policy
from hocket.runs.config import EvalConfig
from hocket.runs.run import Run


def evaluate(
    *,
    env: str | Sequence[str] | Callable[..., Any],
    policy: str | Policy,
    out: str | Path | None = None,
    readers: Sequence[Reader] = (),
    **settings: Any,
) -> Report:
    """Evaluate a policy and return the Report.

    `policy` is a name or a live object; `env` a name, several names, or an importable factory of
    yours. Further settings are those of EvalConfig: episodes, seed, lanes, replan ... A run folder
    is written where `out` says, and nowhere without it.
    """
    names = (env,) if isinstance(env, str) or callable(env) else tuple(env)
    config = EvalConfig.from_plain(
        {
            "env": tuple(name if isinstance(name, str) else name_of(name) for name in names),
            "policy": policy if isinstance(policy, str) else _class_name(type(policy)),
            **settings,
        }
    )
    live = None if isinstance(policy, str) else require_policy(policy, config.policy)
    with Run.new(config, Path(out) if out is not None else None) as run:
        return run.finish(policy=live, readers=readers)


def name_of(factory: Callable[..., Any]) -> str:
    """`module:attr` of an env factory that workers can import; an error says why they cannot."""
    module, path = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "<")
    main_file = inspect.getsourcefile(factory) if inspect.isroutine(factory) else None
    if module == "__main__" or module is None or "<" in path:
        raise UsageError(
            f"Workers cannot import {path!r}"
            f"{f' of {main_file}' if main_file else ''}: it lives in the running script or inside "
            "a function. Put it into a module and pass 'module:name'."
        )
    return f"{module}:{path}"


def resume(
    folder: str | Path, *, policy: Policy | None = None, readers: Sequence[Reader] = ()
) -> Report:
    """Finish a run that was interrupted, whatever ended it; a finished one is only reported."""
    with Run.open(Path(folder)) as run:
        return run.finish(policy=policy, readers=readers)


def _class_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"
