"""Executes a worker's messages on its one env. Knows no socket: the child process and the inline
runtime both stand around it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np

from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Outcome, Trial
from hocket.core.wire import (
    Begin,
    Describe,
    Described,
    Discard,
    Execute,
    Executed,
    Failed,
    Message,
    Ready,
    Render,
    Sealed,
)
from hocket.errors import UsageError, WireError
from hocket.workers.attempt import Attempt
from hocket.workers.env.chunk_runner import Played, Player
from hocket.workers.env.live_env import Stage
from hocket.workers.env.observations import Shelf
from hocket.workers.env.state_replay import show_again
from hocket.workers.plain import env_spec_to_plain
from hocket.workers.recording import Recording
from hocket.workers.shm import Control
from hocket.workers.spaces import flatten


class Port(Protocol):
    """A Host's way to its parent."""

    def post(self, message: Message) -> None: ...

    def allocate(self, size: int) -> Any:
        """Memory for arrays."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether the parent sees that memory; otherwise arrays travel in messages."""
        ...


class Host:
    """Owns one live env and at most one running attempt."""

    def __init__(self, spec: WorkerSpec, control: Control, port: Port, index: int) -> None:
        if spec.lanes != 1:
            raise UsageError(f"A worker of a plain env has one lane, not {spec.lanes}.")
        self._spec = spec
        self._control = control
        self._port = port
        self._stage = Stage(dict(spec.suites), index)
        self._shelf = Shelf(spec.reads, spec.history)
        self._recording: Recording | None = None
        self._player: Player | None = None
        self._told: set[tuple[str, str]] = set()
        self._tasks: dict[type[Any], Callable[[Any], None]] = {
            Describe: self._describe,
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
        """Close the env and forget the attempt that is running."""
        self._drop()
        self._stage.close()

    def _describe(self, message: Describe) -> None:
        try:
            tasks = [asdict(task) for task in self._stage.tasks(message.suite)]
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - told to the parent, whatever it is
            self._port.post(_failure(-1, -1, exc))
        else:
            self._port.post(Described(message.suite, tasks))

    def _begin(self, message: Begin) -> None:
        number = message.attempts[0]
        try:
            answer = self._reset(message)
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - told to the parent, whatever it is
            self._fail(number, exc)
        else:
            self._port.post(answer)

    def _reset(self, message: Begin) -> Ready:
        suite, task, seed, repeat = message.trials[0]
        trial = Trial(suite=suite, task=task, seed=seed, repeat=repeat)
        self._drop()
        recording = self._open_recording()
        began = time.perf_counter()
        self._stage.build(suite, task)
        built = time.perf_counter()
        recording.prepare(self._stage.task, message.record[0], self._stage.abilities)
        player = Player(
            self._stage,
            self._shelf,
            recording,
            Attempt(
                trial,
                message.attempts[0],
                self._stage.task,
                max_steps=message.max_steps[0],
                final=message.final_observation,
            ),
            cameras=self._spec.cameras,
            history=self._spec.history,
        )
        arrays, prompt = flatten(player.reset())
        seen = player.for_policy(arrays)
        is_new = self._shelf.restart(seen, self._port.allocate)
        prompt = prompt if prompt is not None else self._stage.task.prompt
        player.open(arrays, prompt, message.record[0])
        self._player = player
        spec = None
        if (suite, task) not in self._told:
            self._told.add((suite, task))
            spec = env_spec_to_plain(self._stage.spec(seen))
        layout = self._shelf.layout
        return Ready(
            lanes=[0],
            attempts=[message.attempts[0]],
            prompts=[prompt],
            spec=spec,
            layout=layout.places if is_new and layout is not None else None,
            arrays=self._arrays(),
            build_s=built - began,
            reset_s=time.perf_counter() - built,
        )

    def _execute(self, message: Execute) -> None:
        number, chunk = message.attempts[0], message.chunks[0]
        player = self._player
        try:
            if player is None or player.attempt.number != number:
                raise WireError(f"Attempt {number} is not running here.")
            drive = self._stage.drive
            assert drive is not None
            actions = drive.decode(message.actions, message.counts[0])
            played = player.play(actions, chunk, message.observe_at, self._control)
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - told to the parent, whatever it is
            self._fail(number, exc)
            return
        self._port.post(self._answer(number, chunk, played))
        if played.ends:
            self._seal(player)

    def _answer(self, number: int, chunk: int, played: Played) -> Executed:
        return Executed(
            lanes=[0],
            attempts=[number],
            chunks=[chunk],
            steps=[len(played.rewards)],
            rewards=played.packed_rewards(),
            ends=[played.ends],
            busy_s=[played.busy_s],
            observe_s=[played.observe_s],
            arrays=self._arrays() if played.is_observed else None,
        )

    def _seal(self, player: Player) -> None:
        """After the answer: the lane is free already, and waits for no disk."""
        attempt = player.attempt
        self._player = None
        assert self._recording is not None
        try:
            files = self._recording.seal(attempt.outcome)
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - told to the parent, whatever it is
            self._recording.discard()
            self._port.post(_failure(0, attempt.number, exc))
        else:
            self._port.post(Sealed(0, attempt.number, files))

    def _render(self, message: Render) -> None:
        suite, task, seed, repeat = message.trial
        try:
            self._drop()
            recording = self._open_recording()
            self._stage.build(suite, task)
            attempt = Attempt(
                Trial(suite=suite, task=task, seed=seed, repeat=repeat),
                message.attempt,
                self._stage.task,
                max_steps=0,
                final=False,
            )
            states = np.frombuffer(message.states, "<f8").reshape(message.length, -1)
            show_again(self._stage, recording, attempt, states, message.record, self._control)
            files = recording.seal(Outcome(message.outcome))
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - told to the parent, whatever it is
            self._fail(message.attempt, exc)
        else:
            self._port.post(Sealed(0, message.attempt, files))

    def _open_recording(self) -> Recording:
        if self._recording is None:
            self._recording = Recording(self._spec.sinks, self._spec.folder)
        return self._recording

    def _discard(self, message: Discard) -> None:
        if self._player is not None and self._player.attempt.number in message.attempts:
            # Nobody may have read the answer that told what the env is.
            self._told.clear()
            self._drop()

    def _drop(self) -> None:
        self._player = None
        if self._recording is not None:
            self._recording.discard()

    def _fail(self, number: int, exc: BaseException) -> None:
        """Report an attempt as lost. Its env is closed: it may be in any state by now."""
        failure = _failure(0, number, exc)
        try:
            self._drop()
            self._stage.close()
        except (Exception, SystemExit):  # noqa: BLE001 - the first error is the one to tell
            failure = failure._replace(traceback=failure.traceback + "\n" + traceback.format_exc())
        self._port.post(failure)

    def _arrays(self) -> bytes | None:
        return None if self._port.is_shared else bytes(self._shelf.memory)


def _failure(lane: int, number: int, exc: BaseException) -> Failed:
    text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
    return Failed(lane, number, type(exc).__name__, str(exc), text)
