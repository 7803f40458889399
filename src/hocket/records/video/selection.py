"""Which attempts get a video.

A selection is `few` (of each task one success and up to three failures), `none`, `first:N` (the
first N trials of each task, in planned order), `failures` or `all`. What an attempt's sinks are
asked for is a plain mapping, since it travels to workers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hocket.core.contracts.recorder import IMAGES, VIDEO
from hocket.core.data import Episode, Outcome, Trial
from hocket.errors import ConfigError

FAILURES_OF_FEW = 3
"""How many failures of each task the selection `few` has: as many as people look at."""
_TRIALS_OF_FEW = 5
"""Of how many trials of each task `few` chooses where it is filmed while they run: nobody knows
then how they end, and each costs its encoding."""


@dataclass(frozen=True, slots=True)
class VideoSelection:
    """Which episodes are to have a video."""

    kind: Literal["none", "few", "first", "failures", "all"]
    count: int = 0
    """How many of each task, for `first`."""

    @classmethod
    def parse(cls, text: str) -> VideoSelection:
        """The selection that `few`, `none`, `first:N`, `failures` or `all` names."""
        if found := re.fullmatch(r"first:(\d+)", text.strip()):
            return cls("first", int(found[1]))
        for kind in ("none", "few", "failures", "all"):
            if text.strip() == kind:
                return cls(kind)
        raise ConfigError(
            f"video is {text!r}; write few, none, first:N (of each task), failures or all."
        )

    def asked(self, planned: Iterable[Trial]) -> dict[str, str]:
        """What is asked of the sinks before a trial runs, by its id, for those that may need a
        video: `all` keeps it, `failures` keeps it if the trial fails, and `later` keeps the states
        from which it may be made once it is known how the trial ended."""
        if self.kind == "none":
            return {}
        seen: Counter[tuple[str, str]] = Counter()
        asked = {}
        for trial in planned:
            seen[trial.suite, trial.task] += 1
            if found := self._asked(seen[trial.suite, trial.task]):
                asked[trial.id] = found
        return asked

    def _asked(self, nth: int) -> str:
        """What is asked of the nth trial of a task, counted from 1."""
        if self.kind == "few":
            return "all" if nth == 1 else "failures" if nth <= _TRIALS_OF_FEW else "later"
        if self.kind == "first":
            return "all" if nth <= self.count else ""
        return self.kind

    def episodes(self, planned: Iterable[Trial], ended: Iterable[Episode]) -> list[Episode]:
        """The ended episodes that are to have a video, failures first. Errors are not among them:
        of their attempts only what was filmed by then can be kept."""
        chosen = self.asked(planned)
        counts: Counter[tuple[str, str, Outcome]] = Counter()
        found = []
        for episode in ended:
            trial, outcome = episode.trial, episode.outcome
            counts[trial.suite, trial.task, outcome] += 1
            nth = counts[trial.suite, trial.task, outcome]
            if trial.id in chosen and self._is_chosen(outcome, nth):
                found.append(episode)
        return sorted(found, key=lambda episode: episode.outcome is not Outcome.FAILURE)

    def _is_chosen(self, outcome: Outcome, nth: int) -> bool:
        """True if the nth episode of a task with this outcome, counted from 1, is to be filmed."""
        if outcome is Outcome.ERROR:
            return False
        if self.kind == "few":
            return nth <= (FAILURES_OF_FEW if outcome is Outcome.FAILURE else 1)
        return self.kind != "failures" or outcome is Outcome.FAILURE


class VideoPlan:
    """Says what is asked of the sinks in each attempt: the engine's `record` function."""

    def __init__(self, video: VideoSelection, planned: Sequence[Trial], *, images: bool) -> None:
        """`planned` may grow while the run goes on."""
        self._selection = video
        self._planned = planned
        self._counted = -1
        self._asked: dict[str, str] = {}
        self._images = {IMAGES: "all"} if images else {}

    def __call__(self, trial: Trial, attempt: int) -> Mapping[str, Any]:
        if self._counted != len(self._planned):
            self._counted, self._asked = len(self._planned), self._selection.asked(self._planned)
        if trial.id not in self._asked:
            return self._images
        return {VIDEO: self._asked[trial.id], **self._images}
