"""Evaluates a policy: plans trials, runs them, and says what came of it.

Many runs are made with one warm fleet, each in its folder, and one table of all: those of a file
(checkpoints times suites), or one for each disturbance and delay that a command line names, with a
base to pair them with. One that cannot be made does not stop the others. The same call again goes
on where the last one stopped: finished runs stay, an unfinished one is resumed, and one that failed
is tried again.

    base: reference              # optional: the run that the others are compared with
    shared:                      # settings of every run
      env: metaworld:mt10
      episodes: 50
    runs:
      reference: {policy: reference}
      replanned: {policy: reference, replan: 4}
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.core.contracts.policy import Policy
from hocket.core.contracts.recorder import Reader
from hocket.core.modules import file_being_imported
from hocket.engine.delays import MEASURED, Delays, sweep
from hocket.errors import ConfigError, HocketError, UsageError
from hocket.records import run_file as run_config
from hocket.records.folder import RunFolder
from hocket.results.arms import Arm, ArmTable
from hocket.results.report import Report
from hocket.results.showing.progress import open_progress
from hocket.runs.config import EvalConfig
from hocket.runs.elsewhere import Elsewhere
from hocket.runs.policies import require_policy
from hocket.runs.protocols import with_protocol
from hocket.runs.run import Run
from hocket.workers.env.factors import split_arms
from hocket.workers.lending import Fleets

CLEAN = "clean"
_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """Runs to be made, by name, and the one that the others are compared with."""

    runs: Mapping[str, EvalConfig]
    base: str | None = None

    def __post_init__(self) -> None:
        if self.base is not None and self.base not in self.runs:
            raise ConfigError(f"The base {self.base!r} is none of {', '.join(self.runs)}.")
        if self.base is not None and any(run.until == "decided" for run in self.runs.values()):
            raise ConfigError(
                "Runs that are compared with each other run the same trials: leave out "
                "until='decided', which ends each of them at another."
            )
        folders: dict[str, str] = {}
        for name in self.runs:
            other = folders.setdefault(folder_of(name), name)
            if other != name:
                raise ConfigError(
                    f"{other!r} and {name!r} would share the folder {folder_of(name)}."
                )


def folder_of(name: str) -> str:
    """The name of a run's folder."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-")


def load_jobs(path: Path) -> Jobs:
    """The jobs in a file, every one of them checked before any is run."""
    plain = run_config.load_run(path)
    unknown = sorted(set(plain) - {"base", "shared", "runs"})
    if unknown:
        raise ConfigError(
            f"{path} has a section {unknown[0]!r}; it may have 'base', 'shared' and 'runs'."
        )
    shared, runs = plain.get("shared") or {}, plain.get("runs")
    if not isinstance(shared, dict) or not isinstance(runs, dict) or not runs:
        raise ConfigError(f"{path} needs 'runs', a mapping of names to settings.")
    configs = {}
    for name, settings in runs.items():
        if not _NAME.fullmatch(str(name)):
            raise ConfigError(f"{name!r} cannot be a run's name: it names its folder too.")
        if not isinstance(settings or {}, dict):
            raise ConfigError(f"{path}: the run {name!r} must be settings, not {settings!r}.")
        try:
            own = with_protocol(_merged(shared, settings or {}))
            configs[str(name)] = EvalConfig.from_plain(own)
        except HocketError as error:
            raise ConfigError(f"Run {name!r} of {path}: {error}") from error
    base = plain.get("base")
    return Jobs(runs=configs, base=None if base is None else str(base))


def arms_of(plain: Mapping[str, Any], disturbances: str | None) -> Jobs:
    """A run for each pair of a disturbance (and none) and a delay that are named, with everything
    else the same; where that is one run it has no name. The base is undisturbed and without a
    delay; where every run has a delay, it is the undisturbed one with the first, if any is
    disturbed."""
    delays = sweep(str(plain.get("delay", 0)))
    arms = (None,) if disturbances is None else ("", *split_arms(disturbances))
    if len(arms) * len(delays) == 1:
        return Jobs(runs={"": EvalConfig.from_plain(plain)})
    runs, base = {}, None
    for arm, delay in itertools.product(arms, delays):
        words = [] if arm is None else [arm or CLEAN]
        words += [f"delay {delay}"] * (len(delays) > 1)
        name = ", ".join(words)
        own = {**plain, "delay": delay} if len(delays) > 1 else dict(plain)
        runs[name] = EvalConfig.from_plain(own if arm is None else {**own, "perturb": arm})
        is_still = delay != MEASURED and Delays.parse(delay).is_zero
        if not arm and base is None and is_still:
            base = name
    if base is None and disturbances is not None:
        base = next(iter(runs))
    return Jobs(runs=runs, base=base)


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A run's own settings over the shared ones; those of adapters are merged key by key."""
    merged = {**shared, **own}
    for key in ("env_config", "policy_config"):
        if isinstance(shared.get(key), dict) and isinstance(own.get(key), dict):
            merged[key] = {**shared[key], **own[key]}
    return merged


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
