"""Conformance checks for runtimes: each rule is a sentence, named when it is broken."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from hocket.core import wire
from hocket.core.contracts.link import LastWords, Link
from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import Array, Ref
from hocket.errors import WorkerFailed
from hocket.system.machine import stat_of
from hocket.testing.findings import (
    LOOK_S,
    Bench,
    Broken,
    Finding,
    Rules,
    closes,
    examine,
    is_same,
    raising,
    require,
    wait_until,
)
from hocket.testing.toy import ToyConfig, ToyEnv
from hocket.workers.shm import STOP, word

_KEY = "observation/state"
_SEED = 3
M = TypeVar("M", bound=wire.Message)


def runtime_findings(make: Callable[[], Runtime], *, deadline_s: float = 60.0) -> list[Finding]:
    """Every rule that the runtimes made by `make` break; none means that hocket can run on them.

    Starts a handful of workers with a toy env, one after the other. Whatever is awaited must come
    within `deadline_s`.
    """
    return examine(_RuntimeBench(make, deadline_s), _BASICS, lambda: _RULES)


check_runtime = raising("The runtime", runtime_findings)


class _RuntimeBench(Bench[Runtime]):
    def __init__(self, make: Callable[[], Runtime], deadline_s: float) -> None:
        super().__init__(make)
        self._deadline_s = deadline_s

    @contextmanager
    def worker(self, *, begun: bool = True, **toy: Any) -> Iterator[_Worker]:
        """A new worker with a toy env, in an episode if `begun`; it is killed in the end."""
        config = {"length_min": 5000, "length_max": 5000, **toy}
        spec = WorkerSpec(suites={"toy": Ref(name="toy", config=config)})
        link = self.held.start(spec)
        try:
            worker = _Worker(link, ToyConfig(**config), self._deadline_s)
            if begun:
                worker.begin()
            yield worker
        finally:
            link.kill()


class _Worker:
    """A worker, spoken to by hand."""

    def __init__(self, link: Link, config: ToyConfig, deadline_s: float) -> None:
        self.link = link
        self.env = ToyEnv("count", config)
        """The env that the worker has, to compare with."""
        self._deadline_s = deadline_s
        self._unread: list[wire.Message] = []
        self.hello = self.wait(wire.Hello)

    def wait(self, kind: type[M]) -> M:
        """The next message, which must be of this kind."""
        message = self._next()
        if not isinstance(message, kind):
            raise Broken(f"{message!r:.200} came instead of {kind.__name__}.")
        return message

    def wait_for_end(self) -> str:
        """Read on until the link says that the worker is gone; gives its words."""
        try:
            while True:
                self._next()
        except WorkerFailed as exc:
            return str(exc)

    def wait_for_step(self) -> None:
        def has_stepped() -> bool:
            self._unread += self.link.receive()  # It may tell its steps by message.
            return self.link.steps(0) > 0

        wait_until(has_stepped, self._deadline_s, "It made no step.")

    def wait_for_death(self) -> None:
        pid = self.hello.pid
        wait_until(lambda: not _is_running(pid), self._deadline_s, f"Process {pid} lives on.")

    def _next(self) -> wire.Message:
        deadline = time.monotonic() + self._deadline_s
        while not self._unread:
            require(time.monotonic() < deadline, f"Nothing came within {self._deadline_s} s.")
            self.link.flush()
            fd = self.link.fileno()
            if fd is not None:
                select.select([fd], [], [], LOOK_S)
            self._unread += self.link.receive()
            if fd is None and not self._unread:
                time.sleep(LOOK_S)
        return self._unread.pop(0)

    def begin(self, attempt: int = 0) -> wire.Ready:
        trial = ("toy", "count", _SEED, 0)
        self.link.send(
            wire.Begin([0], [attempt], [trial], [0], final_observation=False, record=[{}])
        )
        self.env.reset(seed=_SEED)
        return self.wait(wire.Ready)

    def execute(self, actions: Array, chunk: int = 0) -> None:
        data = np.ascontiguousarray(actions, "<f8").tobytes()
        self.link.send(wire.Execute([0], [0], [chunk], [len(actions)], data, ()))

    def require_observation(self) -> None:
        """What has arrived must be what the env shows."""
        seen = self.link.arrays(0)
        require(_KEY in seen, f"arrays(0) has {sorted(seen)}.")
        is_right = is_same(self.env.observe()["state"], np.array(seen[_KEY]))
        require(is_right, "Another observation arrived.")


def _actions(count: int) -> Array:
    numbers: Array = np.sin(np.arange(4.0 * count))
    return numbers.reshape(count, 4)


def _says_hello(bench: _RuntimeBench) -> None:
    """start() gives a link, whose first message is Hello."""
    with bench.worker(begun=False) as worker:
        require(worker.hello.transport != "", "It does not say how arrays travel.")


def _begins(bench: _RuntimeBench) -> None:
    """Begin is answered by Ready, and arrays() has the first observation."""
    with bench.worker(begun=False) as worker:
        require(worker.begin().spec is not None, "Ready does not tell what the env is.")
        worker.require_observation()


def _executes(bench: _RuntimeBench) -> None:
    """Execute is answered by Executed, and arrays() has the last observation."""
    with bench.worker() as worker:
        for chunk in range(2):
            actions = _actions(5 + chunk)
            worker.execute(actions, chunk)
            rewards = [worker.env.advance(action.astype(np.float32))[0] for action in actions]
            done = worker.wait(wire.Executed)
            require(done.steps == [len(actions)], f"It made {done.steps} of {len(actions)} steps.")
            found = np.frombuffer(done.rewards, "<f8").tolist()
            require(found == rewards, "The rewards are not those of the env.")
            worker.require_observation()


def _describes(bench: _RuntimeBench) -> None:
    """Describe is answered by the tasks of the suite."""
    with bench.worker(begun=False) as worker:
        worker.link.send(wire.Describe("toy"))
        names = [task["name"] for task in worker.wait(wire.Described).tasks]
        require("count" in names, f"The toy's tasks are {names}.")


def _counts(bench: _RuntimeBench) -> None:
    """steps() counts every step that the worker has made."""
    with bench.worker() as worker:
        for chunk in range(2):
            worker.execute(_actions(5), chunk)
            worker.wait(wire.Executed)
            counted = worker.link.steps(0)
            require(counted == 5 * (chunk + 1), f"After {5 * (chunk + 1)} it says {counted}.")


def _recalls(bench: _RuntimeBench) -> None:
    """control() recalls a chunk between two of its steps, and no other."""
    with bench.worker(step_s=0.001) as worker:
        is_inline = worker.link.fileno() is None
        sent = 200 if is_inline else 4000
        if is_inline:  # It works inside `receive`: the word has to be there before.
            worker.link.control(0, word(0, STOP))
        worker.execute(_actions(sent))
        if not is_inline:
            worker.wait_for_step()
            worker.link.control(0, word(0, STOP))
        require(0 < worker.wait(wire.Executed).steps[0] < sent, "It went on.")
        worker.link.control(0, 0)
        worker.execute(_actions(3), 1)
        require(worker.wait(wire.Executed).steps == [3], "The next chunk is not executed whole.")


def _survives_errors(bench: _RuntimeBench) -> None:
    """An error of the env is told as Failed, and the worker goes on."""
    with bench.worker(raise_at=2) as worker:
        worker.execute(_actions(5))
        failed = worker.wait(wire.Failed)
        require((failed.lane, failed.attempt) == (0, 0), f"It blames {failed[:2]}.")
        require("ToyError" in failed.message, "It does not say what was raised.")
        worker.begin(attempt=1)


def _tells_of_death(bench: _RuntimeBench) -> None:
    """A worker that dies ends its link with WorkerFailed and says how."""
    with bench.worker(exit_at=2) as worker:
        if worker.link.fileno() is not None:  # Else it lives here, and would take us along.
            worker.execute(_actions(5))
            require(bool(worker.wait_for_end()), "There are no words on how it ended.")


def _has_last_words(bench: _RuntimeBench) -> None:
    """last_words() says where a worker that hangs is."""
    with bench.worker(hang_at=2) as worker:
        if isinstance(worker.link, LastWords):
            worker.execute(_actions(5))
            worker.wait_for_step()
            time.sleep(0.1)
            words = worker.link.last_words()
            require("sleep" in words or "_misbehave" in words, f"It says {words!r:.200}.")


def _closes_in_order(bench: _RuntimeBench) -> None:
    """Close ends the worker, and then its link."""
    with bench.worker() as worker:
        worker.link.send(wire.Close())
        worker.wait_for_end()


def _kills(bench: _RuntimeBench) -> None:
    """kill() ends a worker that is at work, and may be called twice."""
    with bench.worker(step_s=0.001) as worker:
        used = worker.link.memory()
        require(used is None or used > 0, f"memory() is {used!r}.")
        worker.execute(_actions(5000))
        worker.link.kill()
        worker.link.kill()
        worker.wait_for_death()


def _closes(bench: _RuntimeBench) -> None:
    """close() ends every worker, and may be called twice."""
    with bench.worker(begun=False) as worker:
        closes(bench)
        worker.wait_for_death()


def _is_running(pid: int) -> bool:
    """True if a process descends from this one and lives. Workers elsewhere are not looked for, nor
    are those in this very process."""
    parent = _parent(pid)
    while parent > 1 and parent != os.getpid():
        parent = _parent(parent)
    return parent == os.getpid()


def _parent(pid: int) -> int:
    try:
        return int(stat_of(pid)[1])
    except OSError:
        return 0


_BASICS: Rules = (_says_hello, _begins, _executes)
_RULES: Rules = (
    _describes,
    _counts,
    _recalls,
    _survives_errors,
    _tells_of_death,
    _has_last_words,
    _closes_in_order,
    _kills,
    _closes,
)
