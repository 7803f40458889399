"""Which attempts get video, and how that is asked of sinks.

`none`, `first:N` (the first N trials of each task, in planned order), `failures`, `all`. What an
attempt's sinks are asked for is a plain mapping, since it travels to workers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hocket.core.data import Episode, Outcome, Trial
from hocket.errors import ConfigError

VIDEO = "video"
"""Asks for a video: `all` keeps it, `failures` keeps it where the episode failed."""
IMAGES = "images"
"""Asks for every picture, lossless."""
RESTORED = "restored"
"""True where a worker shows stored states instead of running the episode."""
OUTCOME = "outcome"
STEPS = "steps"
"""The outcome and the length, where the episode has ended before it is rendered."""


def is_rendered_later(abilities: Collection[str]) -> bool:
    """Whether an env can show an episode again: from its states, observed without a step. Rows of
    a batched simulator are rendered while they run."""
    return {"snapshot", "deferred"} <= set(abilities) and "batched" not in abilities


@dataclass(frozen=True, slots=True)
class VideoSelection:
    """Which episodes are to have a video."""

    kind: Literal["none", "first", "failures", "all"]
    count: int = 0
    """How many of each task, for `first`."""

    @classmethod
    def parse(cls, text: str) -> VideoSelection:
        """The selection that `none`, `first:N`, `failures` or `all` names."""
        if found := re.fullmatch(r"first:(\d+)", text.strip()):
            return cls("first", int(found[1]))
        for kind in ("none", "failures", "all"):
            if text.strip() == kind:
                return cls(kind)
        raise ConfigError(
            f"video is {text!r}; write none, first:N (of each task), failures or all."
        )

    def trials(self, planned: Iterable[Trial]) -> set[str]:
        """The ids of the trials that may need a video, as far as is known before they run."""
        if self.kind == "none":
            return set()
        seen: Counter[tuple[str, str]] = Counter()
        chosen = set()
        for trial in planned:
            seen[trial.suite, trial.task] += 1
            if self.kind != "first" or seen[trial.suite, trial.task] <= self.count:
                chosen.add(trial.id)
        return chosen

    def episodes(self, planned: Iterable[Trial], ended: Iterable[Episode]) -> list[Episode]:
        """The ended episodes that are to have a video. Errors have none: what happened in their
        attempts is lost."""
        chosen = self.trials(planned)
        return [
            episode
            for episode in ended
            if episode.trial.id in chosen
            and episode.outcome is not Outcome.ERROR
            and (self.kind != "failures" or episode.outcome is Outcome.FAILURE)
        ]


class VideoPlan:
    """Says what is asked of the sinks in each attempt: the engine's `record` function."""

    def __init__(self, video: VideoSelection, planned: Sequence[Trial], *, images: bool) -> None:
        """`planned` may grow while the run goes on."""
        self._selection = video
        self._planned = planned
        self._counted = -1
        self._chosen: set[str] = set()
        self._video = "failures" if video.kind == "failures" else "all"
        self._images = {IMAGES: "all"} if images else {}

    def __call__(self, trial: Trial, attempt: int) -> Mapping[str, Any]:
        if self._counted != len(self._planned):
            self._counted, self._chosen = len(self._planned), self._selection.trials(self._planned)
        if trial.id not in self._chosen:
            return self._images
        return {VIDEO: self._video, **self._images}


def rerender_record(episode: Episode, *, images: bool = False) -> dict[str, Any]:
    """What is asked of the sinks where an ended episode is rendered from its states."""
    kind = IMAGES if images else VIDEO
    return {
        kind: "all",
        RESTORED: True,
        OUTCOME: episode.outcome.value,
        STEPS: episode.steps,
    }
