"""What the policy answered in episodes that are filmed: whole chunks, executed or not, and when
they were asked for. They lie in `answers.npz` beside the films."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hocket.core.data import Array, Trial
from hocket.core.events import AttemptFailed, BatchInferred, Event
from hocket.system.durable import drafted
from hocket.workers.sinks.video import ANSWERS_FILE


class Answer(NamedTuple):
    """One chunk that the policy gave."""

    chunk: int
    asked: int
    """The step whose observation it answers."""
    requested: float
    """When that observation had come, in seconds since the run's leg began."""
    delivered: float
    """When the lane was given the chunk."""
    actions: Array
    """`[T, A]`, float32."""


class Answers:
    """A reader that gathers the answers to attempts under way, and saves those that are wanted."""

    hears = (BatchInferred, AttemptFailed)

    def __init__(self, is_wanted: Callable[[Trial, int], bool]) -> None:
        """`is_wanted` is asked of attempts under way."""
        self._is_wanted = is_wanted
        self._of: dict[tuple[Trial, int], list[Answer]] = {}

    def on(self, event: Event) -> None:
        if isinstance(event, AttemptFailed):
            self.forget(event.trial, event.attempt)
        if not isinstance(event, BatchInferred):
            return
        for i, chunk in enumerate(event.delivered):
            trial, attempt = event.trials[i], event.attempts[i]
            if chunk is None or not self._is_wanted(trial, attempt):
                continue
            actions = np.array(chunk.actions, np.float32)
            answer = Answer(event.chunks[i], event.asked[i], event.ready[i], event.time, actions)
            self._of.setdefault((trial, attempt), []).append(answer)

    def forget(self, trial: Trial, attempt: int) -> None:
        self._of.pop((trial, attempt), None)

    def save(self, trial: Trial, attempt: int, folder: Path) -> bool:
        """Save the answers to an attempt in its folder; false where there are none."""
        some = self._of.pop((trial, attempt), None)
        if not some:
            return False
        longest = max(len(each.actions) for each in some)
        actions = np.full((len(some), longest, some[0].actions.shape[1]), np.nan, np.float32)
        for row, each in zip(actions, some, strict=True):
            row[: len(each.actions)] = each.actions
        names = Answer._fields[:-1]
        columns = {name: np.array([getattr(each, name) for each in some]) for name in names}
        folder.mkdir(parents=True, exist_ok=True)
        with drafted(folder / ANSWERS_FILE, is_durable=False) as draft, open(draft, "wb") as file:
            np.savez(file, allow_pickle=False, actions=actions, **columns)
        return True

    def close(self) -> None: ...


def load_answers(folder: Path) -> dict[str, Array]:
    """The answers in an attempt's folder: `actions` `[n, T, A]`, NaN behind the end of a shorter
    chunk, and of each its `chunk`, `asked`, `requested` and `delivered`; empty where none are."""
    try:
        with np.load(folder / ANSWERS_FILE, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except FileNotFoundError:
        return {}
