"""Evaluates a policy: plans trials, runs them, and says what came of it.

Many runs are made with one warm fleet, each in its folder, and one table of all. One that cannot
be made does not stop the others. The same call again goes on where the last one stopped: finished
runs stay, an unfinished one is resumed, and one that failed is tried again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hocket.core.contracts.policy import Policy
from hocket.core.contracts.recorder import Reader
from hocket.core.modules import file_being_imported
from hocket.engine.delays import MEASURED
from hocket.errors import ConfigError, HocketError, UsageError
from hocket.records.folder import RunFolder
from hocket.results.arms import Arm, ArmTable
from hocket.results.report import Report
from hocket.results.showing.progress import open_progress
from hocket.runs.arms import Jobs, folder_of
from hocket.runs.config import EvalConfig
from hocket.runs.elsewhere import Elsewhere
from hocket.runs.policies import require_policy
from hocket.runs.protocols import with_protocol
from hocket.runs.run import Run
from hocket.workers.lending import Fleets


def evaluate(
    *,
    env: str | Sequence[str] | Callable[..., Any],
    policy: str | Policy,
    out: str | Path | None = None,
    readers: Sequence[Reader] = (),
    progress: bool | None = None,
    **settings: Any,
) -> Report:
    """Evaluate a policy and return the Report.

    `policy` is a name or a live object; `env` a name, several names, or a class or function of
    yours that makes one. Further settings are those of EvalConfig: episodes, seed, lanes, replan
    ... A run folder is written where `out` says, and nowhere without it. Progress is shown in a
    terminal and in a notebook, unless `progress` says otherwise.
    """
    if (script := file_being_imported()) is not None:
        raise UsageError(
            f"{script} calls hocket.evaluate while a worker imports it, to find an env in it. Put "
            f"the call below `if __name__ == '__main__':`."
        )
    given: Any = env
    is_one = isinstance(env, str) or callable(env) or hasattr(env, "step")
    if not is_one and not isinstance(given, (list, tuple)):
        raise UsageError(
            f"env is a {type(given).__name__}: give a name, a class or function that makes an env, "
            f"or a list of them."
        )
    names = (given,) if is_one else tuple(given)
    is_here = settings.get("lanes") == 1 and settings.get("env_python") is None
    given = {
        "env": tuple(
            name if isinstance(name, str) else name_of(name, is_here=is_here) for name in names
        ),
        "policy": policy if isinstance(policy, str) else _class_name(policy),
        **settings,
    }
    config = EvalConfig.from_plain(with_protocol(given))
    live = None if isinstance(policy, str) else require_policy(policy, config.policy)
    with contextlib.ExitStack() as stack:
        shown = open_progress(wanted=progress)
        if shown is not None:
            readers = (*readers, stack.enter_context(shown))
        run = stack.enter_context(Run.new(config, Path(out) if out is not None else None))
        return run.finish(policy=live, readers=readers)


def name_of(factory: Callable[..., Any], *, is_here: bool = False) -> str:
    """A name under which workers find an env factory: `module:attr`, or `file.py:attr` for one of
    the running script. One of a notebook is found in this process alone, where `is_here` says that
    the env runs; an error says what else to do."""
    if hasattr(factory, "step") and not isinstance(factory, type):
        raise UsageError(
            f"env is an instance of {type(factory).__name__}, and each worker makes an env of its "
            f"own: give the class or a function that makes one, as in env={type(factory).__name__}."
        )
    module, path = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "<")
    if module is not None and module != "__main__" and "<" not in path:
        return f"{module}:{path}"
    main = sys.modules["__main__"]
    if module == "__main__" and "<" not in path:
        script = getattr(main, "__file__", None)
        if is_here:
            return f"__main__:{path}"
        if script is not None and script.endswith(".py"):
            near, here = os.path.relpath(script), os.path.abspath(script)
            return f"{here if near.startswith('..') else near}:{path}"
    raise UsageError(
        f"Workers cannot import {path!r}: it lives in a notebook or inside a function. Put it into "
        f"a file and pass env='my_envs.py:NAME', or give lanes=1: then a class or function of the "
        f"notebook itself runs in this process."
    )


def resume(
    folder: str | Path,
    *,
    policy: Policy | None = None,
    readers: Sequence[Reader] = (),
    allow_changes: bool = False,
) -> Report:
    """Finish a run that was interrupted, whatever ended it; a finished one is only reported. Where
    code, packages, weights or other files are not what they were it is refused; `allow_changes`
    lets them differ, and the report then tells which episodes are of what."""
    with Run.open(Path(folder), allow_changes=allow_changes) as run:
        return run.finish(policy=policy, readers=readers)


def run_jobs(
    jobs: Jobs,
    folder: Path,
    *,
    readers: Callable[[str], Sequence[Reader]],
    elsewhere: Elsewhere | None = None,
) -> ArmTable:
    """Make every run that is not finished, each in its folder below `folder`, here or on other
    machines, followed by the `readers` of its name, and write the table of all. Stops only when it
    is interrupted; runs that were not begun then have neither report nor error."""
    arms = {name: Arm(name=name, folder=folder_of(name)) for name in jobs.runs}
    with Fleets() as fleets:
        for name, config in jobs.runs.items():
            following = functools.partial(readers, name)
            arms[name] = _run_arm(arms[name], config, folder, fleets, following, elsewhere)
            report = arms[name].report
            if report is not None and not report.complete:
                break
    table = ArmTable.open(folder, list(arms.values()), jobs.base)
    table.save(folder)
    return table


def _run_arm(
    arm: Arm,
    config: EvalConfig,
    folder: Path,
    fleets: Fleets,
    readers: Callable[[], Sequence[Reader]],
    elsewhere: Elsewhere | None,
) -> Arm:
    try:
        with open_run(config, folder / arm.folder) as run, contextlib.ExitStack() as stack:
            followers = readers()
            for reader in followers:
                stack.callback(reader.close)
            report = run.finish(readers=followers, fleets=fleets, elsewhere=elsewhere)
    except HocketError as error:
        return dataclasses.replace(arm, error=f"{type(error).__name__}: {error}")
    return dataclasses.replace(arm, report=report)


def open_run(config: EvalConfig, folder: Path) -> Run:
    """Go on with the run in a folder, or plan it there. Another configuration than it was begun
    with is refused, but for another deadline of the policy."""
    if not RunFolder.at(folder).ledger.exists():
        return Run.new(config, folder)
    run = Run.open(folder, infer_timeout_s=config.infer_timeout_s)
    asked = dataclasses.replace(config, infer_timeout_s=run.config.infer_timeout_s)
    if asked.delay == MEASURED:  # what was measured when the run began
        asked = dataclasses.replace(asked, delay=run.config.delay)
    # As the folder has it: settings may be tuples here, which come back as lists.
    asked = EvalConfig.from_plain(asked.to_plain())
    ours, theirs = dataclasses.asdict(asked), dataclasses.asdict(run.config)
    differ = [
        f"{name} ({theirs[name]!r}, now {ours[name]!r})"
        for name in ours
        if ours[name] != theirs[name]
    ]
    if differ:
        run.close()
        raise ConfigError(
            f"{folder} holds a run with another {' and '.join(differ)}. Give the run another name, "
            f"or remove the folder."
        )
    return run


def _class_name(policy: object) -> str:
    """The name of the policy's class, or of a class or function that was given for a policy."""
    kind: Any = policy if hasattr(policy, "__qualname__") else type(policy)
    return f"{kind.__module__}:{kind.__qualname__}"
