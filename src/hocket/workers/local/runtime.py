"""Workers as processes of this machine, forked by a zygote for each interpreter."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import heapq
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

import msgpack

import hocket
from hocket.core.contracts.link import Link
from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.plugins import NoSettings
from hocket.errors import WorkerFailed
from hocket.system.child import Child
from hocket.workers.early import EarlyWorkers
from hocket.workers.links.guard import Guard
from hocket.workers.links.stream_link import make_roomy
from hocket.workers.local import bootstrap
from hocket.workers.local.process_link import ProcessLink
from hocket.workers.local.zygote import FORK, FORK_TOLD, KILL, REQUEST, SPEAK
from hocket.workers.shm import LOSES_DESCRIPTORS, Control, create_file, map_block

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "BLIS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}
"""What libraries read that would take all cores for each worker."""
_REQUEST_TIMEOUT_S = 60.0
"""Seconds for a zygote to take a request: it is busy only while it imports what it preloads."""
_END_TIMEOUT_S = 4.0
"""Seconds for a zygote and its workers to end by themselves; all must be gone within 5."""


class LocalRuntime:
    """Starts workers in this interpreter or another; serves one fleet at a time."""

    Config = NoSettings

    def __init__(self, argument: str = "", config: NoSettings | None = None) -> None:
        del argument, config
        self._zygotes: dict[str | None, ZygoteProcess] = {}
        self._free: list[int] = []
        self._next_index = 0
        self._next_id = 0
        self.early = EarlyWorkers(self._start)

    def start(self, spec: WorkerSpec) -> Link:
        """Ask for a worker; it comes up by itself, and sends Hello."""
        return self.early.take(spec)

    def _start(self, spec: WorkerSpec) -> ProcessLink:
        zygote = self.prepare(spec)
        index = heapq.heappop(self._free) if self._free else self._next_index
        self._next_index = max(self._next_index, index + 1)
        ident, self._next_id = self._next_id, self._next_id + 1
        return start_worker(zygote, spec, ident, index, lambda: heapq.heappush(self._free, index))

    def close(self) -> None:
        """End every worker and zygote. The runtime can be used again."""
        self.early.close()
        while self._zygotes:
            self._zygotes.popitem()[1].close()
        self._free.clear()
        self._next_index = 0

    def prepare(self, spec: WorkerSpec) -> ZygoteProcess:
        """What forks such workers; begin to start it where it is not there. Waits for nothing."""
        found = self._zygotes.get(spec.python)
        if found is None or not found.child.is_alive:
            if found is not None:
                found.close()
            found = ZygoteProcess(spec.python, [ref.name for ref in spec.suites.values()])
            self._zygotes[spec.python] = found
        return found


class Lent:
    """A runtime that one more fleet may use: `close` ends the workers that were started through it,
    and leaves what they were forked from."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._links: list[Link] = []

    def start(self, spec: WorkerSpec) -> Link:
        link = self._runtime.start(spec)
        self._links.append(link)
        return link

    def close(self) -> None:
        while self._links:
            self._links.pop().kill()


class Forks(Protocol):
    """A zygote, seen from the parent."""

    def fork(self, ident: int, index: int, fds: tuple[int, int, int]) -> None:
        """Ask for a worker, with its stream, its control page and its log; the caller closes these.
        Raises OSError where the zygote is gone."""

    def request(self, kind: bytes, ident: int) -> None:
        """Ask for something to be done to a worker, if it lives."""

    def explain(self) -> str:
        """Say why workers ended that left no exit status."""


def start_worker(
    zygote: Forks,
    spec: WorkerSpec,
    ident: int,
    index: int,
    release: Callable[[], None],
    guard: Guard | None = None,
) -> ProcessLink:
    """A link to a worker that a zygote forks, and that waits to be told what it is for. `release`
    is called when the link is killed."""
    ours, theirs = socket.socketpair()
    if spec.transport == "inline":
        make_roomy(theirs)
    page = create_file("hocket-control", Control.size(spec.lanes))
    log = create_file("hocket-log", 0)
    # Appending, so that the log can be cut while the worker writes.
    fcntl.fcntl(log, fcntl.F_SETFL, os.O_APPEND)
    control = Control(map_block(page))

    def end() -> None:
        release()
        if control.exit_status is None:
            zygote.request(KILL, ident)

    speak = functools.partial(zygote.request, SPEAK, ident)
    link = ProcessLink(ours, control, log, spec, end, speak, zygote.explain, guard)
    try:
        zygote.fork(ident, index, (theirs.fileno(), page, log))
    except OSError as exc:
        link.kill()
        raise WorkerFailed(zygote.explain()) from exc
    finally:
        theirs.close()
        os.close(page)
    return link


class ZygoteProcess:
    """The process that forks workers of one interpreter, seen from the parent."""

    def __init__(self, python: str | None, suites: Sequence[str]) -> None:
        self._name = python or sys.executable
        executable = shutil.which(self._name)
        if executable is None:
            raise WorkerFailed(
                f"There is no Python interpreter at {self._name!r}. Check --env-python."
            )
        setup = {
            "path": sys.path if python is None else None,
            "package": os.path.dirname(os.path.abspath(hocket.__file__)),
            "msgpack": os.path.dirname(os.path.abspath(msgpack.__file__)),
            "suites": list(suites),
        }
        self._requests, theirs = socket.socketpair()
        self._requests.settimeout(_REQUEST_TIMEOUT_S)
        words = [executable, bootstrap.__file__, str(theirs.fileno()), json.dumps(setup)]
        with theirs, contextlib.ExitStack() as stack:
            stack.enter_context(self._requests)
            env = _environment(is_foreign=python is not None)
            self.child = Child(words, pass_fds=(theirs.fileno(),), env=env)
            stack.pop_all()

    def fork(self, ident: int, index: int, fds: tuple[int, int, int]) -> None:
        kind = FORK_TOLD if LOSES_DESCRIPTORS else FORK
        socket.send_fds(self._requests, [REQUEST.pack(kind, ident, index)], fds)
        if LOSES_DESCRIPTORS and not self._requests.recv(1):
            raise ConnectionError("The zygote is gone.")

    def request(self, kind: bytes, ident: int) -> None:
        """Ask for something to be done to a worker; where the zygote is gone, so is the worker."""
        with contextlib.suppress(OSError):
            self._requests.send(REQUEST.pack(kind, ident, 0))

    def explain(self) -> str:
        """Say why workers ended that left no exit status: because this process ended."""
        return f"The process that forks workers ({self._name}) {self.child.ending()}"

    def close(self) -> None:
        self._requests.close()
        self.child.end(_END_TIMEOUT_S)


def _environment(*, is_foreign: bool) -> dict[str, str]:
    """The parent's environment, with one thread for each worker and the same hashes in each run."""
    # (On macOS a fork would end where one of Apple's frameworks is loaded.)
    ours = {"PYTHONHASHSEED": "0", "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}
    found = {**ours, **os.environ, **ONE_THREAD}
    if is_foreign:
        # They mean this interpreter, and would lead the other one to its packages.
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"):
            found.pop(name, None)
    return found
