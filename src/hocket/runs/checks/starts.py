"""Finds out if an env starts as its seed says: the same trial in one env twice, and in another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hocket.core.arrays import first_difference
from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import Array, Trial
from hocket.errors import EnvError, WorkerFailed
from hocket.runs.probe import wait_for
from hocket.workers import notices
from hocket.workers.fleet import Fleet, FleetConfig

_SEEDS = 3
"""How many seeds are tried: that many equal starts are hardly chance."""
Start = dict[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFindings:
    """What the starts of an env showed."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def examine_starts(
    runtime: Runtime, worker: WorkerSpec, trial: Trial, *, timeout_s: float = 300.0
) -> StartFindings:
    """Reset a trial, others with the next seeds and the trial again, then the trial in a new env,
    and compare what is observed. Cameras are left out where the env observes anything else."""
    others = [trial._replace(seed=trial.seed + more) for more in range(1, _SEEDS)]
    blind = replace(worker, reads=None, cameras=(), history=1)
    try:
        starts = _reset(runtime, blind, [trial, trial, *others, trial], timeout_s)
        if not starts[0]:
            blind = replace(blind, cameras=None)
            starts = _reset(runtime, blind, [trial, trial, *others, trial], timeout_s)
        starts += _reset(runtime, blind, [trial], timeout_s)
    except (EnvError, WorkerFailed) as error:
        return StartFindings(problems=(str(error),))
    first, again, *different, later, anew = starts
    for when, start in (
        ("reset again", again),
        ("reset after others", later),
        ("in a new env", anew),
    ):
        if key := first_difference(first, start):
            return StartFindings(
                problems=(
                    f"The same trial does not start the same: {key} of seed {trial.seed} differs "
                    f"{when}. The env ignores its seed, or draws from random numbers that "
                    "reset(seed=...) does not seed: no result of it can be repeated or paired.",
                )
            )
    if all(first_difference(first, start) is None for start in different):
        seeds = f"{trial.seed} to {trial.seed + _SEEDS - 1}"
        return StartFindings(
            warnings=(
                f"Seeds {seeds} give the same start. Where starts are meant to differ, the env "
                "ignores its seed, and trials of one task are one trial repeated.",
            )
        )
    return StartFindings()


def _reset(
    runtime: Runtime, worker: WorkerSpec, trials: Sequence[Trial], timeout_s: float
) -> list[Start]:
    """What a new env observes when it is reset for each of these trials in turn."""
    found: list[Start] = []
    with Fleet(runtime, worker, FleetConfig(lanes=1, start_timeout_s=timeout_s)) as fleet:
        fleet.start()
        wait_for(fleet, notices.LanesUp, timeout_s)
        for attempt, trial in enumerate(trials):
            fleet.begin([0], [attempt], [trial], [None], final_observation=False, record=[{}])
            wait_for(fleet, notices.LanesBegun, timeout_s)
            found.append({key: np.array(array) for key, array in fleet.arrays(0).items()})
    return found
