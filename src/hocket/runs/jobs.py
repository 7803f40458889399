"""Makes many runs with one warm fleet, each in its folder, and one table of all.

A run that cannot be made does not stop the others. The same command again goes on where the last
one stopped: finished runs stay, an unfinished one is resumed, and one that failed is tried again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from hocket.core.contracts.recorder import Reader
from hocket.engine.delays import MEASURED
from hocket.errors import ConfigError, HocketError
from hocket.records.folder import RunFolder
from hocket.results.arms import Arm, ArmTable
from hocket.runs.arms import Jobs, folder_of
from hocket.runs.config import EvalConfig
from hocket.runs.elsewhere import Elsewhere
from hocket.runs.run import Run
from hocket.workers.fleet import Fleets


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
    own = folder / arm.folder
    try:
        if RunFolder.at(own).ledger.exists():
            run = Run.open(own)
            _refuse_changed(config, run.config, own)
        else:
            run = Run.new(config, own)
        with run, contextlib.ExitStack() as stack:
            followers = readers()
            for reader in followers:
                stack.callback(reader.close)
            report = run.finish(readers=followers, fleets=fleets, elsewhere=elsewhere)
    except HocketError as error:
        return dataclasses.replace(arm, error=f"{type(error).__name__}: {error}")
    return dataclasses.replace(arm, report=report)


def _refuse_changed(config: EvalConfig, found: EvalConfig, folder: Path) -> None:
    asked = config
    if asked.delay == MEASURED:  # what was measured when the run began
        asked = dataclasses.replace(asked, delay=found.delay)
    for field in dataclasses.fields(EvalConfig):
        ours, theirs = getattr(asked, field.name), getattr(found, field.name)
        if ours != theirs:
            raise ConfigError(
                f"{folder} holds a run with another {field.name}: {theirs!r}, now {ours!r}. Give "
                f"the run another name, or remove the folder."
            )
