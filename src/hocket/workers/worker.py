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
from itertools import compress
from typing import NamedTuple

import numpy as np

from hocket.core import plugins
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Ref, Signature
from hocket.core.frames import Frames, pack
from hocket.core.wire import (
    END_OBSERVED,
    Build,
    Close,
    Executed,
    Failed,
    Hello,
    Message,
    Observed,
    Open,
    Ready,
    Sealed,
)
from hocket.errors import HocketError, MissingExtraError, WireError
from hocket.workers.env.host import Host, Port
from hocket.workers.env.live_env import LiveEnv
from hocket.workers.links.files import Outgoing
from hocket.workers.rows.host import RowsHost
from hocket.workers.rows.sim import on_host
from hocket.workers.shm import Control, Layout, Memory, create_block, map_block
from hocket.workers.suites import is_batched

_READ = 1 << 18
"""Bytes of one read from the stream: an Execute message with a long chunk fits."""
_SENT = 8
"""Descriptors that were sent and are still open here: some systems lose what is closed too soon."""
_WORK_S = 1.0
"""Seconds of a batched simulator's steps before the stream is looked at again even if nobody
writes. A message ends the work at once."""


class SocketPort:
    """A Host's way to its parent through a stream socket, with file descriptors riding along."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._poller = select.poll()
        self._poller.register(stream, select.POLLIN)
        self._frames = Frames()
        self._inbox: deque[Message] = deque()
        self._fd: int | None = None
        """The descriptor of a block that the parent does not have yet."""
        self._sent: deque[int] = deque()
        """Descriptors that the parent may not have received yet, the oldest first."""
        self._ahead = b""
        """What goes with the next message."""
        self.files: Outgoing | None = None
        """Files that go over the stream, where the parent does not see them."""
        self.block = -1
        self.transport = "auto"
        self.is_shared = False

    def receive(self) -> Message | None:
        """The next message; None at the end of the stream."""
        while not self._inbox:
            # Whoever sleeps in `recv` itself is woken for nothing when the parent reads the answer,
            # since there is room to write again: two changes of process for each chunk.
            self._poller.poll()
            data = self._stream.recv(_READ)
            if not data:
                return None
            self._inbox.extend(self._frames.feed(data))
        return self._inbox.popleft()

    def has_message(self, timeout_s: float | None = 0.0) -> bool:
        """True once something has come; false after `timeout_s`. None waits for it."""
        if self._inbox:
            return True
        return bool(self._poller.poll(None if timeout_s is None else timeout_s * 1000))

    def post(self, message: Message, *, has_more: bool = False) -> None:
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
        elif has_more:
            self._ahead += pack(message)
            return
        self._send(message)

    def leave(self, lane: int, attempt: int, files: Sequence[str]) -> None:
        if self.files is not None:
            self.files.finish([lane])
            self.files.leave(lane, attempt, files)

    def _send(self, message: Message) -> None:
        data, self._ahead = self._ahead + pack(message), b""
        if self._fd is not None and isinstance(message, Ready):
            sent = socket.send_fds(self._stream, [data], [self._fd])
            self._sent.append(self._fd)
            self._fd = None
            data = data[sent:]
            if len(self._sent) > _SENT:
                os.close(self._sent.popleft())
        self._stream.sendall(data)

    def allocate(self, size: int) -> Memory:
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


class Block(NamedTuple):
    """Memory for the arrays of all lanes, while these have one signature."""

    number: int
    layout: Layout
    memory: Memory


class RowsProcess(RowsHost):
    """A RowsHost in a process of its own: what rows see is written where the parent reads it.

    Rows of one signature share a block of memory; a lane that changes its signature, because its
    next trial runs in another simulator, is told where its arrays lie from then on.
    """

    def __init__(self, spec: WorkerSpec, control: Control, port: Port, index: int) -> None:
        super().__init__(spec, control, self._pass_on, index)
        self._port = port
        self._blocks: dict[Signature, Block] = {}
        self._block_of: dict[int, Block] = {}
        """By lane: the block that the parent was told to look into."""

    def leave(self, lane: int, attempt: int, files: Sequence[str]) -> None:
        self._port.leave(lane, attempt, files)

    def _pass_on(self, message: Message) -> None:
        if isinstance(message, Ready):
            signatures = [self.signature(lane) for lane in message.lanes]
            for signature in dict.fromkeys(signatures):
                indices = [i for i, other in enumerate(signatures) if other == signature]
                self._port.post(self._lay_out(message, signature, indices))
            return
        if isinstance(message, (Executed, Observed)):
            lanes = message.lanes
            ends = message.ends if isinstance(message, Executed) else [0] * len(lanes)
            places = list(map(self._place, lanes, message.chunks, ends))
            seen = [not end or bool(end & END_OBSERVED) for end in ends]
            for lane, place in compress(zip(lanes, places, strict=True), seen):
                self._write(lane, place)
            if any(seen):
                message = message._replace(arrays=self._unshared(lanes, places))
        self._port.post(message)

    def _place(self, lane: int, chunk: int, end: int) -> int:
        """Where in a block the lane's observation lies: for the next chunk, or at the end."""
        slots = self._spec.slots
        return lane * slots + (chunk + (not end)) % slots

    def _lay_out(self, message: Ready, signature: Signature, indices: Sequence[int]) -> Ready:
        """The part of a message that concerns lanes of one signature, with where they lie."""
        lanes = [message.lanes[i] for i in indices]
        if signature not in self._blocks:
            layout = Layout.of(self.arrays(lanes[0]), 1)
            memory = self._port.allocate(layout.stride * self._spec.lanes * self._spec.slots)
            self._blocks[signature] = Block(self._port.block, layout, memory)
        block = self._blocks[signature]
        is_new = any(self._block_of.get(lane) is not block for lane in lanes)
        places = [lane * self._spec.slots for lane in lanes]
        for lane, place in zip(lanes, places, strict=True):
            self._block_of[lane] = block
            self._write(lane, place)
        return message._replace(
            lanes=lanes,
            attempts=[message.attempts[i] for i in indices],
            prompts=[message.prompts[i] for i in indices],
            layout=block.layout.entries if is_new else None,
            block=block.number,
            arrays=self._unshared(lanes, places),
        )

    def _write(self, lane: int, place: int) -> None:
        """Write what the lane sees now where the parent reads it."""
        block = self._block_of[lane]
        views = block.layout.views(block.memory, place)
        for key, array in self.arrays(lane).items():
            np.copyto(views[key], on_host(array))

    def _unshared(self, lanes: Sequence[int], places: Sequence[int]) -> bytes | None:
        """The memory of these lanes, where the parent cannot see it."""
        if self._port.is_shared:
            return None
        parts = []
        for lane, place in zip(lanes, places, strict=True):
            _, layout, memory = self._block_of[lane]
            parts.append(memory[place * layout.stride : (place + 1) * layout.stride])
        return b"".join(parts)


