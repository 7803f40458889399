"""From the policy's answers to the actions that lanes execute. What lanes do until an answer can be
used is a Delay's to say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, overload

from hocket.core.data import Array, Chunk, Chunks, Row, noise_seeds
from hocket.core.events import BatchInferred
from hocket.core.wire import Course
from hocket.engine.inferring.policy_thread import Answered
from hocket.engine.trials import LaneState
from hocket.errors import HocketError, WireError

_STEPS = attrgetter("steps")


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
        return (self._made or self._make())[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._made or self._make())

    def _make(self) -> tuple[Row, ...]:
        self._made = tuple(map(_row, self._states, self.chunks))
        return self._made


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

    def running(self, lanes: Mapping[int, LaneState]) -> list[int]:
        """The indices of the rows whose attempts go on; `lanes` is what lanes do now."""
        rows = enumerate(zip(self.lanes, self.states, strict=True))
        return [index for index, (lane, state) in rows if lanes.get(lane) is state]


class Dispatch(NamedTuple):
    """What is to be done with an answer."""

    answer: Answered
    batch: PendingBatch
    lanes: Sequence[int] = ()
    """Lanes that get actions."""
    states: Sequence[LaneState] = ()
    actions: Sequence[Array] | Array = ()
    """Actions `[k, A]` for each of these lanes, or all in one array `[B, k, A]`."""
    delivered: Sequence[Chunk | None] = ()
    """The chunk of every row of the batch; None where nothing is sent."""
    failed: Sequence[tuple[int, LaneState, Exception]] = ()
    """Lanes whose attempts are lost by an error of the policy."""
    early: Sequence[int] = ()
    """Lanes that get their actions once they have executed what was committed."""
    is_late: bool = False
    """The lanes got their actions early, and are now known to execute them."""
    asked: Sequence[int] = ()
    """The step at which each row of the batch was observed, where its lane went on since."""

    def event(self, now: float, start: float) -> BatchInferred:
        """What readers are told of it; `start` is when the run began by the policy's clock."""
        answer, batch = self.answer, self.batch
        return BatchInferred(
            now,
            answer.job.number,
            answer.began - start,
            answer.ended - start,
            batch.lanes,
            [state.trial for state in batch.states],
            [state.attempt for state in batch.states],
            batch.rows.chunks,
            self.delivered,
            batch.ready_at,
            max(answer.job.pad_to, len(batch.lanes)),
            answer.observations,
            self.asked or list(map(_STEPS, batch.states)),
        )


class NextChunks(NamedTuple):
    """Lanes that wait for their next chunks."""

    lanes: Sequence[int]
    states: Sequence[LaneState]
    took_s: Sequence[float | None]
    """Seconds that each took to come back with a question; None after a reset."""
    due: Sequence[Dispatch] = ()
    """Answers that came early, and whose lanes have now executed what was committed."""


class Delay:
    """What it means that the policy takes time: what lanes do until its answer can be used. By this
    one they wait, and the world with them."""

    goes_on = False
    """Lanes go on with what was committed. So nothing is recalled, and the policy may still read
    what a lane saw whose attempt is over."""

    def __init__(self) -> None:
        self.dropped = 0
        """Answers that nobody used: their episodes had ended meanwhile."""

    def begins(self, lane: int) -> None:
        """Take note that a lane begins another attempt."""

    def committed(self, lanes: Sequence[int], states: Sequence[LaneState]) -> Mapping[str, Array]:
        """What the policy is told, beside what it sees, of the chunk that each lane goes on with,
        stacked; nothing for most policies."""
        return {}

    def courses(self, states: Sequence[LaneState]) -> Sequence[Course]:
        """What each lane does around its next actions; empty where all wait."""
        return ()

    def observed(
        self, lanes: Sequence[int], states: Sequence[LaneState], steps: Sequence[int], now: float
    ) -> NextChunks:
        """Lanes were observed after `steps` of their chunks, and go on."""
        raise WireError("A lane was observed amid its chunk, which nobody asked for.")

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
        if not any(ends):
            return NextChunks(lanes, states, busy_s)
        kept = [index for index, end in enumerate(ends) if not end]
        return NextChunks(
            [lanes[index] for index in kept],
            [states[index] for index in kept],
            [busy_s[index] for index in kept],
        )

    def answered(
        self, answer: Answered, batch: PendingBatch, running: Mapping[int, LaneState], now: float
    ) -> Dispatch:
        """Decide which actions go to which lanes. `running` is what lanes do now: attempts that
        ended meanwhile get nothing."""
        chunks, lanes, states = answer.chunks, batch.lanes, batch.states
        if isinstance(chunks, Chunks) and [*map(running.get, lanes)] == states:
            try:
                actions = states[0].rule.take_all(chunks.actions)
            except HocketError:  # which each row is told of
                actions = None
            if actions is not None:
                for state in states:
                    state.source = chunks.source
                return Dispatch(answer, batch, lanes, states, actions, chunks)
        rows = batch.running(running)
        return self.dispatch(answer, batch, rows)._replace(delivered=delivered(answer, rows))

    def dispatch(self, answer: Answered, batch: PendingBatch, rows: Sequence[int]) -> Dispatch:
        """Decide what these rows of a batch execute; an error of one costs no other."""
        sent: list[tuple[int, LaneState, Array]] = []
        failed: list[tuple[int, LaneState, Exception]] = []
        for row in rows:
            lane, state, chunk = batch.lanes[row], batch.states[row], answer.chunks[row]
            try:
                if chunk is None:
                    raise answer.errors[row] or HocketError("The policy gave no answer.")
                sent.append((lane, state, self.actions(lane, state, chunk)))
                state.source = chunk.source
            except Exception as exc:  # noqa: BLE001 - an error of a user's policy costs its row
                failed.append((lane, state, exc))
        lanes, states, moves = zip(*sent, strict=True) if sent else ((),) * 3
        return Dispatch(answer, batch, lanes, states, moves, failed=failed)

    def actions(self, lane: int, state: LaneState, chunk: Chunk) -> Array:
        """What a lane executes of a chunk."""
        return state.rule.take(chunk.actions, state.steps)


def delivered(answer: Answered, rows: Sequence[int]) -> list[Chunk | None]:
    """The chunks of these rows of an answer; None for the others."""
    chunks: list[Chunk | None] = [None] * len(answer.chunks)
    for row in rows:
        chunks[row] = answer.chunks[row]
    return chunks
