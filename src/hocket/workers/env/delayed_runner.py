"""Runs chunks whose lane goes on while the policy thinks: it is observed before the last actions of
a chunk, and executes those, or holds still, until its next chunk comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hocket.core.data import Array
from hocket.core.wire import Course
from hocket.workers.env.attempt import Attempt, Recording
from hocket.workers.env.chunk_runner import (
    ChunkResult,
    ChunkRunner,
    ObservationBuffer,
    PolicyView,
)
from hocket.workers.env.live_env import LiveEnv, Turn
from hocket.workers.shm import STOP, Control


class DelayedRunner(ChunkRunner):
    """A runner that tells what it saw and goes on. Only a chunk that nobody wants any more is
    recalled: what was committed is executed."""

    def __init__(
        self,
        env: LiveEnv,
        buffer: ObservationBuffer,
        recording: Recording,
        attempt: Attempt,
        view: PolicyView,
    ) -> None:
        super().__init__(env, buffer, recording, attempt, view)
        self._asked = 0
        """The step whose observation the next chunk will answer."""
        self._last: Array | None = None
        """The action that was executed last, in the env's own space."""
        self._turn: Turn | None = None
        """What the last step gave."""

    def follow(
        self,
        chunk: int,
        actions: Array,
        course: Course,
        control: Control,
        tell: Callable[[ChunkResult], None],
    ) -> ChunkResult:
        """Execute a chunk up to its end or the episode's. `tell` is called once the lane was
        observed, where it has steps left then."""
        began = time.perf_counter()
        result = ChunkResult()
        self._decided = self._asked
        self._decisions += 1
        total, done = course.before + len(actions) + course.after, 0
        while True:
            if done == course.observe_at:
                self._asked = self.attempt.steps
                self._see(result, self._turn)
                if done < total:
                    tell(result)
            if done == total:
                break
            index = done - course.before
            is_held = not 0 <= index < len(actions)
            action: Any = self._env.hold(self._last) if is_held else actions[index]
            turn = self._turn = self._env.step(self._executed(action))
            self._last = action
            done += 1
            control.count_step(0)
            self._judge(turn, result)
            if is_held:
                self._decided = self._asked
            source, is_seen = -1 if is_held else chunk, self._is_seen(course, done, total)
            self._look(turn, action, source, result, is_seen=is_seen)
            self._ending = turn if result.ends else None
            if result.ends or control.command(0, chunk) == STOP:
                break
        result.busy_s = time.perf_counter() - began
        return result

    def _is_seen(self, course: Course, done: int, total: int) -> bool:
        """Whether a policy is shown the step: this decision's or, with a history, the next one's,
        whose past may reach into this chunk."""
        is_past = self._history > 1 and total - done < self._history
        return is_past or self._looks_always or 0 <= course.observe_at - done < self._history
