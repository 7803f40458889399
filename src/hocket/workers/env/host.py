"""Executes a worker's messages on its one env. Knows no socket: the child process and the inline
runtime both use it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from hocket.core.contracts.recorder import Sink
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Outcome, Trial
from hocket.core.wire import (
    END_OBSERVED,
    TWICE,
    Begin,
    Course,
    Describe,
    Discard,
    Execute,
    Executed,
    Failed,
    Message,
    Observed,
    Piece,
    Ready,
    Remark,
    Render,
    Sealed,
    Told,
    outcome_of,
)
from hocket.errors import EnvError, UsageError, WireError
from hocket.workers.env import remarks
from hocket.workers.env.attempt import Attempt, Tracks, build_sinks
from hocket.workers.env.chunk_runner import (
    ChunkResult,
    ChunkRunner,
    packed_numbers,
)
from hocket.workers.env.live_env import LiveEnv
from hocket.workers.env.observation_buffer import ObservationBuffer
from hocket.workers.env.perturbation import Perturbation
from hocket.workers.env.spaces import flatten
from hocket.workers.shm import Control, Memory


class Port(Protocol):
    """A Host's way to its parent."""

    def post(self, message: Message, *, has_more: bool = False) -> None:
        """Tell the parent something; with `has_more` another message follows at once, and both may
        go together."""

    def leave(self, lane: int, attempt: int, files: Sequence[str]) -> None:
        """Hand over what a lost attempt left, where the parent does not see the folder."""

    @property
    def block(self) -> int:
        """The number of the memory that was allocated last, where it is shared."""

    def allocate(self, size: int) -> Memory:
        """Get memory for arrays, `size` bytes."""

    @property
    def is_shared(self) -> bool:
        """True if the parent sees that memory; otherwise arrays travel in messages."""


