"""Finds out if an env starts as its seed says: the same trial in one env twice, in another, and
after an episode that the policy played."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hocket.core.arrays import first_difference
from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import Array, Row, Trial
from hocket.core.specs import EnvSpec
from hocket.engine.inferring.policy_thread import PolicyThread
from hocket.errors import EnvError, WorkerFailed
from hocket.runs.probe import job_of, row_of, wait_for
from hocket.workers import notices
from hocket.workers.env.spaces import choose
from hocket.workers.fleet import Fleet, FleetConfig

_SEEDS = 3
"""How many seeds are tried: that many equal starts are hardly chance."""
_STEPS, _PLAY_S = 200, 10.0
"""The most steps and seconds that the policy plays between two resets."""
_UNSEEDED = (
    "The env ignores its seed, or draws from random numbers that reset(seed=...) does not seed: no "
    "result of it can be repeated or paired."
)
_STALE = (
    "Its reset leaves something of the episode before, such as a contact, a controller's target or "
    "a buffer: what a trial gives depends on which came before it."
)
Start = dict[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFindings:
    """What the starts of an env showed."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def examine_starts(
    runtime: Runtime,
    worker: WorkerSpec,
    trial: Trial,
    policy: PolicyThread,
    *,
    timeout_s: float = 300.0,
) -> StartFindings:
    """Reset a trial, others with the next seeds and the trial again, then the trial in a new env,
    where the policy plays it before it is reset once more, and compare what is observed. Cameras
    are left out where the env observes anything else."""
    others = [trial._replace(seed=trial.seed + more) for more in range(1, _SEEDS)]
    trials = [trial, trial, *others, trial]
    blind = replace(worker, reads=None, cameras=(), history=1)
    # The policy is shown what it reads; no more of that is compared than of the others.
    seeing = replace(worker, reads=None)
    try:
        starts = _reset(runtime, blind, trials, timeout_s)
        if not starts[0]:
            blind = seeing = replace(blind, cameras=None, history=worker.history)
            starts = _reset(runtime, blind, trials, timeout_s)
        first, again, *different, later = starts
        play = partial(_play, policy=policy, reads=worker.reads, timeout_s=timeout_s)
        pair = _reset(runtime, seeing, [trial, trial], timeout_s, play)
    except (EnvError, WorkerFailed) as error:
        return StartFindings(problems=(str(error),))
    is_stacked = seeing.history > blind.history
    anew, played = (
        {key: array[-1] if is_stacked else array for key, array in start.items() if key in first}
        for start in pair
    )
    for when, one, other, why in (
        ("reset again", first, again, _UNSEEDED),
        ("reset after others", first, later, _UNSEEDED),
        ("in a new env", first, anew, _UNSEEDED),
        ("after an episode of the policy's", anew, played, _STALE),
    ):
        if key := first_difference(one, other):
            return StartFindings(
                problems=(
                    f"The same trial does not start the same: {key} of seed {trial.seed} differs "
                    f"{when}. {why}",
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
    runtime: Runtime,
    worker: WorkerSpec,
    trials: Sequence[Trial],
    timeout_s: float,
    play: Callable[[Fleet, Row], None] = lambda *_: None,
) -> list[Start]:
    """What a new env observes when it is reset for each of these trials in turn, and played in
    between."""
    found: list[Start] = []
    spec: EnvSpec | None = None
    with Fleet(runtime, worker, FleetConfig(lanes=1, start_timeout_s=timeout_s)) as fleet:
        fleet.start()
        wait_for(fleet, notices.LanesUp, timeout_s)
        for attempt, trial in enumerate(trials):
            fleet.begin([0], [attempt], [trial], [None], final_observation=False, record=[{}])
            begun = wait_for(fleet, notices.LanesBegun, timeout_s)
            found.append({key: np.array(array) for key, array in fleet.arrays(0).items()})
            spec = spec or begun.spec
            assert spec is not None  # a new worker always tells
            if attempt + 1 < len(trials):
                play(fleet, replace(row_of(trial, begun.prompts[0], spec), attempt=attempt))
    return found


def _play(
    fleet: Fleet, row: Row, policy: PolicyThread, reads: tuple[str, ...] | None, timeout_s: float
) -> None:
    """Let the policy, which `reads` some of what is observed, play on from here for a while."""
    steps, until = 0, time.perf_counter() + _PLAY_S
    while steps < _STEPS and time.perf_counter() < until:
        job = job_of(choose(fleet.arrays(0), reads), row)
        if (chunk := policy.answer(job).chunks[0]) is None:
            break
        fleet.execute([0], [row.attempt], [row.chunk], [chunk.actions])
        made = wait_for(fleet, notices.LanesExecuted, timeout_s)
        steps += made.steps[0]
        if made.ends[0]:
            break
        row = replace(row, chunk=row.chunk + 1)
    policy.end_session(row.session)
