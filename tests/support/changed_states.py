"""Runs whose states are not what they were."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

from hocket.core.data import Array
from hocket.records.folder import RunFolder
from hocket.records.ledger.view import LedgerView
from hocket.records.step_rows import KeptStates
from hocket.workers.sinks.states import FILE, save_states


def change_states(root: Path, trial: str, change: Callable[[Array], None]) -> None:
    """Change the states of a trial's episode. A file counts more than the table does."""
    folder = RunFolder.at(root)
    with LedgerView.open(folder) as ledger:
        (episode,) = [one for one in ledger.episodes() if one.trial.id == trial]
    states = KeptStates(folder).load(episode)
    assert states is not None
    change(states)
    place = folder.attempt(episode.trial, episode.attempt)
    place.mkdir(parents=True, exist_ok=True)
    save_states(place / FILE, states)


def drop_states(root: Path) -> None:
    """Let a run have no states any more."""
    with contextlib.closing(sqlite3.connect(RunFolder.at(root).ledger)) as ledger, ledger:
        assert ledger.execute("DELETE FROM segments WHERE name LIKE 'states/%'").rowcount > 0