class Host:
    """Owns one live env and at most one running attempt."""

    def __init__(
        self,
        spec: WorkerSpec,
        control: Control,
        port: Port,
        index: int,
        env: LiveEnv | None = None,
    ) -> None:
        """`env`: one that was made before it was known what is read of it."""
        if spec.lanes != 1:
            raise UsageError(f"A worker of a plain env has one lane, not {spec.lanes}.")
        self._spec = spec
        self._control = control
        self._port = port
        self._env = env or LiveEnv(spec.suites, index)
        self._buffer = ObservationBuffer(spec.reads, spec.history, spec.slots)
        self._tracks: Tracks | None = None
        self._runner: ChunkRunner | None = None
        self._told: set[tuple[str, str]] = set()
        """Suite and task of the envs whose spec was sent."""
        self._tasks: dict[type[Any], Callable[[Any], None]] = {
            Describe: lambda message: port.post(self._env.suites.describe(message.suite)),
            Begin: self._begin,
            Execute: self._execute,
            Discard: self._discard,
            Render: self._render,
        }

    def perform(self, message: Message) -> None:
        """Do what a message asks, and post the answers. What the env raises is posted too."""
        task = self._tasks.get(type(message))
        if task is None:
            raise WireError(f"A worker cannot perform {type(message).__name__}.")
        task(message)

    def close(self) -> None:
        self._drop()
        self._env.close()

    def abandon(self) -> list[str]:
        """Give up the running attempt; return the files that it leaves, named in the run folder."""
        self._runner = None
        return [] if self._tracks is None else self._tracks.abandon()

    def _begin(self, message: Begin) -> None:
        try:
            answer = self._reset(message)
        except BaseException as exc:  # noqa: BLE001 - told to the parent, whatever it is
            self._fail(message.attempts[0], message.trials[0][1], exc)
        else:
            self._port.post(answer)

    def _reset(self, message: Begin) -> Ready:
        trial, number, record = Trial(*message.trials[0]), message.attempts[0], message.record[0]
        limit, env, name = message.max_steps[0], self._env, (trial.suite, trial.task)
        self._drop()
        began = time.perf_counter()
        env.build(*name)
        built = time.perf_counter()
        env.use_quality("full")
        tracks = self._begin_tracks(record)
        final = message.final_observation
        attempt = Attempt(trial, number, env.task, max_steps=limit, final=final)
        perturbation = self._perturbation(trial)
        runner = ChunkRunner(env, self._buffer, tracks, attempt, self._spec, perturbation)
        arrays, prompt = runner.reset(twice=bool(record.get(TWICE)))
        seen = runner.for_policy(arrays)
        is_new = self._buffer.restart(seen, self._port.allocate)
        runner.open(arrays, prompt)
        self._runner = runner
        spec = None
        if name not in self._told:
            self._told.add(name)
            said = remarks.of_reset(env.task, prompt=prompt, reads=self._spec.reads)
            spec = env.spec(seen, said).to_plain()
        layout = self._buffer.layout
        return Ready(
            lanes=[0],
            attempts=[number],
            prompts=[prompt],
            spec=spec,
            layout=layout.entries if is_new and layout is not None else None,
            block=self._port.block,
            arrays=self._arrays(),
            build_s=built - began,
            reset_s=time.perf_counter() - built,
            differs=runner.differs,
        )

    def _execute(self, message: Execute) -> None:
        number, chunk = message.attempts[0], message.chunks[0]
        runner = self._runner

        def tell(result: ChunkResult) -> None:
            """Say what is seen for the next decision, on the way."""
            self._buffer.publish(chunk + 1)
            steps = [len(result.rewards)]
            self._port.post(Observed([0], [number], [chunk], steps, self._arrays()))

        try:
            if runner is None or runner.attempt.number != number:
                raise WireError(f"Attempt {number} is not running here.")
            drive = self._env.drive
            assert drive is not None
            course = Course(*message.courses[0]) if message.courses else None
            if (flaw := drive.flaw(message.actions)) == "not finite":
                result = ChunkResult()
                result.diverge()
            else:
                if flaw:
                    runner.remark(remarks.of_actions(self._env.task.name))
                actions = drive.decode(message.actions, message.counts[0])
                result = runner.run(actions, chunk, course, self._control, tell)
        except BaseException as exc:  # noqa: BLE001 - told to the parent, whatever it is
            self._tell_news(number)
            self._fail(number, self._env.task.name, exc)
            return
        self._tell_news(number)
        if numbers := packed_numbers(result.infos):
            self._port.post(Told([0], [number], [chunk], [len(result.rewards)], numbers))
        # Where the lane went on after it was observed, that was told already.
        is_last = course is None or course.observe_at >= len(result.rewards)
        is_observed = result.ends & END_OBSERVED if result.ends else is_last
        if is_last or result.ends:
            # At an end, the slot that the policy may still read is the other one.
            self._buffer.publish(chunk if result.ends else chunk + 1)
        answer = Executed(
            lanes=[0],
            attempts=[number],
            chunks=[chunk],
            steps=[len(result.rewards)],
            rewards=np.array(result.rewards, "<f8").tobytes(),
            ends=[result.ends],
            busy_s=[result.busy_s],
            observe_s=[result.observe_s],
            arrays=self._arrays() if is_observed else None,
        )
        # Where to seal is brief, the parent is woken once for both.
        is_brief = result.ends and self._tracks is not None and self._tracks.is_brief
        self._port.post(answer, has_more=bool(is_brief))
        if result.ends:
            self._seal(number, outcome_of(result.ends))
        if result.is_broken:
            with contextlib.suppress(Exception, SystemExit):
                self._env.close()

    def _tell_news(self, number: int) -> None:
        """Tell what there is to remark of the running attempt."""
        if self._runner is not None and self._runner.attempt.number == number:
            for text in self._runner.news():
                self._port.post(Remark(0, number, text))

    def _seal(self, number: int, outcome: Outcome) -> None:
        """Seal recordings, after the answer: the lane is free already, and waits for no disk."""
        assert self._tracks is not None
        assert self._runner is not None
        attempt, self._runner = self._runner.attempt, None
        try:
            files = self._tracks.seal(outcome)
        except BaseException as exc:  # noqa: BLE001 - told to the parent, whatever it is
            self._tracks.discard()
            self._port.post(Failed.of(0, number, exc))
        else:
            for name, data in (self._tracks.rows or {}).items():
                self._port.post(Piece(0, number, name, 0, data, b""), has_more=True)
            self._port.post(Sealed(0, number, files, attempt.progress, attempt.told))

    def _render(self, message: Render) -> None:
        try:
            self._drop()
            files = self._replay(message).seal(Outcome(message.outcome))
        except BaseException as exc:  # noqa: BLE001 - told to the parent, whatever it is
            self._fail(message.attempt, message.trial[1], exc)
        else:
            self._port.post(Sealed(0, message.attempt, files))

    def _replay(self, message: Render) -> Tracks:
        """Record what is observed at those states of an ended attempt that the sinks ask for."""
        env, trial, record = self._env, Trial(*message.trial), message.record
        perturbation = self._perturbation(trial)
        states = np.frombuffer(message.states, "<f8").reshape(message.length, -1)
        env.build(trial.suite, trial.task)
        if "deferred" not in env.abilities:
            raise EnvError(f"The env of {env.task.name!r} cannot be observed without a step.")
        env.use_quality(str(record.get("quality", "full")))
        tracks = self._begin_tracks(record)
        # The reset lays out the scene; its own picture is of no use.
        env.use_cameras(())
        env.reset(trial, perturbation)
        env.use_cameras(None if tracks.needs.all_cameras else tracks.needs.cameras)
        attempt = Attempt(trial, message.attempt, env.task, max_steps=0, final=False)
        tracks.open(attempt, env.task.prompt)
        for step in sorted({*range(0, len(states), tracks.needs.stride), len(states) - 1}):
            env.restore(states[step])
            arrays, _ = flatten(env.observe())
            if perturbation is not None:
                arrays = perturbation.observation(arrays, step)
            attempt.steps = step
            tracks.step(attempt, None, 0.0, chunk=-1, age=0, observation=arrays, state=None)
            self._control.count_step(0)
        return tracks

    def _perturbation(self, trial: Trial) -> Perturbation | None:
        return Perturbation(self._spec.perturb, trial) if self._spec.perturb else None

    @cached_property
    def _sinks(self) -> list[Sink]:
        return build_sinks(self._spec.sinks)

    def _begin_tracks(self, record: Mapping[str, Any]) -> Tracks:
        """Return the tracks of the next attempt, which runs in the env that was built."""
        env, folder = self._env, self._spec.folder
        streams = not self._spec.sends_files
        sinks, abilities = self._sinks, env.abilities
        self._tracks = Tracks(sinks, env.task, record, abilities, folder, streams=streams)
        return self._tracks

    def _discard(self, message: Discard) -> None:
        if self._runner is not None and self._runner.attempt.number in message.attempts:
            # Nobody may have read the answer that told what the env is.
            self._told.clear()
            self._drop()

    def _drop(self) -> None:
        self._runner = None
        if self._tracks is not None:
            self._tracks.discard()

    def _fail(self, number: int, task: str, exc: BaseException) -> None:
        """Report an attempt as lost. Its env is closed: it may be in any state by now."""
        failure = Failed.of(0, number, exc, f"The env of task {task!r}")
        with contextlib.suppress(Exception, SystemExit):  # The first error is the one to tell.
            self._port.leave(0, number, self.abandon())
            self._env.close()
        self._port.post(failure)

    def _arrays(self) -> bytes | None:
        return None if self._port.is_shared else bytes(self._buffer.memory)
