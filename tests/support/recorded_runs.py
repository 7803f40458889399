"""Run folders with outcomes that a test chooses, written by the real ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.data import Chunk, Episode, Outcome, Trial
from hocket.core.events import (
    AttemptFailed,
    AttemptsBegan,
    BatchInferred,
    ChunksExecuted,
    EpisodesSealed,
    RunEnded,
)
from hocket.records.chunks import ChunkRows
from hocket.records.ledger.ledger import Ledger
from hocket.records.ledger.writer import LedgerConfig
from hocket.records.run_file import save_run

Choice = Callable[[Trial], Outcome]
SUCCESS, FAILURE, FINISHED, ERROR = Outcome

STEPS, INFER_S, EXECUTE_S, OBSERVE_S, RESET_S = 8, 0.25, 0.5, 0.125, 1.0
"""The steps and the times of every chunk, and the time to reset before every episode."""
TRACE = "Traceback (most recent call last):\n  File 'env.py', line 3\nRuntimeError: broke at 0x{}"


def plan(tasks: Sequence[str], seeds: int, *, suite: str = "toy") -> list[Trial]:
    return [Trial(suite=suite, task=task, seed=seed) for seed in range(seeds) for task in tasks]


def episode_of(trial: Trial, outcome: Outcome, *, chunks: int = 2) -> Episode:
    is_error = outcome is ERROR
    return Episode(
        trial=trial,
        attempt=0,
        outcome=outcome,
        steps=0 if is_error else STEPS * chunks,
        total_reward=0.0 if is_error else float(trial.seed),
        terminated=outcome is SUCCESS,
        truncated=outcome is FAILURE,
        chunks=0 if is_error else chunks,
        error=TRACE.format(trial.seed) if is_error else None,
        seconds=0.0 if is_error else chunks * (INFER_S + EXECUTE_S),
    )


def record_run(
    folder: Path,
    trials: Sequence[Trial],
    outcome: Choice,
    *,
    config: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    ended: int | None = None,
    chunks: int = 2,
) -> Path:
    """A run on one lane, of which the first `ended` trials have ended (None: all)."""
    settings = {"env": ["toy"], "policy": "scripted", "env_config": {}, **(config or {})}
    said = {"exactness": "bitwise", "command": ["/bin/hocket", "eval"], **(about or {})}
    ledger = Ledger.create(folder, trials, {"config": settings}, config=LedgerConfig(group_s=0.01))
    save_run(folder, settings, about=said)
    with ledger:
        ledger.attach(ChunkRows(leg=ledger.leg))
        play(ledger, trials[:ended], outcome, chunks)
    return folder


def play(ledger: Ledger, trials: Sequence[Trial], outcome: Choice, chunks: int) -> None:
    """Everything that happens in a run, as its engine would tell it."""
    now, batch = 0.0, 0
    for trial in trials:
        same: dict[str, Any] = {"lanes": [0], "trials": [trial], "attempts": [0]}
        ledger.on(AttemptsBegan(time=now, **same))
        found = episode_of(trial, outcome(trial), chunks=chunks)
        now += RESET_S
        for chunk in range(found.chunks):
            batch += 1
            now = _chunk(ledger, now, batch, chunk, same)
        if found.error is not None:
            ledger.on(
                AttemptFailed(
                    time=now, lane=0, trial=trial, attempt=0, error=found.error, again=False
                )
            )
        ledger.on(EpisodesSealed(time=now, episodes=[found]))
    ledger.on(RunEnded(time=now, complete=True, notes={}))


def _chunk(ledger: Ledger, now: float, batch: int, chunk: int, same: dict[str, Any]) -> float:
    inferred = now + INFER_S
    ledger.on(
        BatchInferred(
            time=inferred,
            batch=batch,
            began=now,
            ended=inferred,
            chunks=[chunk],
            delivered=[Chunk(actions=np.zeros((STEPS, 2)), version=0, source="here")],
            ready=[now],
            size=1,
            **same,
        )
    )
    ledger.on(
        ChunksExecuted(
            time=inferred + EXECUTE_S,
            chunks=[chunk],
            steps=[STEPS],
            rewards=[np.zeros(STEPS)],
            terminated=[False],
            truncated=[False],
            busy=[EXECUTE_S],
            observed=[OBSERVE_S],
            final=[None],
            **same,
        )
    )
    return inferred + EXECUTE_S
