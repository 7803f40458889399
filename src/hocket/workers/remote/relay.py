"""The far end: has one worker beside it, and joins it to the stream that leads to the engine.

The worker is an ordinary process of that machine, with shared memory and a zygote. The relay tells
the engine what it would see for itself if it were there: steps, memory, the end of the log, and how
the worker ended, also when its env has crashed or hangs.

    python code.zip stdio
    python code.zip ws [HOST:]PORT      the key is in the environment variable HOCKET_KEY
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from hocket.core.contracts.link import LastWords, Link
from hocket.core.contracts.recorder import EVIDENCE
from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import Trial
from hocket.core.frames import Frames, pack
from hocket.core.wire import (
    Begin,
    Ended,
    Executed,
    Message,
    Open,
    Progress,
    Pulse,
    Said,
    SetWord,
    Speak,
)
from hocket.errors import HocketError, WorkerFailed
from hocket.system.scratch import ScratchFolder
from hocket.workers.links.files import pieces
from hocket.workers.local.runtime import LocalRuntime
from hocket.workers.remote.link import GREETING

_PULSE_S = 2.0
"""Seconds between two signs of life."""
_PROGRESS_S = 0.1
"""Seconds between two looks at the step counters while a chunk runs."""
_SILENCE_S = 300.0
"""Seconds without an answer after which the engine is taken to be gone: no cable tells that it was
cut. An engine that has ended closes the stream, which is noticed at once."""
_SEND_S = 300.0
"""Seconds for the other end to take some of what is sent: a network may come back."""
_READ = 1 << 18


Stream: TypeAlias = "socket.socket | Stdio"
"""Bytes both ways; one thread uses it. `recv` raises BlockingIOError where nothing has come."""


class Relay:
    """Passes messages on between a stream and a link to a worker beside it."""

    def __init__(self, stream: Stream, link: Link, lanes: int, folder: str) -> None:
        """`folder` is where the worker writes."""
        self._stream = stream
        self._link = link
        self._lanes = lanes
        self._folder = folder
        self._running: dict[int, tuple[int, str]] = {}
        """By lane: number and slug of attempts that are to leave something if they are lost."""
        self._told = [0] * lanes
        """The steps that were told last."""
        self._heard_at = self._pulsed_at = time.monotonic()

    def run(self, frames: Frames) -> None:
        """Pass messages on until the worker or the engine is gone."""
        fd = self._link.fileno()
        assert fd is not None  # it is another process
        poller = select.poll()
        poller.register(self._stream, select.POLLIN)
        poller.register(fd, select.POLLIN)
        while True:
            is_sent = self._link.flush()
            poller.modify(fd, select.POLLIN if is_sent else select.POLLIN | select.POLLOUT)
            for found, _ in poller.poll(_PROGRESS_S * 1000):
                if found == fd:
                    try:
                        self._tell(self._link.receive())
                    except WorkerFailed as exc:
                        self._leave()
                        self._send(Ended(str(exc)))
                        return
                elif not self._hear(frames):
                    return
            now = time.monotonic()
            if now - self._heard_at > _SILENCE_S:
                return
            if now - self._pulsed_at > _PULSE_S:
                self._pulsed_at = now
                self._send(Pulse(self._link.memory()))
            self._tell([])

    def _hear(self, frames: Frames) -> bool:
        """Do what the engine says; false where it is gone."""
        self._heard_at = time.monotonic()
        try:
            data = self._stream.recv(_READ)
        except BlockingIOError:
            return True
        for message in frames.feed(data):
            self.do(message)
        return bool(data)

    def do(self, message: Message) -> None:
        if isinstance(message, SetWord):
            self._link.control(message.lane, message.word)
        elif isinstance(message, Speak):
            self._leave()  # Who asks is about to give the worker up.
            words = self._link.last_words() if isinstance(self._link, LastWords) else ""
            self._send(Said(words))
        elif not isinstance(message, Pulse):
            if isinstance(message, Begin):
                self._begin(message)
            self._link.send(message)

    def _begin(self, message: Begin) -> None:
        rows = zip(message.lanes, message.attempts, message.trials, message.record, strict=True)
        for lane, attempt, trial, record in rows:
            self._running.pop(lane, None)
            if record.get(EVIDENCE):
                self._running[lane] = (attempt, Trial(*trial).slug)

    def _leave(self) -> None:
        """Send what the worker has written of its attempts, drafts as they are, once."""
        running, self._running = self._running, {}
        for lane, (attempt, slug) in running.items():
            for path in sorted(Path(self._folder).glob(f"*/episodes/{slug}/{attempt}/*")):
                for piece in pieces(lane, attempt, str(path)):
                    self._send(piece)

    def _tell(self, messages: list[Message]) -> None:
        """Pass on what the worker says, after the steps that it had made by then."""
        steps = [self._link.steps(lane) for lane in range(self._lanes)]
        packed = [pack(message) for message in messages]
        if steps != self._told:
            self._told = steps
            packed.insert(0, pack(Progress(steps)))
        for message in messages:
            if isinstance(message, Executed):
                for lane, end in zip(message.lanes, message.ends, strict=True):
                    if end:  # Its files are on their way, or lost.
                        self._running.pop(lane, None)
        if packed:
            self._stream.sendall(b"".join(packed))

    def _send(self, message: Message) -> None:
        self._stream.sendall(pack(message))


def serve(stream: Stream, runtime: Runtime | None = None) -> None:
    """Be the far end of a stream for as long as its one worker lives."""
    runtime = runtime or LocalRuntime()
    with (
        ScratchFolder("relay") as scratch,
        contextlib.closing(stream),
        contextlib.closing(runtime),
        contextlib.suppress(OSError),  # The engine is gone, and whoever would care with it.
    ):
        stream.sendall(GREETING)
        frames = Frames()
        messages: list[Message] = []
        poller = select.poll()
        poller.register(stream, select.POLLIN)
        while not messages:
            if not poller.poll(_SILENCE_S * 1000):
                return
            with contextlib.suppress(BlockingIOError):
                data = stream.recv(_READ)
                if not data:
                    return
                messages = frames.feed(data)
        _relay(stream, frames, messages, runtime, str(scratch.path))


def _relay(
    stream: Stream,
    frames: Frames,
    messages: list[Message],
    runtime: Runtime,
    folder: str,
) -> None:
    first, *others = messages
    try:
        if not isinstance(first, Open):
            raise WorkerFailed(f"The first message is Open, not {type(first).__name__}.")
        spec = replace(WorkerSpec.from_plain(first.spec), folder=folder)
        link = runtime.start(spec)
    except HocketError as exc:
        stream.sendall(pack(Ended(f"{type(exc).__name__}: {exc}")))
        return
    try:
        relay = Relay(stream, link, spec.lanes, folder)
        for message in others:
            relay.do(message)
        relay.run(frames)
    finally:
        link.kill()


def main(arguments: Sequence[str]) -> int:
    if list(arguments) == ["stdio"]:
        serve(Stdio())
        return 0
    if len(arguments) != 2 or arguments[0] != "ws":
        sys.stderr.write((__doc__ or "") + "\n")
        return 2
    import asyncio

    from hocket.workers.remote.websocket import KEY_VARIABLE, listen

    # Out of the environment, which envs and whatever they start inherit.
    key = os.environ.pop(KEY_VARIABLE, "")
    if not key:
        sys.stderr.write(f"There is no key: set {KEY_VARIABLE}.\n")
        return 2

    def use(stream: socket.socket) -> None:
        stream.settimeout(_SEND_S)
        serve(stream)

    def tell(port: int) -> None:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()

    host, _, number = arguments[1].rpartition(":")
    asyncio.run(listen(key, host or "127.0.0.1", int(number), use, tell))
    return 0


class Stdio:
    """The standard input and output of this process, taken away from everyone else in it, as what a
    relay needs of a socket."""

    def __init__(self) -> None:
        self._in, self._out = os.dup(0), os.dup(1)
        for fd in (self._in, self._out):
            os.set_inheritable(fd, False)  # noqa: FBT003
            os.set_blocking(fd, False)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)  # Whatever is printed here is not for the other end.
        self._poller = select.poll()
        self._poller.register(self._out, select.POLLOUT)

    def fileno(self) -> int:
        return self._in

    def recv(self, size: int) -> bytes:
        return os.read(self._in, size)

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._out, rest) :]
            except BlockingIOError:
                if not self._poller.poll(_SEND_S * 1000):
                    raise TimeoutError("The other end takes nothing.") from None

    def close(self) -> None:
        """Do nothing: the process ends with it."""
