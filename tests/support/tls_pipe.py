"""An encrypted stream as a plain socket, for entrances that stand in for a cloud's: one thread owns
it, since in Pythons before 3.13 two threads must not use one TLS connection at the same time."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading

_READ = 1 << 17
_HELD = 1 << 20
"""Most bytes held for a side that does not take them. Chosen by hand."""


def carry(secure: ssl.SSLSocket) -> socket.socket:
    """A socket on which one says and hears plainly what goes over an encrypted one, which it owns:
    a thread carries bytes until either ends."""
    ours, theirs = socket.socketpair()
    for end in (secure, theirs):
        end.setblocking(False)
    threading.Thread(target=_run, args=(secure, theirs), daemon=True).start()
    return ours


def _run(secure: ssl.SSLSocket, plain: socket.socket) -> None:
    with contextlib.suppress(OSError), secure, plain:
        _carry(secure, plain)


def _carry(secure: ssl.SSLSocket, plain: socket.socket) -> None:
    outward, inward = bytearray(), bytearray()
    poller = select.poll()
    while True:
        poller.register(secure, _wanted(len(inward), len(outward)))
        poller.register(plain, _wanted(len(outward), len(inward)))
        # What was decrypted already lies where `poll` does not see it.
        poller.poll(0 if secure.pending() and len(inward) < _HELD else None)
        ended = False
        if len(inward) < _HELD:
            ended |= _take(secure, inward)
        if len(outward) < _HELD:
            ended |= _take(plain, outward)
        _give(secure, outward)
        _give(plain, inward)
        if ended:
            for end, rest in ((secure, outward), (plain, inward)):
                end.settimeout(5.0)
                end.sendall(rest)
            return


def _wanted(to_other: int, to_this: int) -> int:
    return (select.POLLIN if to_other < _HELD else 0) | (select.POLLOUT if to_this else 0)


def _take(source: socket.socket, held: bytearray) -> bool:
    """Read what is there; true at the end."""
    try:
        data = source.recv(_READ)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return False
    held += data
    return not data


def _give(target: socket.socket, held: bytearray) -> None:
    """Write what it takes."""
    if held:
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            del held[: target.send(memoryview(held)[:_READ].tobytes())]
