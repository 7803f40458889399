"""Runs chunks in a worker's env up to their end or the episode's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hocket.core.arrays import first_difference
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Array, Observation
from hocket.core.outcomes import values_in
from hocket.core.wire import (
    END_DIVERGED,
    END_JUDGED,
    END_OBSERVED,
    END_SUCCESS,
    END_TERMINATED,
    Course,
)
from hocket.errors import SecondResetError
from hocket.workers.env import remarks
from hocket.workers.env.attempt import Attempt, Tracks
from hocket.workers.env.live_env import LiveEnv, Turn
from hocket.workers.env.observation_buffer import ObservationBuffer
from hocket.workers.env.perturbation import Perturbation
from hocket.workers.env.spaces import flatten
from hocket.workers.shm import STOP, Control


@dataclass(slots=True, kw_only=True)
class ChunkResult:
    rewards: list[float] = field(default_factory=list)
    infos: list[dict[str, float]] = field(default_factory=list)
    """The numbers in `info` of each step, where they are asked for."""
    ends: int = 0
    """0 while the episode goes on, else flags `END_*` of the wire."""
    busy_s: float = 0.0
    """Seconds that the chunk took, observing included."""
    observe_s: float = 0.0
    """Seconds of these that were spent observing, and keeping what sinks asked to observe."""
    is_broken: bool = False
    """The env raised as it diverged, and may be in any state."""

    def diverge(self) -> None:
        """End the episode as a failure, whatever the env said."""
        self.ends = (self.ends & ~END_SUCCESS) | END_DIVERGED | END_JUDGED | END_TERMINATED


class ChunkRunner:
    """Runs the chunks of one attempt in its env.

    An env that can defer observations is observed only where somebody looks: when a decision is due
    (at the end of a chunk, or where its course says) and the `history - 1` steps before that, and
    at every step where a sink wants that or the history of a final observation must be whole.
    """

    def __init__(
        self,
        env: LiveEnv,
        buffer: ObservationBuffer,
        tracks: Tracks,
        attempt: Attempt,
        spec: WorkerSpec,
        perturbation: Perturbation | None,
    ) -> None:
        self.attempt = attempt
        self._tells = spec.tells
        self._perturbation = perturbation
        self._env = env
        self._buffer = buffer
        self._tracks = tracks
        self._history = spec.history
        self._sinks_look = tracks.looks
        self._is_recorded = False
        """A sink follows the steps; known once it is open."""
        needs = tracks.needs
        self._stride = needs.stride
        cameras = self._policy_cameras = spec.cameras
        self._sink_cameras = None if needs.all_cameras else needs.cameras
        self._all_cameras: tuple[str, ...] | None = None
        if cameras is not None and not needs.all_cameras:
            self._all_cameras = tuple(dict.fromkeys((*cameras, *needs.cameras)))
        self._looks_always = attempt.final_observation and spec.history > 1
        self.differs: str | None = None
        """What differed between two resets, empty where nothing did; None where one was made."""
        self._decided = 0
        """The step whose observation the running chunk answers, or that was seen last where the
        lane holds still."""
        self._asked = 0
        """The step whose observation the next chunk will answer."""
        self._decisions = 0
        self._last: Array | None = None
        """The action that was executed last, in the env's own space."""
        self._turn: Turn | None = None
        """What the last step gave."""
        self._remarks: dict[str, bool] = {}
        """What is to be told of the attempt, and whether it was."""

    def remark(self, *texts: str) -> None:
        """Note what the user should be told of the attempt; each sentence counts once."""
        for text in texts:
            self._remarks.setdefault(text, False)

    def news(self) -> list[str]:
        """The remarks that were not taken yet."""
        fresh = [text for text, is_taken in self._remarks.items() if not is_taken]
        self._remarks.update(dict.fromkeys(fresh, True))
        return fresh

    def reset(self, *, twice: bool = False) -> tuple[Observation, str]:
        """Begin the episode; return its first observation and its prompt, as they are to be seen.
        With `twice` the env is reset for the same trial before, and `differs` says what came."""
        first = self._rehearse() if twice else None
        try:
            arrays, said = self._start(self._all_cameras)
        except Exception as exc:
            if first is None:
                raise
            raise SecondResetError(f"{type(exc).__name__}: {exc}") from exc
        if first is not None:
            unseen = set(self._env.cameras) - set(first)
            again = {key: array for key, array in arrays.items() if key not in unseen}
            self.differs = first_difference(first, again) or ""
        prompt = said if said is not None else self._env.task.prompt
        if self._perturbation is None:
            return arrays, prompt
        self._perturbation.require(self.for_policy(arrays), prompt)
        prompt = self._perturbation.prompt(prompt, self._env.task)
        return self._perturbation.observation(arrays, 0), prompt

    def _rehearse(self) -> Observation:
        """What a reset gives, as copies: the env may lay its next observation over it. Cameras are
        left out where there is anything else: pictures are dear, and a GPU may draw them otherwise
        from the same state."""
        first, _ = self._start(())
        if not first:
            first, _ = self._start(self._all_cameras)
        return {key: np.array(array) for key, array in first.items()}

    def _start(self, cameras: tuple[str, ...] | None) -> tuple[Observation, str | None]:
        self._env.use_cameras(cameras)
        return flatten(self._env.reset(self.attempt.trial, self._perturbation))

    def for_policy(self, arrays: Observation) -> Observation:
        """An observation without the cameras that are rendered for sinks alone: whether an attempt
        is recorded must not change what the policy is given."""
        if self._policy_cameras == self._all_cameras:
            return arrays
        unasked = set(self._env.cameras) - set(self._policy_cameras or ())
        return {key: array for key, array in arrays.items() if key not in unasked}

    def open(self, arrays: Observation, prompt: str) -> None:
        """Begin to record, with the reset as step 0."""
        self._look_at_numbers()
        if self._tracks.needs.cameras or self._tracks.needs.all_cameras:
            self.remark(*remarks.of_pictures(self.attempt.task.name, arrays))
        self._tracks.open(self.attempt, prompt)
        self._is_recorded = self._tracks.is_on
        self._record(None, 0.0, chunk=-1, observation=arrays)

    def run(
        self,
        actions: Array,
        chunk: int,
        course: Course | None,
        control: Control,
        tell: Callable[[ChunkResult], None],
    ) -> ChunkResult:
        """Execute a chunk up to its end, the episode's, or a recall.

        With a course the lane goes on while the policy thinks: `tell` is called once it was
        observed, where it has steps left then, and only a chunk that nobody wants any more is
        recalled: what was committed is executed. A simulator that diverges ends the episode.
        """
        began = time.perf_counter()
        result = ChunkResult()
        try:
            self._execute(actions, chunk, course, control, tell, result)
            if self._env.has_diverged():
                result.diverge()
        except Exception:
            if not self._has_diverged():
                raise
            result.is_broken = True
            result.diverge()
        if result.ends:
            self._remark_end(result)
        self.remark(*remarks.of_length(self.attempt))
        result.busy_s = time.perf_counter() - began
        return result

    def _has_diverged(self) -> bool:
        """True if an error of the env follows from a state that is none, as far as that is seen: in
        the state itself or, where that is hidden, in what came of the step before."""
        turn, seen = self._turn, self._env.has_diverged()
        if turn is None or seen is not None:
            return bool(seen)
        arrays = {} if turn.observation is None else flatten(turn.observation)[0]
        is_odd = self._buffer.not_finite or remarks.not_finite(arrays)
        return bool(is_odd) or not math.isfinite(turn.reward)

    def _execute(
        self,
        actions: Array,
        chunk: int,
        course: Course | None,
        control: Control,
        tell: Callable[[ChunkResult], None],
        result: ChunkResult,
    ) -> None:
        self._decided = self._asked
        self._decisions += 1
        observe_at, before, after = course or (len(actions), 0, 0)
        behind, total, done = before + len(actions), before + len(actions) + after, 0
        # The next decision's past may reach into this chunk.
        history, reach = self._history, self._history if self._history > 1 else 0
        while True:
            if done == observe_at:
                self._asked = self.attempt.steps
                self._see(result, self._turn)
                if done < total:
                    tell(result)
            if done == total:
                break
            is_held = not before <= done < behind
            action: Any = self._env.hold(self._last) if is_held else actions[done - before]
            is_disturbed = self._perturbation is not None
            turn = self._env.step(self._disturbed(action) if is_disturbed else action)
            self._turn, self._last = turn, action
            done += 1
            control.count_step(0)
            result.rewards.append(turn.reward)
            if not math.isfinite(turn.reward):
                self.remark(remarks.of_reward(self.attempt.task.name))
            if self._tells:
                result.infos.append({k: float(v) for k, v in values_in(turn.info).items()})
            ends = result.ends = self.attempt.judge(turn.info, turn.terminated, turn.truncated)
            if is_held:
                self._decided = self._asked
            is_past = 0 <= observe_at - done < history or total - done < reach
            source, is_seen = -1 if is_held else chunk, is_past or self._looks_always
            if is_seen or ends or self._is_recorded:
                self._look(turn, action, source, result, is_seen=is_seen)
            if ends:
                break
            if control.command(0, chunk) == STOP:
                if course is not None:
                    break
                # The policy is owed a whole history: with one, a few more steps complete it.
                self._see(result, turn)
                total = observe_at = min(total, done + self._buffer.lacks(self.attempt.steps))

    def _disturbed(self, action: Array) -> Array:
        """The action that the env is given: records hold the one that was asked for."""
        assert self._perturbation is not None
        assert self._env.drive is not None
        return self._perturbation.action(action, self.attempt.steps, self._env.drive.spec)

    def _remark_end(self, result: ChunkResult) -> None:
        """Note what an episode shows that has ended."""
        if result.ends & END_DIVERGED or self._turn is None:
            return
        self.remark(*remarks.of_end(self.attempt, self._turn.info))
        if "deferred" not in self._env.abilities and not self._sinks_look:
            arrays, _ = flatten(self._turn.observation)
            steps, decisions = self.attempt.steps, self._decisions
            found = remarks.of_frames(
                self.attempt.task, arrays, frames=steps + 1, decisions=decisions
            )
            self.remark(*found)

    def _look_at_numbers(self) -> None:
        for key in self._buffer.not_finite:
            self.remark(remarks.of_observation(self.attempt.task.name, key))

    def _look(
        self, turn: Turn, action: Array, chunk: int, result: ChunkResult, *, is_seen: bool
    ) -> None:
        """Observe the step just made if anyone wants it, and record it."""
        if result.ends:
            is_seen = self.attempt.final_observation
        arrays: Observation | None = None
        if is_seen:
            arrays = self._see(result, turn)
            result.ends |= END_OBSERVED if result.ends else 0
        elif self._sinks_look and (result.ends or self.attempt.steps % self._stride == 0):
            arrays = self._observe(result, turn, self._sink_cameras)
        began = time.perf_counter() if self._sinks_look else 0.0
        self._record(action, turn.reward, chunk=chunk, observation=arrays)
        if self._sinks_look:
            result.observe_s += time.perf_counter() - began

    def _see(self, result: ChunkResult, turn: Turn | None) -> Observation | None:
        """Put the observation of the current step into the buffer, once."""
        if self._buffer.last == self.attempt.steps:
            return None
        arrays = self._observe(result, turn, self._all_cameras)
        began = time.perf_counter()
        self._buffer.push(self.for_policy(arrays), self.attempt.steps)
        self._look_at_numbers()
        result.observe_s += time.perf_counter() - began
        return arrays

    def _observe(
        self, result: ChunkResult, turn: Turn | None, cameras: tuple[str, ...] | None
    ) -> Observation:
        began = time.perf_counter()
        if turn is not None and "deferred" not in self._env.abilities:
            raw = turn.observation
        else:
            self._env.use_cameras(cameras)
            raw = self._env.observe()
        arrays, _ = flatten(raw)
        if self._perturbation is not None:
            arrays = self._perturbation.observation(arrays, self.attempt.steps)
        result.observe_s += time.perf_counter() - began
        return arrays

    def _record(
        self, action: Array | None, reward: float, *, chunk: int, observation: Observation | None
    ) -> None:
        if not self._is_recorded:
            return
        self._tracks.step(
            self.attempt,
            action,
            reward,
            chunk=chunk,
            age=0 if action is None else self.attempt.steps - 1 - self._decided,
            observation=observation,
            state=self._env.state() if self._tracks.needs.states else None,
        )


def packed_numbers(infos: Sequence[Mapping[str, float]]) -> dict[str, bytes]:
    """The numbers of a chunk's steps as they travel: by key, NaN where a step does not tell."""
    keys = dict.fromkeys(key for info in infos for key in info)
    return {key: np.array([i.get(key, np.nan) for i in infos], "<f8").tobytes() for key in keys}
