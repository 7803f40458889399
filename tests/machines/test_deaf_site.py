"""A site that speaks and does not read is dropped, and holds nobody else up."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from hocket.machines import protocol
from hocket.machines.credentials import Credentials
from hocket.machines.protocol import Stream
from hocket.runs.run import Run
from hocket.workers.remote.websocket import KEY_HEADER
from support.heard import Heard
from support.raw_sites import JOINED, begin, hello, say
from support.sites import ThreadSites, attempts, machines, toys

BUFFER = 4096
"""Bytes that each socket may keep, so that few messages fill them."""
LEASE_S = 2.0


class DeafSite:
    """Joins, begins the first trial that it is leased, and then talks without listening."""

    def __init__(self) -> None:
        self.is_deaf = threading.Event()
        self.is_dropped = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), daemon=True)

    def start(self, port: int, credentials: str) -> None:
        self._key = Credentials.parse(credentials, "the test").key
        self._port = port
        self._thread.start()

    async def _live(self) -> None:
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        small.setblocking(False)
        await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", self._port))
        url, headers = f"ws://127.0.0.1:{self._port}", {KEY_HEADER: self._key}
        async with connect(
            url, sock=small, additional_headers=headers, compression=None, max_queue=1, proxy=None
        ) as connection:
            stream = await self._join(connection)
            self.is_deaf.set()
            # Each is answered: nobody has leased such a thing.
            unknown = [protocol.Returned(0, 999, "", False, [])] * 500
            try:
                while stream.is_sent:  # It also waits to hear what of this has come.
                    await say(connection, stream, *unknown)
                await connection.wait_closed()
                self.is_dropped.set()
            except ConnectionClosed:
                self.is_dropped.set()
            connection.transport.abort()

    async def _join(self, connection: ClientConnection) -> Stream:
        stream = await begin(connection)
        await say(connection, stream, hello("d" * 32, "deaf"), JOINED)
        async for data in connection:
            for message in stream.feed(data):
                if isinstance(message, protocol.Leased):
                    await say(connection, stream, protocol.Began([message.leases[0][:2]]))
                    return stream
        raise AssertionError("The driver has ended the connection.")


class DeafFirst(ThreadSites):
    """Starts a site that hears once the other has gone deaf."""

    def __init__(self, deaf: DeafSite) -> None:
        super().__init__(0)
        self._deaf = deaf

    def start(self, port: int, credentials: str) -> None:
        self._where = (port, credentials)
        self._deaf.start(port, credentials)

    def poll(self) -> list[tuple[str, str]]:
        if self._deaf.is_deaf.is_set() and not self.sites:
            self.add(*self._where)
        return []

    def is_hopeless(self) -> bool:
        return False


def test_a_site_that_does_not_read_is_dropped_and_others_get_its_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, deaf, heard = socket.create_server, DeafSite(), Heard()

    def small_buffers(*args: object, **kwargs: object) -> socket.socket:
        found = create(*args, **kwargs)  # type: ignore[arg-type]
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        return found

    monkeypatch.setattr(socket, "create_server", small_buffers)
    elsewhere = machines(DeafFirst(deaf), lease_s=LEASE_S, mixed=True)
    with elsewhere, Run.new(toys(), tmp_path / "run") as run:
        report = run.finish(elsewhere=elsewhere, readers=(heard,))
    assert report.complete
    assert deaf.is_dropped.is_set()
    assert "deaf does not read what it is sent: it was dropped." in heard.notes
    (lost,) = [error for *_, error in attempts(tmp_path / "run") if error]
    assert lost == f"LostSite: deaf was silent for {LEASE_S:g} s."
