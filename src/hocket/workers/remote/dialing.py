"""Links that are given out at once, while a thread brings their worker up."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
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
