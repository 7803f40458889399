"""A worker process: its Host performs what comes, until Close or the end of the stream."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import select
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hocket.core import plugins
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Ref
from hocket.core.wire import Close, Failed, Frames, Hello, Message, Open, Ready, Sealed, pack
from hocket.errors import HocketError, MissingExtraError, WireError
from hocket.workers.env.host import Host
from hocket.workers.links.files import Outgoing
from hocket.workers.rows.process import RowsProcess
from hocket.workers.shm import Control, create_block, map_block
from hocket.workers.suites import is_batched

_READ = 1 << 18
"""Bytes of one read from the stream: an Execute message with a long chunk fits."""
_WORK_S = 1.0
"""Seconds of a batched simulator's steps before the stream is looked at again even if nobody
writes. A message ends the work at once."""


class SocketPort:
    """A Host's way to its parent through a stream socket, with file descriptors riding along."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._frames = Frames()
        self._inbox: deque[Message] = deque()
        self._fd: int | None = None
        """The descriptor of a block that the parent does not have yet."""
        self.files: Outgoing | None = None
        """Files that go over the stream, where the parent does not see them."""
        self.block = -1
        self.transport = "auto"
        self.is_shared = False

    def receive(self) -> Message | None:
        """The next message; None at the end of the stream."""
        while not self._inbox:
            data = self._stream.recv(_READ)
            if not data:
                return None
            self._inbox.extend(self._frames.feed(data))
        return self._inbox.popleft()

    def has_message(self, timeout_s: float | None = 0.0) -> bool:
        """True once something has come; false after `timeout_s`. None waits for it."""
        if self._inbox:
            return True
        poller = select.poll()
        poller.register(self._stream, select.POLLIN)
        return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))

    def post(self, message: Message) -> None:
        """Send a message. A new block's descriptor goes with the Ready that describes it, and files
        that still go over the stream before whatever else is said of their lane."""
        if self.files is not None:
            if isinstance(message, Sealed):
                self.files.add(message)
                return
            if isinstance(message, Ready):
                self.files.finish(message.lanes)
            elif isinstance(message, Failed):
                self.files.finish([message.lane])
        self._send(message)

    def leave(self, lane: int, attempt: int, files: Sequence[str]) -> None:
        if self.files is not None:
            self.files.finish([lane])
            self.files.leave(lane, attempt, files)

    def _send(self, message: Message) -> None:
        data = pack(message)
        if self._fd is not None and isinstance(message, Ready):
            sent = socket.send_fds(self._stream, [data], [self._fd])
            os.close(self._fd)
            self._fd = None
            data = data[sent:]
        self._stream.sendall(data)

    def allocate(self, size: int) -> Any:
        """Shared memory where that can be had, else plain memory that travels in messages."""
        self.is_shared = False
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self.transport != "inline":
            try:
                self._fd = create_block("hocket-arrays", size)
                memory = map_block(self._fd)
            except (OSError, AttributeError):
                if self.transport == "shm":
                    raise
            else:
                self.is_shared = True
                self.block += 1
                return memory
        return bytearray(size)

    @contextlib.contextmanager
    def opened(self, spec: WorkerSpec) -> Iterator[WorkerSpec]:
        """Travel as a spec says; yield it with the folder that sinks write to."""
        self.transport = spec.transport
        if not spec.sends_files:
            yield spec
            return
        _require_recorders(spec.sinks)
        with tempfile.TemporaryDirectory(prefix="hocket-files-", dir=spec.folder) as folder:
            if os.stat(spec.folder or folder).st_uid != os.geteuid():
                # Whose it is reads, and deletes, what is left here if this process dies.
                os.chmod(folder, 0o777)
                os.umask(0)
            self.files = Outgoing(folder, self._send)
            yield replace(spec, folder=folder)


def serve(stream: socket.socket, control: Control, index: int) -> int:
    """Work until told to close, or the parent is gone; return the process's exit code."""
    port = SocketPort(stream)
    first = port.receive()
    if first is None:
        return 0
    with contextlib.ExitStack() as stack:
        try:
            if not isinstance(first, Open):
                raise WireError(f"A worker's first message is Open, not {type(first).__name__}.")
            spec = stack.enter_context(port.opened(WorkerSpec.from_plain(first.spec)))
            is_plain = spec.renders or not is_batched(spec)
            host = (Host if is_plain else RowsProcess)(spec, control, port, index)
        except HocketError as exc:
            port.post(Failed.of(-1, -1, exc))
            return 1
        stack.callback(host.close)
        version = platform.python_version()
        port.post(Hello(os.getpid(), sys.executable, version, port.transport))
        return _perform(port, host)


def _perform(port: SocketPort, host: Host | RowsProcess) -> int:
    rows = host if isinstance(host, RowsProcess) else None
    while True:
        if port.files:
            if not port.has_message():
                port.files.send_one()
                if rows is not None:  # One step between two pieces.
                    rows.work(0.0, port.has_message, awaits_all=False)
                continue
        elif rows is not None and not port.has_message(rows.due_s()):
            rows.work(_WORK_S, port.has_message, awaits_all=False)
            continue
        message = port.receive()
        if message is None or isinstance(message, Close):
            if port.files is not None:
                port.files.finish()
            elif message is None:
                host.abandon()  # The parent was killed.
            return 0
        host.perform(message)


def _require_recorders(sinks: Sequence[Ref]) -> None:
    """Refuse at once what could not be recorded here."""
    for ref in sinks:
        builtin = plugins.builtin()["recorders"].get(ref.name)
        for module in () if builtin is None else builtin.modules:
            if importlib.util.find_spec(module) is None:
                raise MissingExtraError(
                    f"The recorder {ref.name!r} needs the package {module!r}, which is not "
                    f"installed where the workers live ({sys.executable}). Install it there, or go "
                    "on without: --video none, and no --record full."
                )
