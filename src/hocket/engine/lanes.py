"""What the engine knows of a lane, and what it has to tell of lanes after a turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from hocket.core.data import Episode, Observation, Outcome, Row, Trial, noise_seeds
from hocket.core.events import (
    ChunksExecuted,
    EpisodesEnded,
    EpisodesSealed,
    Event,
    LanesReady,
)
from hocket.core.wire import END_JUDGED, END_SUCCESS, END_TERMINATED, END_TRUNCATED
from hocket.engine.chunk_rules import ChunkRule
from hocket.workers.notices import LanesExecuted


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
        "source",
        "steps",
        "total",
        "trial",
    )

    def __init__(
        self, trial: Trial, attempt: int, rule: ChunkRule, kind: int, began: float
    ) -> None:
        self.trial = trial
        self.attempt = attempt
        self.rule = rule
        self.kind = kind
        self.began = began
        self._noise: Callable[[int], int] | None = None
        self.chunk = 0
        self.steps = 0
        self.total = 0.0
        self.prompt = ""
        self.queue = -1
        """Number of the signature of what it sees."""
        self.action_size = 0
        self.ready_at = 0.0
        self.source = ""

    @property
    def session(self) -> str:
        """Names the attempt for policies that keep state for it."""
        return f"{self.trial.id}@{self.attempt}"

    def row(self, chunk: int) -> Row:
        """What the policy is told of one of the attempt's chunks."""
        if self._noise is None:
            self._noise = noise_seeds(self.trial)
        return Row(
            trial=self.trial,
            attempt=self.attempt,
            chunk=chunk,
            noise_seed=self._noise(chunk),
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


class Rows(Sequence[Row]):
    """What the policy is told of the chunks that lanes wait for: made when it is asked for, since
    many a policy reads nothing but arrays."""

    __slots__ = ("_lanes", "_made", "chunks")

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._made: tuple[Row, ...] | None = None
        self.chunks = [lane.chunk for lane in lanes]
        """Index of each row's chunk."""

    def __len__(self) -> int:
        return len(self._lanes)

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Row, ...]: ...

    def __getitem__(self, place: int | slice) -> Row | tuple[Row, ...]:
        if self._made is None:
            pairs = zip(self._lanes, self.chunks, strict=True)
            self._made = tuple(lane.row(chunk) for lane, chunk in pairs)
        return self._made[place]


class Turn:
    """What one turn of the engine has to tell, until it becomes a few events."""

    __slots__ = ("_executed", "ended", "ready", "sealed")

    def __init__(self) -> None:
        self._executed: list[ChunksExecuted] = []
        self.ready: list[tuple[int, Trial, int]] = []
        self.ended: list[tuple[int, Episode]] = []
        self.sealed: list[Episode] = []

    def add(
        self,
        notice: LanesExecuted,
        lanes: Sequence[Lane],
        final: Sequence[Observation | None],
        now: float,
    ) -> None:
        """Chunks were run in these lanes, at whose end some saw what is in `final`."""
        none: Sequence[bool] = (False,) * len(lanes)
        has_ended = any(notice.ends)
        told = ChunksExecuted(
            time=now,
            lanes=notice.lanes,
            trials=[lane.trial for lane in lanes],
            attempts=notice.attempts,
            chunks=notice.chunks,
            steps=notice.steps,
            rewards=notice.rewards,
            terminated=[end & END_TERMINATED != 0 for end in notice.ends] if has_ended else none,
            truncated=[end & END_TRUNCATED != 0 for end in notice.ends] if has_ended else none,
            busy=notice.busy_s,
            observed=notice.observe_s,
            final=final,
        )
        self._executed.append(told)

    def take(self, now: float) -> list[Event]:
        """All of it, in the order in which readers must hear it; then nothing is left to tell."""
        events: list[Event] = [*self._executed]
        self._executed.clear()
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
