"""The way to a worker behind the proxies of a cloud: a WebSocket, for whoever has the key.

The far end listens and takes one connection in its life. What is in front of it (a tunnel, a
preview link) encrypts; the key is sent in a header, as proxies keep those. Either end uses a plain
socket, whose bytes a thread of its own carries.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.http11 import Request, Response

from hocket.errors import WorkerFailed
from hocket.workers.links.stream_link import make_roomy

KEY_HEADER = "X-Hocket-Key"
KEY_VARIABLE = "HOCKET_KEY"
"""The environment variable by which the far end learns the key."""
MAX_MESSAGE = 1 << 20
"""Most bytes of one message."""
_OPEN_S = 20.0
"""Seconds for a handshake."""
_END_S = 5.0
"""Seconds for the last bytes to leave, and as many for them to be taken."""
_READ = 1 << 18
_PLAIN: dict[str, Any] = {
    "compression": None,
    "max_size": MAX_MESSAGE,
    "write_limit": MAX_MESSAGE,
    "open_timeout": _OPEN_S,
    "close_timeout": _END_S,
    "ping_interval": None,  # The relay has signs of life of its own.
}


def new_key() -> str:
    return secrets.token_urlsafe(32)


def join(
    url: str, key: str, stream: socket.socket, headers: Mapping[str, str] | None = None
) -> None:
    """Connect to a far end, and carry bytes between it and a socket, in a thread that then owns the
    socket, until either ends. Raises WorkerFailed where the far end refuses, OSError where nobody
    answers: then the socket is the caller's."""
    opened: Future[None] = Future()
    call = _call(url, {**(headers or {}), KEY_HEADER: key}, stream, opened)
    threading.Thread(target=asyncio.run, args=(call,), daemon=True).start()
    try:
        opened.result()
    except OSError:  # One that tells of a certificate is a ValueError too.
        raise
    except InvalidStatus as exc:
        text = (exc.response.body or b"")[:300].decode("utf-8", "replace").strip()
        status = exc.response.status_code
        raise WorkerFailed(f"{url} refused the connection ({status}): {text}") from exc
    except (InvalidHandshake, ValueError) as exc:
        raise WorkerFailed(f"{url} is no worker of hocket's: {exc!r}") from exc


async def _call(
    url: str, headers: Mapping[str, str], stream: socket.socket, opened: Future[None]
) -> None:
    try:
        parts = urllib.parse.urlsplit(url)
        is_secure = parts.scheme == "wss"
        where = (parts.hostname or "", parts.port or (443 if is_secure else 80))
        # With a socket of ours no proxy is asked, and no redirection gets the key.
        sock = socket.create_connection(where, _OPEN_S)
        context = ssl.create_default_context() if is_secure else None
        web = await connect(url, sock=sock, ssl=context, additional_headers=headers, **_PLAIN)
    except Exception as exc:  # noqa: BLE001 - `join` raises it
        opened.set_exception(exc)
        return
    opened.set_result(None)
    await _carry(web, stream)


async def listen(
    key: str,
    host: str,
    port: int,
    use: Callable[[socket.socket], None],
    on_port: Callable[[int], None] = lambda _: None,
    wait_s: float = 600.0,
) -> None:
    """Take one connection from whoever has the key and `use` the socket that leads there; others
    are refused, before and after. `on_port` is told where it listens. Gives up after `wait_s`."""
    assert key  # Whoever brings none would have it.
    admitted: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        brought = ",".join(request.headers.get_all(KEY_HEADER)).encode()
        if not hmac.compare_digest(brought, key.encode()):
            return connection.respond(401, "The key is missing or wrong.\n")
        return connection.respond(409, "This worker is taken.\n") if admitted.done() else None

    async def admit(web: ServerConnection) -> None:
        if not admitted.done():
            admitted.set_result(web)
            await web.wait_closed()

    async with serve(admit, host, port, process_request=answer, **_PLAIN) as server:
        on_port(server.sockets[0].getsockname()[1])
        try:
            web = await asyncio.wait_for(admitted, wait_s)
        except asyncio.TimeoutError:
            return
        ours, theirs = socket.socketpair()
        make_roomy(ours)
        carrying = asyncio.create_task(_carry(web, theirs))
        with ours:
            await asyncio.to_thread(use, ours)
        await carrying


async def _carry(web: Connection, stream: socket.socket) -> None:
    """Carry bytes both ways until either ends. Neither way waits for the other: both ends may be
    sending more than fits on the way."""
    stream.setblocking(False)  # noqa: FBT003
    inward = asyncio.create_task(_receive(web, stream))
    outward = asyncio.create_task(_send(web, stream))
    with stream:
        await asyncio.wait((inward, outward), return_when=asyncio.FIRST_COMPLETED)
        await web.close()
        await asyncio.wait((inward,), timeout=_END_S)  # The last that came is given on.
        for way in (inward, outward):
            way.cancel()
        await asyncio.wait((inward, outward))
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)


async def _send(web: Connection, stream: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, ConnectionClosed):
        while data := await loop.sock_recv(stream, _READ):
            await web.send(data)


async def _receive(web: Connection, stream: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, ConnectionClosed):
        async for data in web:
            if isinstance(data, str):
                await web.close(1003, "Text came where a stream of bytes was expected.")
                return
            await loop.sock_sendall(stream, data)
