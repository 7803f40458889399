"""Lanes that go on while the policy thinks: what each does with a chunk, and early answers.

With a delay of d control steps and a decision every s steps, the answer to what was seen at step t
can be used from step t + d on. Until then the lane executes what the last chunk said of these steps
(`naive`, and whatever continues a chunk), or holds still (`blocking`):

    step             t ......... t+d ................. t+s ........ t+s+d
    seen             o_k                               o_k+1
    executed         chunk k-1 |       chunk k: [d : s + d]        | chunk k+1

So one message carries the actions [d : s + d] of chunk k, and asks to observe after s - d of them.
Where delays vary, d is the chunk's own at the front and the next chunk's at the end. Wall time has
no part in it: a lane whose answer is late waits, and an answer that is early waits for the lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from hocket.core.contracts.policy import DELAY, PREFIX, PREFIX_LENGTH
from hocket.core.data import Array, Chunk, EnvSpec, Observation, Trial
from hocket.engine.batches import Delivery, PendingBatch
from hocket.engine.delays import Delays
from hocket.engine.inferring.policy_thread import Answered
from hocket.engine.trials import LaneState
from hocket.errors import ConfigError, HocketError
from hocket.workers.fleet import Fleet

Method = Literal["pause", "blocking", "naive", "rtc", "prefix"]
CONTINUES = ("rtc", "prefix")
"""Methods in which the policy is told what is committed."""


class Course(NamedTuple):
    """What a lane does with one chunk."""

    first: int
    """Index of the first action that is executed."""
    more: int
    """Actions beyond the `replan` first ones that are executed too."""
    observe_at: int
    """Steps after which the lane is observed for its next chunk."""
    holds: tuple[int, int]
    """Steps for which it holds still before these actions, and after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When answers can be used, and what is done until then."""

    method: Method
    delays: Delays
    replan: int
    """Control steps between two decisions: s."""
    first_chunk: Literal["free", "held"] = "free"
    """Whether the first chunk of an episode is there at once, or the lane holds still for it."""

    def delay(self, trial: Trial, chunk: int, rate: float | None) -> int:
        """The delay of a chunk in control steps."""
        if chunk == 0 and self.first_chunk == "free":
            return 0
        return self.delays.steps(trial, chunk, rate)

    def course(self, trial: Trial, chunk: int, rate: float | None) -> Course:
        here, then = (self.delay(trial, index, rate) for index in (chunk, chunk + 1))
        before = here if chunk == 0 else 0
        if self.method == "blocking":
            return Course(0, 0, before + self.replan, (before, then))
        return Course(here, then, before + self.replan - here, (before, 0))

    def check(self, length: int, rate: float | None) -> None:
        """Raise where chunks of `length` actions are too short; 0 where that is not known."""
        most = self.delays.bounds(rate)[1]
        if length and self.replan > length:
            raise ConfigError(
                f"--replan {self.replan} executes more than the {length} actions of a chunk."
            )
        if self.method == "blocking":
            return
        if most > self.replan:
            raise ConfigError(
                f"--delay has up to {most} steps, but a decision is due every {self.replan}: the "
                f"answer would come after the next question. Raise --replan to {most} or more, or "
                "lower --delay."
            )
        if length and self.replan + most > length:
            raise ConfigError(
                f"--replan {self.replan} with --delay of up to {most} steps needs chunks of "
                f"{self.replan + most} actions, and the policy's have {length}. Set --replan to "
                f"{length - most} or less."
                if length - most >= max(1, most)
                else f"--delay has up to {most} steps, and chunks of {length} actions allow "
                f"{length // 2} at most: lower --delay."
            )

    def fits(self, env: EnvSpec) -> None:
        """Raise for an env that cannot do what the method asks of it."""
        self.delays.bounds(env.task.control_rate)
        holds = self.method == "blocking" or self.first_chunk == "held"
        if holds and not self.delays.is_zero and "hold" not in env.abilities:
            flag = "--method blocking" if self.method == "blocking" else "--first-chunk held"
            raise ConfigError(
                f"The env of task {env.task.name!r} does not say how it holds still, which {flag} "
                "needs: give it a method hold_action(last), or choose another method."
            )


class Early(NamedTuple):
    """An answer that came before the lane had executed what was committed."""

    answer: Answered
    batch: PendingBatch
    row: int


@dataclass(slots=True, eq=False)
class Ahead:
    """What is known of an attempt whose lane goes on."""

    is_ahead: bool = False
    """It was observed for its next chunk, and goes on with the last one."""
    seen_at: int = 0
    """The step whose observation its next chunk answers."""
    answered_at: float = 0.0
    """When its last chunk was there."""
    early: Early | None = None
    previous: Array | None = field(default=None)
    """The last chunk `[T, A]`, where the policy continues it."""


class DelayedLanes:
    """All lanes of a run with a delay. The engine owns it."""

    def __init__(self, timing: Timing, *, length: int) -> None:
        """`length` is that of the policy's chunks, 0 where it is not known."""
        self.timing = timing
        self._length = length
        self.dropped = 0
        """Answers that nobody used: their episodes had ended meanwhile."""

    def observed(self, states: Sequence[LaneState], steps: Sequence[int]) -> None:
        """Lanes were observed on the way, after so many steps of their chunks."""
        for state, made in zip(states, steps, strict=True):
            state.ahead.is_ahead = True
            state.ahead.seen_at = state.steps + made
            state.chunk += 1

    def executed(self, states: Sequence[LaneState], ends: Sequence[int]) -> list[bool]:
        """Lanes are at the ends of their chunks, whose steps are counted; says of each whether it
        was observed on the way."""
        was_ahead = []
        for state, end in zip(states, ends, strict=True):
            ahead = state.ahead
            was_ahead.append(ahead.is_ahead)
            if ahead.is_ahead and end:
                self.dropped += 1
            elif ahead.is_ahead:
                state.chunk -= 1  # It was counted when it was observed.
            else:
                ahead.seen_at = state.steps
            ahead.is_ahead = False
        return was_ahead

    # -- what the policy reads -------------------------------------------------------------------

    def views(
        self, states: Sequence[LaneState], lanes: Sequence[int], fleet: Fleet
    ) -> list[Observation]:
        """What each lane saw for the chunk that it waits for."""
        seen = [fleet.arrays(lane, state.chunk) for lane, state in zip(lanes, states, strict=True)]
        told = self.committed(states)
        return [
            {**view, **{key: column[row] for key, column in told.items()}}
            for row, view in enumerate(seen)
        ]

    def committed(self, states: Sequence[LaneState]) -> dict[str, Array]:
        """What the policy is told of the chunk that each lane goes on with, stacked; nothing where
        the method has no use for it."""
        if self.timing.method not in CONTINUES:
            return {}
        known = [state.ahead.previous for state in states if state.ahead.previous is not None]
        # A policy's own space may have more numbers than the env's.
        size = max([states[0].action_size, *(chunk.shape[1] for chunk in known)])
        prefix = np.zeros((len(states), self._length, size), np.float64)
        lengths = np.zeros(len(states), np.int64)
        delays = np.zeros(len(states), np.int64)
        for row, state in enumerate(states):
            delays[row] = self.timing.delay(state.trial, state.chunk, state.rate)
            if state.ahead.previous is not None:
                left = state.ahead.previous[self.timing.replan :]
                prefix[row, : len(left)] = left
                lengths[row] = len(left)
        return {PREFIX: prefix, PREFIX_LENGTH: lengths, DELAY: delays}

    # -- answers ---------------------------------------------------------------------------------

    def durations(self, states: Sequence[LaneState], now: float) -> list[float]:
        """Seconds from each lane's last answer to its next question. That is what batches are
        planned by: the steps that were executed beside the policy's work are no part of it."""
        return [now - state.ahead.answered_at for state in states]

    def deliver(
        self, answer: Answered, batch: PendingBatch, running: Mapping[int, LaneState], now: float
    ) -> Delivery:
        """Decide which actions go to which lanes now. Answers for lanes that still execute what was
        committed are kept until they have."""
        delivered: list[Chunk | None] = [None] * len(batch.states)
        due: list[int] = []
        early: list[int] = []
        for index, (lane, state) in enumerate(zip(batch.lanes, batch.states, strict=True)):
            if running.get(lane) is not state:
                continue
            delivered[index] = answer.chunks[index]
            state.ahead.answered_at = now
            if state.ahead.is_ahead:
                state.ahead.early = Early(answer, batch, index)
                early.append(lane)
            else:
                due.append(index)
        return self._delivery(answer, batch, due)._replace(delivered=delivered, early=early)

    def catch_up(self, states: Sequence[LaneState]) -> list[Delivery]:
        """What is to be done with the answers that lanes have now come to."""
        found: dict[int, tuple[Answered, PendingBatch, list[int]]] = {}
        for state in states:
            early, state.ahead.early = state.ahead.early, None
            if early is not None:
                answer, batch, row = early
                found.setdefault(id(answer), (answer, batch, []))[2].append(row)
        return [self._delivery(*each)._replace(is_late=True) for each in found.values()]

    def _delivery(self, answer: Answered, batch: PendingBatch, rows: Sequence[int]) -> Delivery:
        sent: list[tuple[int, LaneState, Array, str]] = []
        courses: list[Course] = []
        failed: list[tuple[int, LaneState, Exception]] = []
        for index in rows:
            lane, state = batch.lanes[index], batch.states[index]
            chunk = answer.chunks[index]
            course = self.timing.course(state.trial, state.chunk, state.rate)
            try:
                if chunk is None:
                    raise answer.errors[index] or HocketError("The policy gave no answer.")
                self.timing.check(len(chunk.actions), state.rate)
                actions = state.rule.take(
                    chunk.actions, state.ahead.seen_at, course.first, course.more
                )
            except Exception as exc:  # noqa: BLE001 - an error of a user's policy costs its row
                failed.append((lane, state, exc))
                continue
            if self.timing.method in CONTINUES:
                state.ahead.previous = np.array(chunk.extras.get(PREFIX, chunk.actions))
            sent.append((lane, state, actions, chunk.source))
            courses.append(course)
        if not sent:
            return Delivery(answer, batch, (), (), (), (), (), failed)
        lanes, states, moves, sources = zip(*sent, strict=True)
        return Delivery(
            answer,
            batch,
            lanes,
            states,
            moves,
            sources,
            (),
            failed,
            [course.observe_at for course in courses],
            [course.holds for course in courses],
        )


class HeldLanes:
    """Lanes whose attempts are over while the policy still reads what they saw. They begin nothing
    before it has answered: their memory is not written, and sessions end after their last call."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[LaneState, bool]] = {}
        """By lane: its last attempt, and whether the lane is free once it is answered."""

    def __bool__(self) -> bool:
        return bool(self._held)

    def __contains__(self, lane: int) -> bool:
        return lane in self._held

    def hold(self, lane: int, state: LaneState) -> None:
        self._held[lane] = (state, False)

    def set_free(self, lane: int, *, is_free: bool) -> None:
        """Say whether a held lane has a worker that waits for an attempt."""
        self._held[lane] = (self._held[lane][0], is_free)

    def answered(self, batch: PendingBatch) -> list[tuple[int, LaneState, bool]]:
        """The lanes of a batch that were held, their attempts, and whether each is free now."""
        found = []
        for lane, state in zip(batch.lanes, batch.states, strict=True):
            held = self._held.get(lane)
            if held is not None and held[0] is state:
                del self._held[lane]
                found.append((lane, *held))
        return found