def serve(stream: socket.socket, control: Control, index: int) -> int:
    """Work until told to close, or the parent is gone; return the process's exit code."""
    port = SocketPort(stream)
    first, env = port.receive(), None
    with contextlib.ExitStack() as stack:
        try:
            if isinstance(first, Build):
                env = make_early(first, index)
                stack.callback(env.close)
                first = port.receive()
            if first is None:
                return 0
            if not isinstance(first, Open):
                raise WireError(f"A worker's first message is Open, not {type(first).__name__}.")
            spec = stack.enter_context(port.opened(WorkerSpec.from_plain(first.spec)))
            is_plain = spec.renders or not is_batched(spec)
            host: Host | RowsProcess = (
                Host(spec, control, port, index, env)
                if is_plain
                else RowsProcess(spec, control, port, index)
            )
        except HocketError as exc:
            port.post(Failed.of(-1, -1, exc))
            return 1
        stack.callback(host.close)
        version = platform.python_version()
        port.post(Hello(os.getpid(), sys.executable, version, port.transport))
        return _perform(port, host)


def make_early(order: Build, index: int) -> LiveEnv:
    """The env that a Build asks for, in the worker of this number."""
    env = LiveEnv(WorkerSpec.from_plain(order.spec).suites, index)
    try:
        env.build(order.suite, order.task)
    except BaseException as exc:
        env.close()
        raise Failed.of(-1, -1, exc, f"The env of task {order.task!r}").error from exc
    return env


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
