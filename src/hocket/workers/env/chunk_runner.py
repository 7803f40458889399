"""Plays chunks in a lane's env until they, or the episode, end."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hocket.core.data import Array, Observation
from hocket.core.wire import END_OBSERVED
from hocket.workers.attempt import Attempt
from hocket.workers.env.live_env import Stage, Turn
from hocket.workers.env.observations import Shelf
from hocket.workers.recording import Recording
from hocket.workers.shm import STOP, Control
from hocket.workers.spaces import flatten


@dataclass(slots=True, kw_only=True)
class Played:
    """What came of one chunk."""

    rewards: list[float] = field(default_factory=list)
    ends: int = 0
    busy_s: float = 0.0
    observe_s: float = 0.0

    @property
    def is_observed(self) -> bool:
        """Whether there is an observation of the last step."""
        return not self.ends or bool(self.ends & END_OBSERVED)

    def packed_rewards(self) -> bytes:
        """The rewards as they travel."""
        return np.array(self.rewards, "<f8").tobytes()


class Player:
    """One attempt in its env.

    An env that can defer observations is observed only where somebody looks: at the end of a
    chunk and the `history - 1` steps before it, at offsets asked for, and at every step where a
    sink wants that or the history of a final observation must be whole.
    """

    def __init__(
        self,
        stage: Stage,
        shelf: Shelf,
        recording: Recording,
        attempt: Attempt,
        *,
        cameras: tuple[str, ...] | None,
        history: int,
    ) -> None:
        self.attempt = attempt
        self._stage = stage
        self._shelf = shelf
        self._recording = recording
        self._history = history
        self._sinks_look = recording.observes_each_step
        needs = recording.needs
        self._policy_cameras = cameras
        self._sink_cameras = None if needs.all_cameras else needs.cameras
        self._all_cameras: tuple[str, ...] | None = None
        if cameras is not None and not needs.all_cameras:
            self._all_cameras = tuple(dict.fromkeys((*cameras, *needs.cameras)))
        self._looks_always = attempt.final_observation and history > 1
        self._decided = 0
        """Step whose observation the running chunk answers."""

    def reset(self) -> Any:
        """The first observation, raw."""
        self._stage.show(self._all_cameras)
        return self._stage.reset(self.attempt.trial)

    def for_policy(self, arrays: Observation) -> Observation:
        """Without cameras that are rendered for sinks alone: whether an attempt is filmed must
        not change what the policy is given."""
        if self._policy_cameras == self._all_cameras:
            return arrays
        unasked = set(self._stage.cameras) - set(self._policy_cameras or ())
        return {key: array for key, array in arrays.items() if key not in unasked}

    def open(self, arrays: Observation, prompt: str, record: Mapping[str, Any]) -> None:
        """Begin to record, with the reset as step 0."""
        self._recording.open(self.attempt, prompt, record)
        self._record(None, 0.0, chunk=-1, observation=arrays)

    def play(
        self,
        actions: Array,
        chunk: int,
        observe_at: Collection[int],
        control: Control,
    ) -> Played:
        """Execute a chunk up to its end, the episode's, or a recall."""
        began = time.perf_counter()
        played = Played()
        self._decided = self.attempt.steps
        total, done = len(actions), 0
        while done < total:
            turn = self._stage.step(actions[done])
            done += 1
            control.count_step(0)
            played.rewards.append(turn.reward)
            played.ends = self.attempt.judge(
                turn.info, terminated=turn.terminated, truncated=turn.truncated
            )
            is_seen = total - done < self._history or done in observe_at or self._looks_always
            self._look(turn, actions[done - 1], chunk, played, is_seen=is_seen)
            if played.ends:
                break
            if control.command(0, chunk) == STOP:
                # The policy is owed a whole history: with one, a few more steps complete it.
                self._see(played, turn)
                total = min(total, done + self._shelf.whole_in(self.attempt.steps))
        played.busy_s = time.perf_counter() - began
        return played

    def _look(
        self, turn: Turn, action: Array, chunk: int, played: Played, *, is_seen: bool
    ) -> None:
        """Observe the step just made if anyone wants it, and record it."""
        if played.ends:
            is_seen = self.attempt.final_observation
        arrays: Observation | None = None
        if is_seen:
            arrays = self._see(played, turn)
            played.ends |= END_OBSERVED if played.ends else 0
        elif self._sinks_look:
            arrays = self._observe(played, turn, self._sink_cameras)
        if self._recording.is_on:
            self._record(action, turn.reward, chunk=chunk, observation=arrays)

    def _see(self, played: Played, turn: Turn | None) -> Observation | None:
        """Put the observation of the current step on the shelf, once."""
        if self._shelf.last == self.attempt.steps:
            return None
        arrays = self._observe(played, turn, self._all_cameras)
        began = time.perf_counter()
        self._shelf.push(self.for_policy(arrays), self.attempt.steps)
        played.observe_s += time.perf_counter() - began
        return arrays

    def _observe(
        self, played: Played, turn: Turn | None, cameras: tuple[str, ...] | None
    ) -> Observation:
        began = time.perf_counter()
        if turn is not None and "deferred" not in self._stage.abilities:
            raw = turn.observation
        else:
            self._stage.show(cameras)
            raw = self._stage.observe()
        arrays, _ = flatten(raw)
        played.observe_s += time.perf_counter() - began
        return arrays

    def _record(
        self, action: Array | None, reward: float, *, chunk: int, observation: Observation | None
    ) -> None:
        if not self._recording.is_on:
            return
        self._recording.step(
            self.attempt,
            action,
            reward,
            chunk=chunk,
            age=0 if action is None else self.attempt.steps - 1 - self._decided,
            observation=observation,
            state=self._stage.state() if self._recording.needs.states else None,
        )
