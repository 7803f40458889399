"""A page's server in this process, and clients that talk to it as browsers do, or do not."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from websockets.sync.client import ClientConnection, connect

from hocket.watch.server import Watching, WatchServer
from support.processes import DEADLINE_S

TOKEN = "a-token-of-a-test"


@contextlib.contextmanager
def served(folder: Path, *, is_one_run: bool = False) -> Iterator[str]:
    """The address of a folder's page, served by a thread."""
    ready: list[str] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        settings = Watching(token=TOKEN)
        async with WatchServer(folder, settings, is_one_run=is_one_run) as server:
            ready.append(server.address)
            started.set()
            while not stop.is_set():
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(DEADLINE_S)
        yield ready[0]
    finally:
        stop.set()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


class Answer:
    def __init__(self, found: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = found.status, found.headers, found.read()


def get(address: str, path: str = "", **headers: str) -> Answer:
    """What a request is answered; `path` follows the token, unless it begins with a slash."""
    parts = urlsplit(address)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=DEADLINE_S)
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    target = path if path.startswith("/") else parts.path + path
    with contextlib.closing(connection):
        connection.putrequest("GET", target, skip_host="Host" in named)
        for key, value in named.items():
            connection.putheader(key, value)
        connection.endheaders()
        return Answer(connection.getresponse())


class Client:
    """A page without a browser: what it was told, message by message."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.pictures: dict[int, bytes] = {}

    def say(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))

    def until(self, kind: str, *keys: str) -> dict[str, Any]:
        """The next message of a kind that has these keys."""
        while True:
            data = self.socket.recv(timeout=DEADLINE_S)
            if isinstance(data, bytes):
                self.pictures[int.from_bytes(data[:4], "big")] = data[4:]
                if kind == "picture":
                    return {}
                continue
            message: dict[str, Any] = json.loads(data)
            if message["kind"] == kind and all(key in message for key in keys):
                return message


@contextlib.contextmanager
def joined(address: str, name: str = "", **settings: Any) -> Iterator[Client]:
    where = address.replace("http", "ws", 1) + "live" + (f"/{name}" if name else "")
    with connect(where, max_size=None, compression=None, **settings) as socket:
        yield Client(socket)
