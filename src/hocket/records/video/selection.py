"""Which episodes get a video.

A selection is `few` (of each task one success and up to three failures), `none`, `first:N` (the
first N trials of each task, in planned order), `failures` or `all`. What an attempt's sinks are
asked for is a plain mapping, since it travels to workers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hocket.core.data import Episode, Outcome, Trial
from hocket.errors import ConfigError
from hocket.records.ledger.episodes import OUTCOMES, Episodes

FAILURES_OF_FEW = 3
"""How many failures of each task the selection `few` has: as many as people look at."""


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
        video, as `VIDEO` says it."""
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
            return "any"
        if self.kind == "first":
            return "all" if nth <= self.count else ""
        return self.kind

    def episodes(self, planned: Iterable[Trial], ended: Iterable[Episode]) -> list[Episode]:
        """The ended episodes that are to have a video, failures first. Errors are not among them:
        of their attempts only what was filmed by then can be kept."""
        if self.kind == "none":
            return []
        known, counts, rows = Episodes.of(ended), Counter[tuple[int, int]](), []
        columns = (known.trials.kind.tolist(), known.columns["outcome"].tolist())
        for row, key in enumerate(zip(*columns, strict=True)):
            counts[key] += 1
            if self.chooses(OUTCOMES[key[1]], counts[key]):
                rows.append(row)
        found = known.at(rows)
        if self.kind == "first":
            chosen = self.asked(planned)
            found = [episode for episode in found if episode.trial.id in chosen]
        return sorted(found, key=lambda episode: episode.outcome is not Outcome.FAILURE)

    def chooses(self, outcome: Outcome, nth: int) -> bool:
        """True if the nth episode of a task with this outcome, counted from 1, is to be filmed."""
        if outcome is Outcome.ERROR:
            return False
        if self.kind == "few":
            return nth <= (FAILURES_OF_FEW if outcome is Outcome.FAILURE else 1)
        return self.kind != "failures" or outcome is Outcome.FAILURE
