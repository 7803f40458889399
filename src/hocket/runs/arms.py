"""Many runs to be made: those of a file (checkpoints times suites), or one for each disturbance and
delay that a command line names, with a base to pair them with.

    base: reference              # optional: the run that the others are compared with
    shared:                      # settings of every run
      env: metaworld:mt10
      episodes: 50
    runs:
      reference: {policy: reference}
      replanned: {policy: reference, replan: 4}
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.engine.delays import MEASURED, Delays, sweep
from hocket.errors import ConfigError, HocketError
from hocket.records import run_file as run_config
from hocket.runs.config import EvalConfig
from hocket.runs.protocols import with_protocol
from hocket.workers.env.factors import split_arms

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
