"""The trials that a site has leases of, handed to its engine."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hocket.core.data import Trial
from hocket.engine.trials import TrialQueue
from hocket.machines.leasing.entries import LeaseId
from hocket.machines.protocol import Grant


class LeasedTrials(TrialQueue):
    """A queue that is filled from another thread while the engine's thread takes from it. What
    comes lies in an inbox, which the engine's thread empties."""

    def __init__(self, on_returned: Callable[[LeaseId], None]) -> None:
        """`on_returned` is called, on the engine's thread, with each lease that was asked back and
        had not begun."""
        super().__init__()
        self._on_returned = on_returned
        self._inbox: deque[Callable[[], None]] = deque()
        self._coming: dict[LeaseId, None] = {}
        """Leases that lie in the inbox."""
        self._is_open = True
        self._unbegun: dict[Trial, deque[LeaseId]] = {}
        self._held: dict[tuple[Trial, int], tuple[LeaseId, Mapping[str, Any]]] = {}

    # -- for any thread ------------------------------------------------------------------------

    def lease(self, grants: Iterable[Grant]) -> None:
        """Take further leases."""
        for grant in grants:
            self._coming[LeaseId(*grant[:2])] = None
            self._inbox.append(functools.partial(self._take, grant))

    def ask_back(self, leases: Iterable[LeaseId]) -> None:
        """Give leases back that have not begun."""
        self._inbox.extend(functools.partial(self._return, name) for name in leases)

    def call(self, work: Callable[[], None]) -> None:
        """Call a function on the engine's thread, before it looks for a trial again."""
        self._inbox.append(work)

    def close(self) -> None:
        """Take no more: the engine ends with what it has begun."""
        self._is_open = False

    def held(self) -> list[LeaseId]:
        """All leases that have not ended."""
        # The inbox first: what leaves it meanwhile is then in both lists, and never in neither.
        return [*list(self._coming), *(name for name, _ in list(self._held.values()))]

    # -- for the engine's thread ---------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._is_open

    def refresh(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def number(self, trial: Trial) -> int:
        return self._unbegun[trial].popleft().attempt

    def name(self, trial: Trial, attempt: int) -> LeaseId:
        """The lease of an attempt."""
        return self._held[trial, attempt][0]

    def record(self, trial: Trial, attempt: int) -> Mapping[str, Any]:
        """What sinks are asked to record of an attempt."""
        return self._held[trial, attempt][1]

    def end(self, trial: Trial, attempt: int) -> None:
        """Forget an attempt that has ended, once its outcome was told."""
        del self._held[trial, attempt]

    def _take(self, grant: Grant) -> None:
        index, attempt, fields, record = grant
        trial, name = Trial(*fields), LeaseId(index, attempt)
        if (trial, attempt) not in self._held:
            self._held[trial, attempt] = (name, record)
            self._unbegun.setdefault(trial, deque()).append(name)
            self.add([trial])
        self._coming.pop(name, None)

    def _return(self, name: LeaseId) -> None:
        for trial, waiting in self._unbegun.items():
            if name in waiting:
                waiting.remove(name)
                self._waiting[trial.suite, trial.task].remove(trial)
                self._left -= 1
                self._on_returned(name)
                self._held.pop((trial, name.attempt))
                return
