"""Runs chunks in a worker's env up to their end or the episode's, and keeps what policies read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hocket.core.arrays import first_difference
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Array, Observation
from hocket.core.wire import END_OBSERVED, Course
from hocket.errors import ObservationError, SecondResetError
from hocket.workers.env import remarks
from hocket.workers.env.attempt import Attempt, Tracks
from hocket.workers.env.live_env import LiveEnv, Turn
from hocket.workers.env.perturbation import Perturbation
from hocket.workers.env.spaces import choose, flatten
from hocket.workers.shm import STOP, Control, Layout, Memory


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
    """Seconds of these that were spent observing."""


class ObservationBuffer:
    """Checks observations against the attempt's first one and lays them into shared memory."""

    def __init__(self, reads: tuple[str, ...] | None, history: int, slots: int = 1) -> None:
        """With more than one of `slots` observations are kept here, and `publish` copies them into
        the slots of shared memory: the policy may still read one of them."""
        self._reads = reads
        self._history = history
        self._slots = slots
        self._views: Observation = {}
        self.last = -1
        """Step of the newest observation."""
        self._streak = 0
        """How many observations of consecutive steps there are, the newest included."""
        self._extent = 0
        """Number of keys in the attempt's first observation."""
        self.layout: Layout | None = None
        self.memory: Memory = bytearray()
        """The newest observation: shared with the parent where there is one slot."""
        self._shared: Memory = self.memory

    def restart(self, arrays: Observation, allocate: Callable[[int], Memory]) -> bool:
        """Begin an attempt with the observation of its reset; true where the layout is new."""
        chosen = choose(arrays, self._reads)
        layout = Layout.of(chosen, self._history)
        is_new = layout != self.layout
        if is_new:
            self._shared = self.memory = allocate(layout.stride * self._slots)
            if self._slots > 1:
                self.memory = bytearray(layout.stride)
            self._views = layout.views(self.memory, 0)
            self.layout = layout
        for key, view in self._views.items():
            view[...] = chosen[key]
        self._extent = len(arrays)
        self.last, self._streak = 0, 1
        self.publish(0)
        return is_new

    def publish(self, chunk: int) -> None:
        """Let the parent read the newest observation, in the slot of this chunk."""
        if self._slots > 1:
            at = chunk % self._slots * len(self.memory)
            self._shared[at : at + len(self.memory)] = self.memory

    def push(self, arrays: Observation, step: int) -> None:
        """Add the observation of a step; with a history the oldest goes."""
        if self._reads is None and len(arrays) != self._extent:
            extra = sorted(set(arrays) - set(self._views))
            if extra:
                raise ObservationError(
                    f"The observation of step {step} has a new key {extra[0]!r}, which was not "
                    f"there at the reset."
                )
        for key, view in self._views.items():
            value = arrays.get(key)
            held = view if self._history == 1 else view[-1]
            if value is None or value.shape != held.shape or value.dtype != held.dtype:
                raise ObservationError(_changed(key, value, held, step))
            if self._history > 1:
                view[:-1] = view[1:].copy()
                view[-1] = value
            else:
                view[...] = value
        self._streak = self._streak + 1 if step == self.last + 1 else 1
        self.last = step

    def lacks(self, step: int) -> int:
        """How many more steps have to be observed before the history at this one is whole."""
        streak = self._streak if step == self.last else 0
        # Seen at every step since the reset it is whole, however short: it is padded.
        return self._history - streak if streak < min(self._history, step + 1) else 0


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
        self._tracks.open(self.attempt, prompt)
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
        recalled: what was committed is executed.
        """
        began = time.perf_counter()
        result = ChunkResult()
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
            turn = self._turn = self._env.step(self._executed(action))
            self._last = action
            done += 1
            control.count_step(0)
            self._judge(turn, result)
            if is_held:
                self._decided = self._asked
            is_past = 0 <= observe_at - done < history or total - done < reach
            source, is_seen = -1 if is_held else chunk, is_past or self._looks_always
            self._look(turn, action, source, result, is_seen=is_seen)
            if result.ends:
                break
            if control.command(0, chunk) == STOP:
                if course is not None:
                    break
                # The policy is owed a whole history: with one, a few more steps complete it.
                self._see(result, turn)
                total = observe_at = min(total, done + self._buffer.lacks(self.attempt.steps))
        result.busy_s = time.perf_counter() - began
        return result

    def _judge(self, turn: Turn, result: ChunkResult) -> None:
        result.rewards.append(turn.reward)
        if self._tells:
            result.infos.append(numbers_in(turn.info))
        result.ends = self.attempt.judge(
            turn.info, terminated=turn.terminated, truncated=turn.truncated
        )

    def _executed(self, action: Array) -> Array:
        """The action that the env is given: records hold the one that was asked for."""
        if self._perturbation is None:
            return action
        assert self._env.drive is not None
        return self._perturbation.action(action, self.attempt.steps, self._env.drive.spec)

    def remarks(self) -> list[str]:
        """What the user should be told, once the episode has ended."""
        assert self._turn is not None
        found = remarks.of_end(self.attempt, self._turn.info)
        if "deferred" not in self._env.abilities and not self._sinks_look:
            arrays, _ = flatten(self._turn.observation)
            found += remarks.of_frames(
                self.attempt.task,
                arrays,
                frames=self.attempt.steps + 1,
                decisions=self._decisions,
            )
        return found

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
        self._record(action, turn.reward, chunk=chunk, observation=arrays)

    def _see(self, result: ChunkResult, turn: Turn | None) -> Observation | None:
        """Put the observation of the current step into the buffer, once."""
        if self._buffer.last == self.attempt.steps:
            return None
        arrays = self._observe(result, turn, self._all_cameras)
        began = time.perf_counter()
        self._buffer.push(self.for_policy(arrays), self.attempt.steps)
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
        if not self._tracks.is_on:
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


def numbers_in(info: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers and truth values in `info`, those in dicts under keys with slashes."""
    found: dict[str, float] = {}
    for key, value in info.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found.update(numbers_in(value, f"{name}/"))
        elif isinstance(value, (bool, int, float, np.integer, np.floating, np.bool_)):
            found[name] = float(value)
        elif isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "biuf":
            found[name] = float(value.item())
    return found


def packed_numbers(infos: Sequence[Mapping[str, float]]) -> dict[str, bytes]:
    """The numbers of a chunk's steps as they travel: by key, NaN where a step does not tell."""
    keys = dict.fromkeys(key for info in infos for key in info)
    return {key: np.array([i.get(key, np.nan) for i in infos], "<f8").tobytes() for key in keys}


def _changed(key: str, value: Array | None, held: Array, step: int) -> str:
    was = f"{np.dtype(held.dtype)} {held.shape}"
    if value is None:
        return f"The observation of step {step} lacks the key {key!r} ({was} at the reset)."
    return (
        f"The observation of step {step} has {key!r} as {value.dtype} {value.shape}; at the reset "
        f"it was {was}."
    )
