"""What attempts leave that end in an error: their videos, steps and states up to then.

A worker whose env raises seals what it has. One that dies leaves hidden files: a video that plays
up to its last fragment, and spills of steps and states, a few milliseconds old at most. Whoever
finds them makes whole files of what can be read, and deletes the rest. They lie in the attempt's
folder, belong to no episode, and count in no statistic.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.contracts.recorder import EVIDENCE, ROWS
from hocket.core.data import Episode, Outcome, Trial
from hocket.core.events import AttemptFailed, Event
from hocket.errors import HocketError, RunFolderError
from hocket.records.folder import RunFolder
from hocket.records.ledger.view import LedgerView
from hocket.records.step_rows import parse_steps
from hocket.system.durable import TEMPORARY
from hocket.workers.sinks.encoder import finish_draft, frames_in
from hocket.workers.sinks.spill import is_spill, read_spill
from hocket.workers.sinks.states import FILE as STATES
from hocket.workers.sinks.states import ROWS_FILE as STATES_ROWS
from hocket.workers.sinks.states import load_states, save_states
from hocket.workers.sinks.steps import ERROR_FILE as STEPS
from hocket.workers.sinks.steps import join_portions, load_error_steps, save_error_steps

KILLED = "The run was killed while this attempt ran."


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
    """What a run's folder holds of attempts that were lost, in planned order."""
    errors = {(f.trial, f.attempt): f.error for f in ledger.failures()}
    found = []
    for trial, attempt, folder in lost_attempts(ledger):
        files = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
        if files:
            names = tuple(path.relative_to(ledger.folder.root).as_posix() for path in files)
            error = errors.get((trial, attempt), KILLED)
            found.append(Evidence(trial=trial, attempt=attempt, error=error, files=names))
    return found


def lost_attempts(ledger: LedgerView) -> Iterator[tuple[Trial, int, Path]]:
    """The folders of attempts that are no episode, or whose episode is an ERROR, in planned order.
    Those of a run under way are among them."""
    if not ledger.folder.episodes.is_dir():
        return
    counted = {e.trial: e.attempt for e in ledger.episodes() if e.outcome is not Outcome.ERROR}
    for trial in ledger.trials():
        folder = ledger.folder.episodes / trial.slug
        if not folder.is_dir():
            continue
        numbers = sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
        for number in numbers:
            if counted.get(trial) != number:
                yield trial, number, folder / str(number)


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


class EvidencePlan:
    """Asks attempts to leave evidence if they are lost, until enough have; a reader too."""

    hears = (AttemptFailed,)

    def __init__(
        self,
        asked: Callable[[Trial, int], Mapping[str, Any]],
        folder: RunFolder,
        *,
        most: int,
        kept: Sequence[Evidence] = (),
    ) -> None:
        """`asked` says what else is asked of an attempt's sinks."""
        self._asked = asked
        self._folder = folder
        self._left = most - len(kept)

    def __call__(self, trial: Trial, attempt: int) -> Mapping[str, Any]:
        asked = self._asked(trial, attempt)
        return {**asked, EVIDENCE: True} if self._left > 0 else asked

    def on(self, event: Event) -> None:
        if not isinstance(event, AttemptFailed):
            return
        folder = self._folder.attempt(event.trial, event.attempt)
        if self._left > 0 and salvage(folder):
            self._left -= 1
        else:
            # Several lanes may fail at once, each asked for when there was room.
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()

    def close(self) -> None: ...


class Salvage:
    """Keeps what can be read of the attempts that a killed run lost, `most` in all."""

    def __init__(self, ledger: LedgerView, most: int) -> None:
        self._most = most
        self._kept = 0
        # Attempts that ended as ERROR are not swept, and have what they have.
        errors = {e.trial: e.attempt for e in ledger.episodes() if e.outcome is Outcome.ERROR}
        for evidence in kept_evidence(ledger):
            self._kept += errors.get(evidence.trial) == evidence.attempt

    def __call__(self, folder: Path) -> bool:
        is_kept = self._kept < self._most and bool(salvage(folder))
        self._kept += is_kept
        return is_kept
