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
from dataclasses import dataclass
from itertools import compress
from typing import Literal, NamedTuple

import numpy as np

from hocket.core.contracts.policy import DELAY, PREFIX, PREFIX_LENGTH
from hocket.core.data import Array, Chunk, EnvSpec, Trial
from hocket.core.wire import Course
from hocket.engine.chunk_rules import SharedRule
from hocket.engine.delays import Delays
from hocket.engine.dispatch import Dispatch, NextChunks, PendingBatch, given
from hocket.engine.inferring.policy_thread import Answered
from hocket.engine.trials import LaneState
from hocket.errors import ConfigError

Method = Literal["pause", "blocking", "naive", "rtc", "prefix"]
CONTINUES = ("rtc", "prefix")
"""Methods in which the policy is told what is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayPlan:
    """When answers can be used, and what is done until then."""

    method: Method
    delays: Delays
    replan: int
    """Control steps between two decisions: s."""
    first_chunk: Literal["free", "held"] = "free"
    """True if the first chunk of an episode is there at once, or the lane holds still for it."""

    def delay(self, trial: Trial, chunk: int, rate: float | None) -> int:
        """The delay of a chunk in control steps."""
        if chunk == 0 and self.first_chunk == "free":
            return 0
        return self.delays.steps(trial, chunk, rate)

    def actions(self, trial: Trial, chunk: int, rate: float | None) -> tuple[int, int]:
        """The index of the first action of a chunk that is executed, and how many are beyond the
        `replan` first ones."""
        if self.method == "blocking":
            return 0, 0
        return self.delay(trial, chunk, rate), self.delay(trial, chunk + 1, rate)

    def course(self, trial: Trial, chunk: int, rate: float | None) -> Course:
        """What a lane does around the actions of a chunk."""
        here = self.delay(trial, chunk, rate)
        before = here if chunk == 0 else 0
        if self.method == "blocking":
            return Course(before + self.replan, before, self.delay(trial, chunk + 1, rate))
        return Course(before + self.replan - here, before, 0)

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
    previous: Array | None = None
    """The last chunk `[T, A]`, where the policy continues it."""


class ControlDelay:
    """Lanes go on for some control steps until their answers can be used."""

    goes_on = True

    def __init__(self, plan: DelayPlan, *, length: int) -> None:
        """`length` is that of the policy's chunks, 0 where it is not known."""
        self._plan = plan
        self._length = length
        self._continues = plan.method in CONTINUES
        self._ahead: dict[int, Ahead] = {}
        """By lane, of its attempt."""
        self.dropped = 0

    def begins(self, lane: int) -> None:
        self._ahead[lane] = Ahead()

    # -- what lanes did --------------------------------------------------------------------------

    def observed(
        self, lanes: Sequence[int], states: Sequence[LaneState], steps: Sequence[int], now: float
    ) -> NextChunks:
        for lane, state, made in zip(lanes, states, steps, strict=True):
            ahead = self._ahead[lane]
            ahead.is_ahead = True
            ahead.seen_at = state.steps + made
            state.chunk += 1
        return self._next(lanes, states, now)

    def executed(
        self,
        lanes: Sequence[int],
        states: Sequence[LaneState],
        ends: Sequence[int],
        busy_s: Sequence[float],
        now: float,
    ) -> NextChunks:
        waits: list[bool] = []
        due: list[int] = []
        for lane, state, end in zip(lanes, states, ends, strict=True):
            ahead = self._ahead[lane]
            waits.append(not (ahead.is_ahead or end))
            if ahead.is_ahead and end:
                self.dropped += 1
            elif ahead.is_ahead:
                state.chunk -= 1  # It was counted when it was observed.
                due.append(lane)
            else:
                ahead.seen_at = state.steps
            ahead.is_ahead = False
        waiting = self._next(list(compress(lanes, waits)), list(compress(states, waits)), now)
        return waiting._replace(due=self._come_to(due))

    def _next(self, lanes: Sequence[int], states: Sequence[LaneState], now: float) -> NextChunks:
        """Lanes that wait, with the seconds from each one's last answer. That is what batches are
        planned by: the steps that were executed beside the policy's work are no part of it."""
        return NextChunks(lanes, states, [now - self._ahead[lane].answered_at for lane in lanes])

    # -- what the policy reads -------------------------------------------------------------------

    def committed(self, lanes: Sequence[int], states: Sequence[LaneState]) -> dict[str, Array]:
        if not self._continues:
            return {}
        last = [self._ahead[lane].previous for lane in lanes]
        # A policy's own space may have more numbers than the env's.
        sizes = [chunk.shape[1] for chunk in last if chunk is not None]
        size = max([states[0].action_size, *sizes])
        prefix = np.zeros((len(states), self._length, size), np.float64)
        lengths = np.zeros(len(states), np.int64)
        delays = np.zeros(len(states), np.int64)
        for row, (state, chunk) in enumerate(zip(states, last, strict=True)):
            delays[row] = self._plan.delay(state.trial, state.chunk, state.rate)
            if chunk is not None:
                left = chunk[self._plan.replan :]
                prefix[row, : len(left)] = left
                lengths[row] = len(left)
        return {PREFIX: prefix, PREFIX_LENGTH: lengths, DELAY: delays}

    # -- answers ---------------------------------------------------------------------------------

    def answered(
        self,
        answer: Answered,
        batch: PendingBatch,
        running: Mapping[int, LaneState],
        rule: SharedRule | None,
        now: float,
    ) -> Dispatch:
        """Keep answers for lanes that still execute what was committed until they have."""
        delivered: list[Chunk | None] = [None] * len(batch.states)
        due: list[int] = []
        early: list[int] = []
        for index, (lane, state) in enumerate(zip(batch.lanes, batch.states, strict=True)):
            if running.get(lane) is not state:
                continue
            delivered[index] = answer.chunks[index]
            ahead = self._ahead[lane]
            ahead.answered_at = now
            if ahead.is_ahead:
                ahead.early = Early(answer, batch, index)
                early.append(lane)
            else:
                due.append(index)
        return self._dispatch(answer, batch, due)._replace(delivered=delivered, early=early)

    def _come_to(self, lanes: Sequence[int]) -> list[Dispatch]:
        """What is to be done with the early answers that these lanes have now come to."""
        found: dict[int, tuple[Answered, PendingBatch, list[int]]] = {}
        for lane in lanes:
            ahead = self._ahead[lane]
            early, ahead.early = ahead.early, None
            if early is not None:
                answer, batch, row = early
                found.setdefault(id(answer), (answer, batch, []))[2].append(row)
        return [self._dispatch(*each)._replace(is_late=True) for each in found.values()]

    def _dispatch(self, answer: Answered, batch: PendingBatch, rows: Sequence[int]) -> Dispatch:
        sent: list[tuple[int, LaneState, Array, str, Course]] = []
        failed: list[tuple[int, LaneState, Exception]] = []
        for index in rows:
            lane, state = batch.lanes[index], batch.states[index]
            try:
                chunk = given(answer, index)
                actions = self._actions(lane, state, chunk)
            except Exception as exc:  # noqa: BLE001 - an error of a user's policy costs its row
                failed.append((lane, state, exc))
                continue
            course = self._plan.course(state.trial, state.chunk, state.rate)
            sent.append((lane, state, actions, chunk.source, course))
        lanes, states, moves, sources, courses = zip(*sent, strict=True) if sent else ((),) * 5
        return Dispatch(answer, batch, lanes, states, moves, sources, (), failed, courses)

    def _actions(self, lane: int, state: LaneState, chunk: Chunk) -> Array:
        """What a lane executes of a chunk."""
        plan, ahead = self._plan, self._ahead[lane]
        plan.check(len(chunk.actions), state.rate)
        first, more = plan.actions(state.trial, state.chunk, state.rate)
        actions = state.rule.take(chunk.actions, ahead.seen_at, first, more)
        if self._continues:
            ahead.previous = np.array(chunk.extras.get(PREFIX, chunk.actions))
        return actions


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
        """Note whether a held lane has a worker that waits for an attempt."""
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
