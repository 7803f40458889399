"""What must hold of a run folder at any moment."""

from __future__ import annotations

from pathlib import Path

from hocket.core.data import Outcome, Trial
from hocket.records.chunks import load_chunks
from hocket.records.ledger.view import LedgerView
from hocket.records.parquet import read_table
from hocket.records.step_rows import KeptStates, load_steps
from support.synthetic_run import episode_of, steps_of


def rows_by_attempt(table: object, column: str) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for row in table.select(["trial", "attempt", column]).to_pylist():  # type: ignore[attr-defined]
        found.setdefault((row["trial"], row["attempt"]), []).append(row[column])
    return found


def states_by_attempt(root: Path) -> dict[tuple[str, int], list[object]]:
    found: dict[tuple[str, int], list[object]] = {}
    for batch in read_table(root, "states", ["trial", "attempt"]):
        for row in batch.to_pylist():
            found.setdefault((row["trial"], row["attempt"]), []).append(row)
    return found


def check_counted(root: Path) -> dict[Trial, int]:
    """Every counted episode is right and has all its rows, once; and there are no other rows.
    The attempts that count."""
    with LedgerView.open(root) as ledger:
        episodes = ledger.episodes()
    steps = rows_by_attempt(load_steps(root), "step")
    chunks = rows_by_attempt(load_chunks(root), "chunk")
    states, kept = states_by_attempt(root), KeptStates(root)
    counted: dict[Trial, int] = {}
    for episode in episodes:
        trial = episode.trial
        assert trial not in counted
        counted[trial] = episode.attempt
        own_steps = steps.pop((trial.id, episode.attempt), [])
        own_chunks = chunks.pop((trial.id, episode.attempt), [])
        own_states = states.pop((trial.id, episode.attempt), [])
        if episode.outcome is Outcome.ERROR:
            continue
        assert episode == episode_of(trial, episode.attempt, episode.files)
        assert own_steps == list(range(steps_of(trial) + 1))
        assert own_chunks == list(range(episode.chunks))
        assert episode.files == ()
        assert own_states == [{"trial": trial.id, "attempt": episode.attempt}]
        found = kept.load(episode)
        assert found is not None
        assert found.tolist() == [[step, trial.seed] for step in range(steps_of(trial) + 1)]
    assert not steps
    assert not states
    assert not chunks
    return counted
