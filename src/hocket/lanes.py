"""What the engine knows of a lane, and what it has to tell of lanes after a turn."""

from __future__ import annotations

from collections.abc import Hashable

from hocket.data import Array, Episode, Observation, Outcome, Row, Trial, noise_seeds
from hocket.events import ChunksExecuted, EpisodesEnded, EpisodesSealed, Event, LanesReady
from hocket.replay import ChunkRule
from hocket.wire import END_JUDGED, END_SUCCESS, END_TERMINATED, END_TRUNCATED


class Lane:
    """One lane's attempt, from its dispatch to its end. The engine alone changes it."""

    __slots__ = (
        "_noise",
        "action_size",
        "attempt",
        "began",
        "chunk",
        "kind",
        "prompt",
        "queue",
        "ready_at",
        "rule",
        "session",
        "source",
        "steps",
        "total",
        "trial",
    )

    def __init__(
        self, trial: Trial, attempt: int, rule: ChunkRule, kind: Hashable, began: float
    ) -> None:
        self.trial = trial
        self.attempt = attempt
        self.rule = rule
        self.kind = kind
        self.began = began
        self.session = f"{trial.id}@{attempt}"
        self._noise = noise_seeds(trial)
        self.chunk = 0
        self.steps = 0
        self.total = 0.0
        self.prompt = ""
        self.queue: Hashable = None
        self.action_size = 0
        self.ready_at = 0.0
        self.source = ""

    def row(self) -> Row:
        """What the policy is told of the chunk that the lane waits for."""
        return Row(
            trial=self.trial,
            attempt=self.attempt,
            chunk=self.chunk,
            noise_seed=self._noise(self.chunk),
            prompt=self.prompt,
            session=self.session,
        )

    def episode(self, end: int, now: float) -> Episode:
        """The attempt as an episode that ended with these flags."""
        outcome = Outcome.FINISHED
        if end & END_JUDGED:
            outcome = Outcome.SUCCESS if end & END_SUCCESS else Outcome.FAILURE
        return Episode(
            trial=self.trial,
            attempt=self.attempt,
            outcome=outcome,
            steps=self.steps,
            total_reward=self.total,
            terminated=bool(end & END_TERMINATED),
            truncated=bool(end & END_TRUNCATED),
            chunks=self.chunk,
            seconds=now - self.began,
        )


class Turn:
    """What one turn of the engine has to tell, row by row, until it becomes a few events."""

    __slots__ = ("ended", "executed", "ready", "sealed")

    def __init__(self) -> None:
        self.executed: list[
            tuple[int, Trial, int, int, int, Array, bool, bool, float, float, Observation | None]
        ] = []
        self.ready: list[tuple[int, Trial, int, int]] = []
        self.ended: list[tuple[int, Episode]] = []
        self.sealed: list[Episode] = []

    def events(self, now: float) -> list[Event]:
        """All of it, in the order in which readers must hear it."""
        events: list[Event] = []
        if self.executed:
            columns = tuple(zip(*self.executed, strict=True))
            events.append(
                ChunksExecuted(
                    time=now,
                    lanes=columns[0],
                    trials=columns[1],
                    attempts=columns[2],
                    chunks=columns[3],
                    steps=columns[4],
                    rewards=columns[5],
                    terminated=columns[6],
                    truncated=columns[7],
                    busy=columns[8],
                    observed=columns[9],
                    final=columns[10],
                )
            )
        if self.ready:
            lanes, trials, attempts, chunks = zip(*self.ready, strict=True)
            events.append(
                LanesReady(time=now, lanes=lanes, trials=trials, attempts=attempts, chunks=chunks)
            )
        if self.ended:
            ended_lanes, episodes = zip(*self.ended, strict=True)
            events.append(EpisodesEnded(time=now, lanes=ended_lanes, episodes=episodes))
        if self.sealed:
            events.append(EpisodesSealed(time=now, episodes=self.sealed))
        return events
