"""From the policy's answers to the actions that lanes execute. What lanes do until an answer can be
used is a Delay's to say: without one (`NoDelay`) they wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import NamedTuple, Protocol, overload

from hocket.core.data import Array, Chunk, Chunks, Row, noise_seeds
from hocket.core.events import BatchInferred
from hocket.core.wire import Course
from hocket.engine.chunk_rules import SharedRule
from hocket.engine.inferring.policy_thread import Answered
from hocket.engine.trials import LaneState
from hocket.errors import HocketError, WireError


class Rows(Sequence[Row]):
    """Row metadata of a batch, built on first use: many policies read only the arrays."""

    __slots__ = ("_made", "_states", "chunks")

    def __init__(self, states: Sequence[LaneState]) -> None:
        self._states = states
        self._made: tuple[Row, ...] | None = None
        self.chunks = [state.chunk for state in states]
        """Index of each row's chunk."""

    def __len__(self) -> int:
        return len(self._states)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...

    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        if self._made is None:
            pairs = zip(self._states, self.chunks, strict=True)
            self._made = tuple(_row(state, chunk) for state, chunk in pairs)
        return self._made[index]


def noise_seed(state: LaneState, chunk: int) -> int:
    """The seed of the policy's noise for one chunk of an attempt."""
    if state.noise is None:
        state.noise = noise_seeds(state.trial)
    return state.noise(chunk)


def _row(state: LaneState, chunk: int) -> Row:
    return Row(
        trial=state.trial,
        attempt=state.attempt,
        chunk=chunk,
        noise_seed=noise_seed(state, chunk),
        prompt=state.prompt,
        session=state.session,
        env=state.env,
    )


class PendingBatch(NamedTuple):
    lanes: tuple[int, ...]
    states: list[LaneState]
    rows: Rows
    ready_at: list[float]
    """When each row's observation had come."""


class Dispatch(NamedTuple):
    """What is to be done with an answer."""

    answer: Answered
    batch: PendingBatch
    lanes: Sequence[int] = ()
    """Lanes that get actions."""
    states: Sequence[LaneState] = ()
    actions: Sequence[Array] | Array = ()
    """Actions `[k, A]` for each of these lanes, or all in one array `[B, k, A]`."""
    sources: Sequence[str] = ()
    """Who made the actions of each."""
    delivered: Sequence[Chunk | None] = ()
    """The chunk of every row of the batch; None where nothing is sent."""
    failed: Sequence[tuple[int, LaneState, Exception]] = ()
    """Lanes whose attempts are lost by an error of the policy."""
    courses: Sequence[Course] = ()
    """What each of these lanes does around its actions, where it does not wait."""
    early: Sequence[int] = ()
    """Lanes that get their actions once they have executed what was committed."""
    is_late: bool = False
    """These lanes were such, and are known to be under way."""

    def event(self, now: float, start: float) -> BatchInferred:
        """What readers are told of it; `start` is when the run began by the policy's clock."""
        answer, batch = self.answer, self.batch
        return BatchInferred(
            time=now,
            batch=answer.job.number,
            began=answer.began - start,
            ended=answer.ended - start,
            lanes=batch.lanes,
            trials=[state.trial for state in batch.states],
            attempts=[state.attempt for state in batch.states],
            chunks=batch.rows.chunks,
            delivered=self.delivered,
            ready=batch.ready_at,
            size=max(answer.job.pad_to, len(batch.lanes)),
            observations=answer.observations,
        )


class NextChunks(NamedTuple):
    """Lanes that wait for their next chunks."""

    lanes: Sequence[int]
    states: Sequence[LaneState]
    took_s: Sequence[float]
    """Seconds that each took to come back with a question."""
    due: Sequence[Dispatch] = ()
    """Answers that came early, and whose lanes have now executed what was committed."""


