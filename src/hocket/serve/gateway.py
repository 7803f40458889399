"""One endpoint in front of several OpenPI servers.

Frames pass as they are, so every dialect of requests and replies does too. Each goes to the least
loaded server that is up; when that one fails, a stateless request moves to another. Sessions stay
on the server where they began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from hocket.adapters.policies.openpi.connection import Read
from hocket.adapters.policies.openpi.protocol import (
    EXTENSION,
    bind_key,
    continue_key,
    find_announcement,
    read_extended,
)
from hocket.adapters.policies.openpi.servers import Reply, Servers
from hocket.core.codec import pack, unpack
from hocket.errors import PolicyUnavailableError, WireError
from hocket.serve.clients import VLA_EVAL, Caller, Client, Clients
from hocket.serve.frames import FrameReader, Overloaded, frame_limits, most_bytes, unpack_map
from hocket.serve.metrics import Metrics
from hocket.serve.requests import (
    ExtendedRequest,
    parse_extended,
)

Result = TypeVar("Result")


class Gateway:
    """A backend that asks other servers. `servers` must live on the loop that serves."""

    def __init__(self, servers: Servers, metrics: Metrics, *, max_queue: int) -> None:
        self._servers = servers
        self._metrics = metrics
        self._max_queue = max_queue
        self._is_extended = False
        self._is_stateful = False
        self.max_request_bytes: int | None = None
        self._frames = FrameReader(frame_limits(None, max_queue))
        self._clients = Clients(servers.unpin, self._forget_client)
        self._tasks: set[asyncio.Future[Any]] = set()

    async def start(self) -> Mapping[str, Any]:
        """Wait for a server, and pass its metadata on."""
        connection = await self._servers.connect()
        metadata = connection.metadata if isinstance(connection.metadata, Mapping) else {}
        found = find_announcement(metadata)
        self._metrics.concurrency = len(self._servers.replicas)
        if found is None:
            return metadata
        self._is_extended, self._is_stateful = True, found.is_stateful
        self.max_request_bytes = most_bytes(found.spec)
        extension = dict(metadata[EXTENSION])
        spec = dict(extension["spec"])
        spec["concurrency"] *= len(self._servers.replicas)
        if self._is_stateful:
            spec["max_batch"] = 1  # rows of one batch may live on two servers
        # Memory is shared with a server, and which one answers is not known here.
        return {**metadata, EXTENSION: {**extension, "spec": spec, "channel": None}}

    async def answer(self, caller: Caller, frame: bytes) -> bytes:
        if caller.dialect == VLA_EVAL:
            raise WireError("A gateway passes OpenPI's requests on, and none of vla-eval's.")
        if self._servers.load >= self._max_queue:
            raise Overloaded(f"{self._servers.load} requests wait already. Try again later.")
        asked = await self._frames.read(frame, self._parse)
        if asked is not None and asked.op == "infer":
            caller.take(asked.number)
        began = asyncio.get_running_loop().time()
        client = None if asked is None else self._clients.of(caller, asked.client)
        # A client that leaves must not cost its server the connection: the question is finished.
        reply = await asyncio.shield(self._start(self._ask(frame, asked, client)))
        self._metrics.answered(1, asyncio.get_running_loop().time() - began)
        self._metrics.queue_depth = self._servers.load
        return reply

    def leave(self, caller: Caller) -> None:
        """Forget clients that have no other connection, after a while: sessions outlive
        connections."""
        self._clients.leave(caller)

    async def close(self) -> None:
        self._clients.close()
        self._frames.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._servers.close()

    def _parse(self, frame: bytes) -> ExtendedRequest | None:
        """An extended request; None for others, and where no server would know it."""
        request = unpack_map(frame)
        if not self._is_extended or not isinstance(request.get(EXTENSION), Mapping):
            return None
        asked = parse_extended(request[EXTENSION])
        # Servers hear of envs again with every connection, so nothing that ends one may pass.
        if asked.error is not None:
            raise asked.error
        return asked

    async def _ask(
        self, frame: bytes, asked: ExtendedRequest | None, client: Client | None
    ) -> bytes:
        if asked is None or client is None:
            return _frame(await self._servers.ask([frame]))
        read = partial(_read_frame, number=asked.number)
        if asked.spec is not None:
            client.tell(asked.env, asked.plain, asked.spec)
            return await self._tell_all(bind_key(client.name, asked.env), frame, read)
        if asked.op == "continue":
            return await self._tell_all(continue_key(client.name), frame, read)
        if not self._is_stateful:
            return _frame(await self._servers.ask([frame], read=read))
        if asked.op == "reset":
            session = client.session(asked.session)
            try:
                return _frame(await self._servers.end(session, frame, read))
            finally:
                self._clients.end(client, session)
        rows = (sent.row for sent in asked.rows)
        sessions = {client.session(row.session): row.chunk == 0 for row in rows}
        self._clients.use(client, sessions.items())
        for session, begins in sessions.items():
            if begins:
                await self._servers.begin(session)
        return _frame(await self._servers.ask([frame], list(sessions), read))

    async def _tell_all(self, key: bytes, frame: bytes, read: Read[bytes]) -> bytes:
        """Tell all servers, now and on every later connection, of a client's env or of how its
        chunks are continued."""
        reply = _frame((await self._servers.tell_all(key, frame, read))[0])
        if "error" in unpack(reply)[EXTENSION]:
            self._servers.forget_frame(key)
        return reply

    def _forget_client(self, client: Client) -> None:
        self._servers.forget_frame(continue_key(client.name))
        for number in client.envs:
            self._servers.forget_frame(bind_key(client.name, number))
        if self._is_extended:
            leave = {EXTENSION: {"op": "leave", "id": 0, "client": client.name}}
            self._start(self._servers.tell_once(pack(leave)))

    def _start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Future[Result]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(task.exception(), PolicyUnavailableError):
            self._metrics.errors["upstream"] += 1


def _read_frame(frame: bytes, number: int) -> bytes:
    """The frame as it came, where it answers request `number`."""
    read_extended(frame, number)
    return frame


def _frame(reply: Reply) -> bytes:
    found: bytes = reply.answers[0]
    return found
