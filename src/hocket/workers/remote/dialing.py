"""Links that are given out at once, while a thread brings their worker up."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from hocket.core.contracts.runtime import WorkerSpec
from hocket.errors import HocketError
from hocket.workers.links.stream_link import make_roomy
from hocket.workers.remote.link import RemoteLink

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
    dialing = _Dialing(attach, theirs)
    try:
        link = RemoteLink(ours, spec, dialing.end, dialing.explain)
    except HocketError:
        ours.close()
        theirs.close()
        raise
    threading.Thread(target=dialing.run, daemon=True).start()
    return link


class _Dialing:
    def __init__(
        self, attach: Callable[[socket.socket], Attachment], stream: socket.socket
    ) -> None:
        self._attach = attach
        self._stream = stream
        # Guards that what was attached is ended once, whoever comes last.
        self._lock = threading.Lock()
        self._attachment: Attachment | None = None
        self._is_ended = False
        self._is_settled = threading.Event()
        """Set once something is attached, or never will be."""
        self._trouble = ""

    def run(self) -> None:
        try:
            attachment = self._attach(self._stream)
        except Exception as exc:  # noqa: BLE001 - the packages of providers may raise anything
            is_ours = isinstance(exc, (HocketError, OSError)) and str(exc)
            self._trouble = str(exc) if is_ours else f"{type(exc).__name__}: {exc}"
            with contextlib.suppress(OSError):
                self._stream.shutdown(socket.SHUT_RDWR)
            self._stream.close()
            self._is_settled.set()
            return
        with self._lock:
            self._attachment = attachment
            self._is_settled.set()
            if not self._is_ended:
                return
        attachment.end()

    def end(self) -> None:
        with self._lock:
            attachment, self._is_ended = self._attachment, True
        if attachment is not None:
            attachment.end()

    def explain(self) -> str:
        self._is_settled.wait(_SETTLE_S)
        if self._attachment is not None:
            return self._attachment.explain()
        return self._trouble or "The stream to the worker ended before it came up."