class Delay(Protocol):
    """What it means that the policy takes time: what lanes do until its answer can be used."""

    goes_on: bool
    """Lanes go on with what was committed. So nothing is recalled, and the policy may still read
    what a lane saw whose attempt is over."""
    dropped: int
    """Answers that nobody used: their episodes had ended meanwhile."""

    def begins(self, lane: int) -> None:
        """Take note that a lane begins another attempt."""

    def committed(self, lanes: Sequence[int], states: Sequence[LaneState]) -> Mapping[str, Array]:
        """What the policy is told, beside what it sees, of the chunk that each lane goes on with,
        stacked; nothing for most policies."""

    def answered(
        self,
        answer: Answered,
        batch: PendingBatch,
        running: Mapping[int, LaneState],
        rule: SharedRule | None,
        now: float,
    ) -> Dispatch:
        """Decide which actions go to which lanes. `running` is what lanes do now: attempts that
        ended meanwhile get nothing. `rule` serves all lanes, where one does."""

    def observed(
        self, lanes: Sequence[int], states: Sequence[LaneState], steps: Sequence[int], now: float
    ) -> NextChunks:
        """Lanes were observed after `steps` of their chunks, and go on."""

    def executed(
        self,
        lanes: Sequence[int],
        states: Sequence[LaneState],
        ends: Sequence[int],
        busy_s: Sequence[float],
        now: float,
    ) -> NextChunks:
        """Lanes are at the ends of their chunks, which took them `busy_s` and are counted; `ends`
        is not 0 where the episode ended too."""


class NoDelay:
    """Lanes wait for their answers, and the world with them."""

    goes_on = False
    dropped = 0

    def begins(self, lane: int) -> None: ...

    def committed(self, lanes: Sequence[int], states: Sequence[LaneState]) -> Mapping[str, Array]:
        return {}

    def answered(
        self,
        answer: Answered,
        batch: PendingBatch,
        running: Mapping[int, LaneState],
        rule: SharedRule | None,
        now: float,
    ) -> Dispatch:
        chunks, lanes, states = answer.chunks, batch.lanes, batch.states
        if rule is None or not isinstance(chunks, Chunks) or [*map(running.get, lanes)] != states:
            return _dispatched_singly(answer, batch, running)
        try:
            actions = rule.take_all(chunks.actions)
        except HocketError:  # which each row is told of
            return _dispatched_singly(answer, batch, running)
        sources = [chunks.source] * len(lanes)
        return Dispatch(answer, batch, lanes, states, actions, sources, chunks)

    def observed(
        self, lanes: Sequence[int], states: Sequence[LaneState], steps: Sequence[int], now: float
    ) -> NextChunks:
        raise WireError("A lane was observed amid its chunk, which nobody asked for.")

    def executed(
        self,
        lanes: Sequence[int],
        states: Sequence[LaneState],
        ends: Sequence[int],
        busy_s: Sequence[float],
        now: float,
    ) -> NextChunks:
        if not any(ends):
            return NextChunks(lanes, states, busy_s)
        waits = [not end for end in ends]
        left = list(compress(zip(lanes, states, busy_s, strict=True), waits))
        return NextChunks(*zip(*left, strict=True)) if left else NextChunks((), (), ())


def _dispatched_singly(
    answer: Answered, batch: PendingBatch, running: Mapping[int, LaneState]
) -> Dispatch:
    sent: list[tuple[int, LaneState, Array, str]] = []
    failed: list[tuple[int, LaneState, Exception]] = []
    delivered: list[Chunk | None] = [None] * len(batch.states)
    for i, (lane, state) in enumerate(zip(batch.lanes, batch.states, strict=True)):
        if running.get(lane) is not state:
            continue
        delivered[i] = answer.chunks[i]
        try:
            chunk = given(answer, i)
            sent.append((lane, state, state.rule.take(chunk.actions, state.steps), chunk.source))
        except Exception as exc:  # noqa: BLE001 - an error of a user's policy costs its row
            failed.append((lane, state, exc))
    lanes, states, moves, sources = zip(*sent, strict=True) if sent else ((),) * 4
    return Dispatch(answer, batch, lanes, states, moves, sources, delivered, failed)


def given(answer: Answered, row: int) -> Chunk:
    """The chunk of a row; raises what came in its place."""
    chunk = answer.chunks[row]
    if chunk is None:
        raise answer.errors[row] or HocketError("The policy gave no answer.")
    return chunk
