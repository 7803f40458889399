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
from typing import Literal

import numpy as np

from hocket.core.contracts.policy import DELAY, PREFIX, PREFIX_LENGTH
from hocket.core.data import Array, Chunk, Trial
from hocket.core.specs import EnvSpec
from hocket.core.wire import Course
from hocket.engine.delays import Delays
from hocket.engine.dispatch import Delay, Dispatch, NextChunks, PendingBatch, delivered
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
    """The first chunk of an episode is there at once, or the lane holds still for it."""

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


@dataclass(slots=True, eq=False)
class Ahead:
    """What is known of an attempt whose lane goes on."""

    is_ahead: bool = False
    """It was observed for its next chunk, and goes on with the last one."""
    seen_at: int = 0
    """The step whose observation its next chunk answers."""
    answered_at: float = 0.0
    """When its last chunk was there."""
    early: tuple[Answered, PendingBatch, int] | None = None
    """An answer that came before it had executed what was committed, and its row there."""
    previous: Array | None = None
    """The last chunk `[T, A]`, where the policy continues it."""


class ControlDelay(Delay):
    """Lanes go on for some control steps until their answers can be used."""

    goes_on = True

    def __init__(self, plan: DelayPlan, *, length: int) -> None:
        """`length` is that of the policy's chunks, 0 where it is not known."""
        super().__init__()
        self._plan = plan
        self._length = length
        self._continues = plan.method in CONTINUES
        self._ahead: dict[int, Ahead] = {}
        """By lane, of its attempt."""

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
        return self._next(list(zip(lanes, states, strict=True)), now)

    def executed(
        self,
        lanes: Sequence[int],
        states: Sequence[LaneState],
        ends: Sequence[int],
        busy_s: Sequence[float],
        now: float,
    ) -> NextChunks:
        waiting: list[tuple[int, LaneState]] = []
        due: dict[int, tuple[Answered, PendingBatch, list[int]]] = {}
        for lane, state, end in zip(lanes, states, ends, strict=True):
            ahead = self._ahead[lane]
            was_ahead, ahead.is_ahead = ahead.is_ahead, False
            if not was_ahead:
                ahead.seen_at = state.steps
                if not end:
                    waiting.append((lane, state))
            elif end:
                self.dropped += 1
            else:
                state.chunk -= 1  # It was counted when it was observed.
                early, ahead.early = ahead.early, None
                if early is not None:
                    answer, batch, row = early
                    due.setdefault(id(answer), (answer, batch, []))[2].append(row)
        late = [self.dispatch(*each)._replace(is_late=True) for each in due.values()]
        return self._next(waiting, now)._replace(due=late)

    def _next(self, waiting: Sequence[tuple[int, LaneState]], now: float) -> NextChunks:
        """Lanes that wait, with the seconds from each one's last answer. That is what batches are
        planned by: the steps that were executed beside the policy's work are no part of it."""
        return NextChunks(
            [lane for lane, _ in waiting],
            [state for _, state in waiting],
            [now - self._ahead[lane].answered_at for lane, _ in waiting],
        )

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
        self, answer: Answered, batch: PendingBatch, running: Mapping[int, LaneState], now: float
    ) -> Dispatch:
        """Keep answers for lanes that still execute what was committed until they have."""
        rows = batch.running(running)
        due: list[int] = []
        early: list[int] = []
        for row in rows:
            lane = batch.lanes[row]
            ahead = self._ahead[lane]
            ahead.answered_at = now
            if ahead.is_ahead:
                ahead.early = (answer, batch, row)
                early.append(lane)
            else:
                due.append(row)
        dispatch = self.dispatch(answer, batch, due)
        asked = [self._ahead[lane].seen_at for lane in batch.lanes]
        return dispatch._replace(early=early, delivered=delivered(answer, rows), asked=asked)

    def actions(self, lane: int, state: LaneState, chunk: Chunk) -> Array:
        plan, ahead = self._plan, self._ahead[lane]
        plan.check(len(chunk.actions), state.rate)
        first, more = plan.actions(state.trial, state.chunk, state.rate)
        actions = state.rule.take(chunk.actions, ahead.seen_at, first, more)
        if self._continues:
            ahead.previous = np.array(chunk.extras.get(PREFIX, chunk.actions))
        return actions

    def courses(self, states: Sequence[LaneState]) -> list[Course]:
        return [self._plan.course(state.trial, state.chunk, state.rate) for state in states]
