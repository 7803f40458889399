"""A fork server, one for each interpreter: single-threaded, small, and forked from by every worker.

The parent asks over a stream, in requests of one length; each request to fork carries three
descriptors: the worker's stream, its control page and its log. The zygote keeps the stream until
the worker is dead, writes how it died into the control page, and only then shuts the stream down:
whoever reads the end of the stream finds the reason. When its own socket ends, the parent is gone,
and all workers with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from hocket.core import plugins
from hocket.system import machine
from hocket.workers import worker
from hocket.workers.shm import Control, map_block
from hocket.workers.suites import preloads

REQUEST = struct.Struct("<cqi")
"""A request: what to do, the worker's id, its index."""
FORK, FORK_TOLD, KILL, SPEAK = b"F", b"T", b"K", b"S"
"""`FORK_TOLD` is answered by a byte once its descriptors have come."""
INDEX_VARIABLE = "HOCKET_WORKER_INDEX"
_PR_SET_PDEATHSIG = 1
_END_WAIT_S = 2.0
"""Seconds to wait for killed workers when the parent is gone: SIGKILL takes milliseconds, and
whatever is left dies with this process."""
_BEAT_S = 1.0
"""Seconds between two looks at all workers, which the parent sees."""


class Forked(NamedTuple):
    pid: int
    stream: socket.socket
    control: Control


class Zygote:
    """Forks workers, kills them when asked, and reports how each ended."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._children: dict[int, Forked] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.settimeout(0)

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_out.fileno(), warn_on_full_buffer=False)
        is_open, beaten_at = True, time.monotonic()
        while is_open:
            timeout_s = _BEAT_S if self._children else None
            ready, _, _ = select.select([self._requests, self._wake_in], [], [], timeout_s)
            if time.monotonic() - beaten_at >= _BEAT_S:
                beaten_at = time.monotonic()
                for child in self._children.values():
                    child.control.beat(machine.resident_bytes(child.pid) or 0)
            if self._wake_in in ready:
                self._wake_in.recv(4096)
            if self._requests in ready:
                is_open = self._take_request()
            self._reap()
        for child in self._children.values():
            _kill_group(child.pid)
        deadline = time.monotonic() + _END_WAIT_S
        while self._children and time.monotonic() < deadline:
            select.select([self._wake_in], [], [], 0.05)
            self._reap()

    def _take_request(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._requests, REQUEST.size, 3, socket.MSG_WAITALL)
        except ConnectionError:
            return False
        if not data:
            return False
        for fd in fds:
            # Programs that an env starts must not keep them open.
            os.set_inheritable(fd, False)  # noqa: FBT003
        kind, ident, index = REQUEST.unpack(data)
        if kind == FORK_TOLD:
            self._requests.sendall(b".")
        if kind in (FORK, FORK_TOLD):
            self._fork(ident, index, fds)
        elif ident in self._children and kind == KILL:
            _kill_group(self._children[ident].pid)
        elif ident in self._children:
            os.kill(self._children[ident].pid, signal.SIGUSR1)
        return True

    def _fork(self, ident: int, index: int, fds: list[int]) -> None:
        stream = socket.socket(fileno=fds[0])
        control = Control(map_block(fds[1]))
        os.close(fds[1])
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._become_worker(zygote, index, fds[2])
                code = worker.serve(stream, control, index)
            except BaseException:  # noqa: BLE001 - its text is all that is left of this process
                traceback.print_exc()
            finally:
                for output in (sys.stdout, sys.stderr):
                    with contextlib.suppress(OSError):
                        output.flush()
                os._exit(code)
        control.pid = pid
        os.close(fds[2])
        self._children[ident] = Forked(pid, stream, control)

    def _become_worker(self, zygote: int, index: int, log: int) -> None:
        """Turn a fork into a worker: it has its own session, so that Ctrl-C reaches the parent
        alone; it dies with the zygote; and it writes into its log."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._requests.close()
        self._wake_in.close()
        try:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            self._wake_out.close()
        except AttributeError:  # macOS
            threading.Thread(target=_die_with, args=(self._wake_out,), daemon=True).start()
        if os.getppid() != zygote:
            os._exit(1)  # It died before the lines above could take effect.
        for sibling in self._children.values():
            sibling.stream.close()
            sibling.control.close()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        os.environ[INDEX_VARIABLE] = str(index)
        _compute_in_the_background()
        gc.enable()

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            # Its own children first: no new process gets its id while they are of its group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            for ident, child in list(self._children.items()):
                if child.pid == pid:
                    del self._children[ident]
                    _report(child, os.waitstatus_to_exitcode(status))


def _report(child: Forked, code: int) -> None:
    child.control.exit_status = code
    with contextlib.suppress(OSError):  # The parent may have closed its end first.
        child.stream.shutdown(socket.SHUT_RDWR)
    child.stream.close()
    child.control.close()


def _compute_in_the_background() -> None:
    """Schedule this worker as batch work: when a chunk wakes it, it does not interrupt the parent,
    which is handing out chunks. On a busy machine that costs the parent more than sending does."""
    with contextlib.suppress(OSError, AttributeError):  # macOS has no such class
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _die_with(other: socket.socket) -> None:
    """Wait until the other end of a stream is closed, which the zygote alone holds."""
    select.select([other], [], [])
    os.killpg(0, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # It has not reached setsid yet. (macOS forbids it where nobody of the group lives.)
        os.kill(pid, signal.SIGKILL)


def main(fd: int, suites: Sequence[str]) -> None:
    """Serve on an inherited socket, with the modules loaded that adapters of these names allow.

    Nothing looks for garbage before workers are forked: it takes time, and pages that it frees in
    between would be copied for each of them."""
    gc.disable()
    try:
        for module in preloads(suites):
            importlib.import_module(module)
        for recorder in ("steps", "states"):  # most workers build both
            plugins.find("recorders", recorder)
    except Exception:  # noqa: BLE001 - a worker will meet it again, and say so where it counts
        traceback.print_exc()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    gc.freeze()
    Zygote(socket.socket(fileno=fd)).serve()
