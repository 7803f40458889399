"""Which attempts are reset twice, to see whether an env starts as its seed says."""

from __future__ import annotations

from collections import Counter

from hocket.engine.trials import LaneState

MOST = 2
"""Attempts of a suite that are asked, where the first is lost before it tells: an env that cannot
be reset twice in a row costs no more."""


class StartChecks:
    """Asks the first attempt of each suite, or the next where that is lost."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self._asked: dict[str, LaneState | None] = {}
        """By suite: the attempt that was asked, None once it has told."""
        self._times: Counter[str] = Counter()

    def ask(self, state: LaneState) -> bool:
        """True if an attempt that is to begin is to be reset twice."""
        suite = state.trial.suite
        if not self._is_on or suite in self._asked or self._times[suite] >= MOST:
            return False
        self._asked[suite] = state
        self._times[suite] += 1
        return True

    def hear(self, state: LaneState) -> bool:
        """Take note that an attempt has told; false where it was not the one that was asked."""
        is_asked = self._asked.get(state.trial.suite) is state
        if is_asked:
            self._asked[state.trial.suite] = None
        return is_asked

    def release(self, state: LaneState) -> None:
        """Take note that an attempt is over: if it has not told, another is asked."""
        if self._asked.get(state.trial.suite) is state:
            del self._asked[state.trial.suite]
