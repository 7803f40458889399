"""The parent's end of the stream to a worker elsewhere, and links that are given out at once, while
a thread brings their worker up."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Protocol

from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.wire import Ended, Message, Progress, Pulse, Said, SetWord, Speak
from hocket.errors import HocketError, WorkerFailed
from hocket.workers.links.guard import Guard
from hocket.workers.links.stream_link import StreamLink, make_roomy

GREETING = b"\0hocket worker 1\n"
"""What the far end says first. Before it, a login may have printed whatever it likes."""
_NOISE = 1 << 16
"""Most bytes before the greeting."""
_SPEAK_S = 2.0
"""Seconds for the far end to say where its worker is."""


class RemoteLink(StreamLink):
    """A Link that follows its worker by messages: steps, memory, the log's end and the exit status
    are told, and control words are sent. It may be given out before anyone is at the other end."""

    def __init__(
        self,
        stream: socket.socket,
        spec: WorkerSpec,
        end: Callable[[], None],
        explain: Callable[[], str],
    ) -> None:
        super().__init__(stream, spec, end, explain, Guard(spec))
        self._noise: bytes | None = b""
        """What came before the greeting; None once that has come."""
        self._steps = [0] * spec.lanes
        self._memory: int | None = None
        self._account = ""
        self._said: str | None = None
        self._unread: list[Message] = []
        self._heard_at = time.monotonic()
        self.open(replace(spec, transport="inline"))

    def receive(self) -> list[Message]:
        if self._out:
            # A control word may wait here, for which nobody waits to write.
            self.flush()
        messages, self._unread = [*self._unread, *super().receive()], []
        return [message for message in messages if not self._notes(message)]

    def steps(self, lane: int) -> int:
        return self._steps[lane]

    def control(self, lane: int, word: int) -> None:
        self.send(SetWord(lane, word))

    def memory(self) -> int | None:
        return self._memory

    def silent_s(self, now: float) -> float:
        return now - self._heard_at

    def last_words(self) -> str:
        """The end of the worker's log, once the far end has told it; blocks for moments."""
        self._said = None
        self.send(Speak())
        deadline = time.monotonic() + _SPEAK_S
        while self._said is None and (left := deadline - time.monotonic()) > 0:
            if select.select([self._stream], [], [], left)[0]:
                try:
                    self._unread = self.receive()
                except WorkerFailed as exc:
                    return str(exc)
        return self._said or ""

    def _notes(self, message: Message) -> bool:
        """Take what the worker says of its life; false for whatever else it says."""
        if isinstance(message, Progress):
            self._steps = list(message.steps)
        elif isinstance(message, Pulse):
            self._memory = message.memory if isinstance(message.memory, int) else None
            self.send(Pulse(None))
        elif isinstance(message, Said):
            self._said = str(message.text)
        elif isinstance(message, Ended):
            self._account = str(message.account)
        else:
            return False
        return True

    def _read(self) -> bytes | memoryview | None:
        data = super()._read()
        if not data:
            return data
        self._heard_at = time.monotonic()
        if self._noise is None:
            return data
        self._noise += bytes(data)
        before, greeting, rest = self._noise.partition(GREETING)
        if greeting:
            self._noise = None
            return rest or None
        if len(before) > _NOISE:
            raise WorkerFailed(f"What answers there is no worker of hocket's: {before[:200]!r}")
        return None

    def _epitaph(self) -> str:
        if self._account:
            return self._account
        noise = (self._noise or b"")[-1000:].decode("utf-8", "replace").strip()
        return f"{self._explain()}\n{noise}".strip()


_SETTLE_S = 2.0
"""Seconds for the thread to say what it has attached, whose stream may have ended already."""


class Attachment(Protocol):
    """What carries a stream to its far end, and what was started for it there."""

    def end(self) -> None:
        """End it. Called once, from the engine's thread, which does not wait."""

    def explain(self) -> str:
        """Say why the stream has ended, where the worker could not say so itself."""


def dial(spec: WorkerSpec, attach: Callable[[socket.socket], Attachment]) -> RemoteLink:
    """A link to a worker that `attach` brings up, in a thread of its own. It is given the far end
    of the link's socket, which is its to keep and close; what it raises ends the link."""
    ours, theirs = socket.socketpair()
    make_roomy(theirs)
    attached: Future[Attachment] = Future()

    def run() -> None:
        try:
            attachment = attach(theirs)
        except Exception as exc:  # noqa: BLE001 - the packages of providers may raise anything
            with contextlib.suppress(OSError):
                theirs.shutdown(socket.SHUT_RDWR)
            theirs.close()
            attached.set_exception(exc)
        else:
            attached.set_result(attachment)

    try:
        # What is attached is ended at once, or by the thread as soon as it is there.
        link = RemoteLink(
            ours, spec, lambda: attached.add_done_callback(_end), lambda: _explain(attached)
        )
    except HocketError:
        ours.close()
        theirs.close()
        raise
    threading.Thread(target=run, daemon=True).start()
    return link


def _end(attached: Future[Attachment]) -> None:
    if attached.exception() is None:
        attached.result().end()


def _explain(attached: Future[Attachment]) -> str:
    wait([attached], _SETTLE_S)
    if not attached.done():
        return "The stream to the worker ended before it came up."
    exc = attached.exception()
    if exc is None:
        return attached.result().explain()
    is_ours = isinstance(exc, (HocketError, OSError)) and str(exc)
    return str(exc) if is_ours else f"{type(exc).__name__}: {exc}"
