"""What attempts leave that end in an error: their videos, steps and states up to then.

A worker whose env raises seals what it has. One that dies leaves hidden files: a video that plays
up to its last fragment, and spills of steps and states, a few milliseconds old at most. Whoever
finds them makes whole files of what can be read, and deletes the rest. They lie in the attempt's
folder, belong to no episode, and count in no statistic.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.contracts.recorder import ROWS, SPILL
from hocket.core.data import Episode, Outcome, Trial
from hocket.errors import HocketError, RunFolderError
from hocket.records.folder import RunFolder
from hocket.records.ledger.view import LedgerView
from hocket.records.step_rows import parse_steps
from hocket.system.durable import TEMPORARY
from hocket.workers.notices import WorkerFault
from hocket.workers.sinks.encoder import finish_draft, frames_in
from hocket.workers.sinks.spill import is_spill, read_spill
from hocket.workers.sinks.states import FILE as STATES
from hocket.workers.sinks.states import ROWS_FILE as STATES_ROWS
from hocket.workers.sinks.states import load_states, save_states
from hocket.workers.sinks.steps import ERROR_FILE as STEPS
from hocket.workers.sinks.steps import join_portions, load_error_steps, save_error_steps
from hocket.workers.sinks.video import finish_reel

KILLED = "The run was killed while this attempt ran."
_FAULTS = {fault.value for fault in WorkerFault}


def crash_kind(error: str) -> str:
    """What alike crashes share: the exception's name, or how the worker ended (the signal)."""
    head = error.partition("\n")[0]
    name = head.partition(":")[0]
    return re.sub(r"\d+", "#", head) if name in _FAULTS else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is kept of an attempt that was lost."""

    trial: Trial
    attempt: int
    error: str
    files: tuple[str, ...]
    """Relative to the run folder."""

    def episode(self, folder: RunFolder) -> Episode | None:
        """The attempt as an episode to be filmed from its states; None where there are none."""
        path = folder.attempt(self.trial, self.attempt) / STATES
        if not path.is_file():
            return None
        steps = len(load_states(path)) - 1
        return Episode(self.trial, self.attempt, Outcome.ERROR, steps, 0.0, error=self.error)

    def to_json(self) -> dict[str, Any]:
        return {
            "trial": self.trial.id,
            "attempt": self.attempt,
            "error": self.error,
            "folder": f"episodes/{self.trial.slug}/{self.attempt}",
        }


def kept_evidence(ledger: LedgerView) -> list[Evidence]:
    """What a run's folder holds of attempts that are no episode, or whose episode is an ERROR, in
    planned order. Those of a run under way are among them."""
    errors = {(f.trial, f.attempt): f.error for f in ledger.failures()}
    found = []
    for trial, attempt, folder, episode in ledger.attempt_folders():
        if episode is not None and episode.outcome is not Outcome.ERROR:
            continue
        files = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
        if files:
            names = tuple(path.relative_to(ledger.folder.root).as_posix() for path in files)
            error = errors.get((trial, attempt), KILLED)
            found.append(Evidence(trial=trial, attempt=attempt, error=error, files=names))
    return found


def salvage(folder: Path) -> list[Path]:
    """Make whole files of what a lost attempt left in its folder, and delete what cannot be read;
    gives the files. Nobody may be writing there any more."""
    if not folder.is_dir():
        return []
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(OSError):
            if not _is_readable(path) and not path.is_dir():
                path.unlink(missing_ok=True)
    return sorted(folder.iterdir())


def _is_readable(path: Path) -> bool:
    """True if a file is to stay as it is. What is unfinished, but can be read, is finished under
    another name."""
    try:
        if is_spill(path, STATES):
            save_states(path.with_name(STATES), np.concatenate(read_spill(path)))
        elif is_spill(path, STEPS):
            save_error_steps(path.with_name(STEPS), *join_portions(read_spill(path)))
        elif path.name == STATES_ROWS:
            load_states(path)
            path.replace(path.with_name(STATES))
        elif path.suffix == ROWS:
            save_error_steps(path.with_name(STEPS), *parse_steps(path.read_bytes()))
        elif path.name.endswith(f".mp4{SPILL}{TEMPORARY}"):
            finish_reel(path)
        elif path.suffix == TEMPORARY:
            finish_draft(path)
        else:
            _check(path)
            return True
    except (HocketError, OSError, ValueError):
        return False
    return False


def _check(path: Path) -> None:
    """Raise where a file cannot be read that hocket itself makes."""
    if path.name == STATES:
        load_states(path)
    elif path.name == STEPS:
        load_error_steps(path)
    elif path.suffix in (".mp4", ".m4v") and not frames_in(path):
        raise RunFolderError(f"{str(path)!r} has no frame.")


class Salvage:
    """Keeps what can be read of the attempts that a killed run lost, `most` in all."""

    def __init__(self, ledger: LedgerView, most: int) -> None:
        self._most = most
        self._kept = 0
        # Attempts that ended as ERROR are not swept, and have what they have.
        for _, _, folder, episode in ledger.attempt_folders():
            if episode is not None and episode.outcome is Outcome.ERROR:
                self._kept += any(not path.name.startswith(".") for path in folder.iterdir())

    def __call__(self, folder: Path) -> bool:
        is_kept = self._kept < self._most and bool(salvage(folder))
        self._kept += is_kept
        return is_kept
