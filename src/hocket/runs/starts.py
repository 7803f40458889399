"""Whether an env starts as its seed says: the same trial in one env twice, and in another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import Array, Trial
from hocket.errors import EnvError, SeedIgnoredError, WorkerFailed
from hocket.runs.probe import wait_for
from hocket.workers import inbox as notices
from hocket.workers.env.host import TWICE
from hocket.workers.fleet import Fleet, FleetConfig

_SEEDS = 3
"""How many seeds are tried: that many equal starts are hardly chance."""
_UNUSED = 1 << 24
"""The number of what is no attempt of a run."""
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
        if key := _difference(first, start):
            return StartFindings(
                problems=(
                    f"The same trial does not start the same: {key} of seed {trial.seed} differs "
                    f"{when}. The env ignores its seed, or draws from random numbers that "
                    "reset(seed=...) does not seed: no result of it can be repeated or paired.",
                )
            )
    if all(_difference(first, start) is None for start in different):
        seeds = f"{trial.seed} to {trial.seed + _SEEDS - 1}"
        return StartFindings(
            warnings=(
                f"Seeds {seeds} give the same start. Where starts are meant to differ, the env "
                "ignores its seed, and trials of one task are one trial repeated.",
            )
        )
    return StartFindings()


def unseeded_suites(fleet: Fleet, trials: Sequence[Trial], timeout_s: float) -> list[str]:
    """The suites whose envs start otherwise when one trial is reset twice, in a worker of a fleet
    that has nothing to do. One that cannot be reset now is not judged. The fleet is idle after."""
    found = []
    for suite in dict.fromkeys(trial.suite for trial in trials):
        some = [trial for trial in trials if trial.suite == suite]
        # The env that the worker has built saves building another.
        trial = next((t for t in some if (t.suite, t.task) == fleet.live(0)), some[0])
        record = [{TWICE: True}]
        fleet.begin([0], [_UNUSED], [trial], [None], final_observation=False, record=record)
        if _is_refused(fleet, timeout_s):
            found.append(suite)
        fleet.discard([0], [_UNUSED])
    return found


def _is_refused(fleet: Fleet, timeout_s: float) -> bool:
    """Whether the worker of lane 0 answers that the second reset differs."""
    deadline = time.monotonic() + timeout_s
    while (left := deadline - time.monotonic()) > 0:
        for notice in fleet.poll(min(left, 0.1)):
            if isinstance(notice, notices.LanesReady):
                return False
            if isinstance(notice, notices.LaneFailed):
                return notice.kind == SeedIgnoredError.__name__
    return False


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
            wait_for(fleet, notices.LanesReady, timeout_s)
            found.append({key: np.array(array) for key, array in fleet.arrays(0).items()})
    return found


def _difference(one: Start, other: Start) -> str | None:
    """The first key of which two starts differ, to the bit."""
    for key in sorted({*one, *other}):
        a, b = one.get(key), other.get(key)
        if a is None or b is None or a.shape != b.shape or a.tobytes() != b.tobytes():
            return key
    return None
