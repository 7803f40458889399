"""What one turn of the engine has to tell its readers."""

from __future__ import annotations

from hocket.core.data import Episode, Trial
from hocket.core.events import ChunksExecuted, EpisodesEnded, EpisodesSealed, Event, LanesReady


class Turn:
    """Collects what one turn of the engine has to tell, until it becomes a few events."""

    __slots__ = ("ended", "executed", "ready", "sealed")

    def __init__(self) -> None:
        self.executed: list[ChunksExecuted] = []
        self.ready: list[tuple[int, Trial, int]] = []
        self.ended: list[tuple[int, Episode]] = []
        self.sealed: list[Episode] = []

    def take(self, now: float) -> list[Event]:
        """All events, in the order in which readers must hear them; nothing is left to tell."""
        events: list[Event] = [*self.executed]
        self.executed.clear()
        if self.ready:
            lanes, trials, attempts = zip(*self.ready, strict=True)
            events.append(LanesReady(time=now, lanes=lanes, trials=trials, attempts=attempts))
            self.ready.clear()
        if self.ended:
            ended_lanes, episodes = zip(*self.ended, strict=True)
            events.append(EpisodesEnded(time=now, lanes=ended_lanes, episodes=episodes))
            self.ended.clear()
        if self.sealed:
            events.append(EpisodesSealed(time=now, episodes=tuple(self.sealed)))
            self.sealed.clear()
        return events
