"""What the engine has to tell its readers."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.core.data import Episode, Observation, Trial
from hocket.core.events import ChunksExecuted, EpisodesEnded, EpisodesSealed, Event, LanesReady
from hocket.core.wire import END_TERMINATED, END_TRUNCATED
from hocket.engine.trials import LaneState
from hocket.workers.notices import LanesExecuted


class News:
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


def chunks_executed(
    notice: LanesExecuted,
    states: Sequence[LaneState],
    final: Sequence[Observation | None],
    now: float,
) -> ChunksExecuted:
    """What readers are told of chunks that lanes ran; `final` is seen at ends of episodes."""
    ends = notice.ends
    none: Sequence[bool] = (False,) * len(states)
    has_ended = any(ends)
    return ChunksExecuted(
        time=now,
        lanes=notice.lanes,
        trials=[state.trial for state in states],
        attempts=notice.attempts,
        chunks=notice.chunks,
        steps=notice.steps,
        rewards=notice.rewards,
        terminated=[end & END_TERMINATED != 0 for end in ends] if has_ended else none,
        truncated=[end & END_TRUNCATED != 0 for end in ends] if has_ended else none,
        busy=notice.busy_s,
        observed=notice.observe_s,
        final=final,
    )
