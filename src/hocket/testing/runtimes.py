"""Conformance checks for runtimes: each rule is a sentence, named when it is broken."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import Array, Ref
from hocket.core.wire import (
    Begin,
    Close,
    Describe,
    Described,
    Execute,
    Executed,
    Failed,
    Hello,
    Message,
    Ready,
)
from hocket.errors import WorkerFailed
from hocket.testing.findings import (
    Broken,
    Finding,
    Rules,
    all_broken,
    conclude,
    first_broken,
    is_same,
    require,
    try_rule,
)
from hocket.testing.toy import ToyConfig, ToyEnv
from hocket.workers.link import LastWords, Link
from hocket.workers.shm import STOP, word

_KEY = "observation/state"
_SEED = 3
_LOOK_S = 0.01
M = TypeVar("M", bound=Message)


def check_runtime(make: Callable[[], Runtime], *, deadline_s: float = 60.0) -> None:
    """Raise ConformanceError with every rule that the runtimes made by `make` break.

    Starts a handful of workers with a toy env, one after the other. Whatever is awaited must come
    within `deadline_s`.
    """
    conclude("The runtime", runtime_findings(make, deadline_s=deadline_s))


def runtime_findings(make: Callable[[], Runtime], *, deadline_s: float = 60.0) -> list[Finding]:
    """Every rule that the runtimes made by `make` break; none means that hocket can run on them."""
    bench = _Bench(make, deadline_s)
    try:
        return first_broken(_BASICS, bench) or all_broken(_RULES, bench, bench.fresh)
    finally:
        try_rule("close", bench.close)


class _Bench:
    """Holds the runtime on trial, and starts workers on it."""

    def __init__(self, make: Callable[[], Runtime], deadline_s: float) -> None:
        self._make = make
        self._runtime: Runtime | None = None
        self.deadline_s = deadline_s

    @property
    def runtime(self) -> Runtime:
        return self._runtime if self._runtime is not None else self.fresh()

    def fresh(self) -> Runtime:
        """Another runtime, the one before closed."""
        self.close()
        self._runtime = self._make()
        return self._runtime

    def close(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.close()

    @contextmanager
    def worker(self, **toy: Any) -> Iterator[_Worker]:
        """A new worker with a toy env; killed in the end."""
        config = {"length_min": 5000, "length_max": 5000, **toy}
        spec = WorkerSpec(suites={"toy": Ref(name="toy", config=config)})
        link = self.runtime.start(spec)
        try:
            yield _Worker(link, ToyConfig(**config), self.deadline_s)
        finally:
            link.kill()


class _Worker:
    """A worker, spoken to by hand."""

    def __init__(self, link: Link, config: ToyConfig, deadline_s: float) -> None:
        self.link = link
        self.config = config
        self._deadline_s = deadline_s
        self._unread: list[Message] = []

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

    def wait_until(self, claim: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + self._deadline_s
        while not claim():
            require(time.monotonic() < deadline, otherwise)
            time.sleep(_LOOK_S)

    def _next(self) -> Message:
        deadline = time.monotonic() + self._deadline_s
        while not self._unread:
            require(time.monotonic() < deadline, f"Nothing came within {self._deadline_s} s.")
            self.link.flush()
            fd = self.link.fileno()
            if fd is not None:
                select.select([fd], [], [], _LOOK_S)
            self._unread += self.link.receive()
            if fd is None and not self._unread:
                time.sleep(_LOOK_S)
        return self._unread.pop(0)

    def begin(self, attempt: int = 0) -> Ready:
        """Up to the first observation."""
        if attempt == 0:
            self.wait(Hello)
        self.send_begin(attempt)
        return self.wait(Ready)

    def send_begin(self, attempt: int) -> None:
        trial = ("toy", "count", _SEED, 0)
        self.link.send(Begin([0], [attempt], [trial], [0], final_observation=False, record=[{}]))

    def execute(self, actions: Array, chunk: int = 0, attempt: int = 0) -> None:
        data = np.ascontiguousarray(actions, "<f8").tobytes()
        self.link.send(Execute([0], [attempt], [chunk], [len(actions)], data, ()))


def _actions(count: int) -> Array:
    numbers: Array = np.sin(np.arange(4.0 * count))
    return numbers.reshape(count, 4)


def _says_hello(bench: _Bench) -> None:
    with bench.worker() as worker:
        hello = worker.wait(Hello)
        require(hello.transport != "", "It does not say how arrays travel.")


def _describes(bench: _Bench) -> None:
    with bench.worker() as worker:
        worker.wait(Hello)
        worker.link.send(Describe("toy"))
        names = [task["name"] for task in worker.wait(Described).tasks]
        require("count" in names, f"The toy's tasks are {names}.")


def _begins(bench: _Bench) -> None:
    with bench.worker() as worker:
        ready = worker.begin()
        require(ready.spec is not None, "Ready does not tell what the env is.")
        env = ToyEnv("count", worker.config)
        expected = env.reset(seed=_SEED)[0]["state"]
        seen = worker.link.arrays(0)
        require(_KEY in seen, f"arrays(0) has {sorted(seen)}.")
        require(is_same(expected, np.array(seen[_KEY])), "Another observation arrived.")


def _executes(bench: _Bench) -> None:
    with bench.worker() as worker:
        worker.begin()
        env = ToyEnv("count", worker.config)
        env.reset(seed=_SEED)
        for chunk in range(2):
            actions = _actions(5 + chunk)
            worker.execute(actions, chunk)
            rewards = [env.advance(action.astype(np.float32))[0] for action in actions]
            done = worker.wait(Executed)
            require(done.steps == [len(actions)], f"It made {done.steps} of {len(actions)} steps.")
            found = np.frombuffer(done.rewards, "<f8").tolist()
            require(found == rewards, "The rewards are not those of the env.")
            seen = np.array(worker.link.arrays(0)[_KEY])
            require(is_same(env.observe()["state"], seen), "Another observation arrived.")


def _counts(bench: _Bench) -> None:
    with bench.worker() as worker:
        worker.begin()
        for chunk in range(2):
            worker.execute(_actions(5), chunk)
            worker.wait(Executed)
            counted = worker.link.steps(0)
            require(counted == 5 * (chunk + 1), f"After {5 * (chunk + 1)} it says {counted}.")


def _recalls(bench: _Bench) -> None:
    with bench.worker(step_s=0.001) as worker:
        worker.begin()
        if worker.link.fileno() is None:
            # It works inside `receive`: the word has to be there before.
            worker.link.control(0, word(0, STOP))
            worker.execute(_actions(200))
        else:
            worker.execute(_actions(4000))
            worker.wait_until(lambda: worker.link.steps(0) > 0, "It made no step.")
            worker.link.control(0, word(0, STOP))
        steps = worker.wait(Executed).steps[0]
        require(0 < steps < (200 if worker.link.fileno() is None else 4000), "It went on.")
        worker.link.control(0, 0)
        worker.execute(_actions(3), 1)
        require(worker.wait(Executed).steps == [3], "The next chunk is not executed whole.")


def _survives_errors(bench: _Bench) -> None:
    with bench.worker(raise_at=2) as worker:
        worker.begin()
        worker.execute(_actions(5))
        failed = worker.wait(Failed)
        require((failed.lane, failed.attempt) == (0, 0), f"It blames {failed[:2]}.")
        require("ToyError" in failed.traceback, "There is no traceback.")
        worker.begin(attempt=1)


def _tells_of_death(bench: _Bench) -> None:
    with bench.worker() as probe:
        probe.wait(Hello)
        if probe.link.fileno() is None:
            return  # It lives in this process, and would take it along.
    with bench.worker(exit_at=2) as worker:
        worker.begin()
        worker.execute(_actions(5))
        require(bool(worker.wait_for_end()), "There are no words on how it ended.")


def _has_last_words(bench: _Bench) -> None:
    with bench.worker(hang_at=2) as worker:
        worker.wait(Hello)
        if not isinstance(worker.link, LastWords):
            return
        worker.begin(attempt=1)
        worker.execute(_actions(5), attempt=1)
        worker.wait_until(lambda: worker.link.steps(0) > 0, "It made no step.")
        time.sleep(0.1)
        words = worker.link.last_words()
        require("sleep" in words or "_misbehave" in words, f"It says {words!r:.200}.")


def _closes_in_order(bench: _Bench) -> None:
    with bench.worker() as worker:
        worker.begin()
        worker.link.send(Close())
        worker.wait_for_end()


def _kills(bench: _Bench) -> None:
    with bench.worker(step_s=0.001) as worker:
        pid = worker.wait(Hello).pid
        worker.begin(attempt=1)
        used = worker.link.memory()
        require(used is None or used > 0, f"memory() is {used!r}.")
        worker.execute(_actions(5000), attempt=1)
        worker.link.kill()
        worker.link.kill()
        worker.wait_until(lambda: not _is_running(pid), f"Process {pid} lives on.")


def _closes(bench: _Bench) -> None:
    with bench.worker() as worker:
        pid = worker.wait(Hello).pid
        runtime = bench.runtime
        bench.close()
        runtime.close()
        worker.wait_until(lambda: not _is_running(pid), f"Process {pid} lives on.")


def _is_running(pid: int) -> bool:
    """Whether a process descends from this one and lives. Workers elsewhere are not looked for, nor
    are those in this very process."""
    parent = _parent(pid)
    while parent > 1 and parent != os.getpid():
        parent = _parent(parent)
    return parent == os.getpid()


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


_BASICS: Rules = (
    ("start() gives a link, whose first message is Hello.", _says_hello),
    ("Begin is answered by Ready, and arrays() has the first observation.", _begins),
    ("Execute is answered by Executed, and arrays() has the last observation.", _executes),
)
_RULES: Rules = (
    ("Describe is answered by the tasks of the suite.", _describes),
    ("steps() counts every step that the worker has made.", _counts),
    ("control() recalls a chunk between two of its steps, and no other.", _recalls),
    ("An error of the env is told as Failed, and the worker goes on.", _survives_errors),
    ("A worker that dies ends its link with WorkerFailed and says how.", _tells_of_death),
    ("last_words() says where a worker that hangs is.", _has_last_words),
    ("Close ends the worker, and then its link.", _closes_in_order),
    ("kill() ends a worker that is at work, and may be called twice.", _kills),
    ("close() ends every worker, and may be called twice.", _closes),
)
