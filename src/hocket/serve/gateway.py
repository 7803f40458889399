"""One endpoint in front of several OpenPI servers.

Frames pass as they are, so every dialect of requests and replies does too. Each goes to the least
loaded server that is up; when that one fails, a stateless request moves to another. Sessions stay
on the server where they began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from hocket.adapters.policies.openpi.msgpack_numpy import unpack
from hocket.adapters.policies.openpi.protocol import EXTENSION, bind_key, find_announcement
from hocket.adapters.policies.openpi.servers import Servers
from hocket.errors import PolicyUnavailableError, WireError
from hocket.serve.backend import Caller
from hocket.serve.batching import Overloaded
from hocket.serve.metrics import Metrics


class Gateway:
    """Answers with other servers. `servers` must live on the loop that serves."""

    def __init__(self, servers: Servers, metrics: Metrics, *, max_queue: int) -> None:
        self._servers = servers
        self._metrics = metrics
        self._max_queue = max_queue
        self._is_stateful = False
        self._tasks: set[asyncio.Future[Any]] = set()

    async def start(self) -> Mapping[str, Any]:
        """Wait for a server, and pass its metadata on."""
        connection = await self._servers.connect()
        metadata = connection.metadata if isinstance(connection.metadata, Mapping) else {}
        found = find_announcement(metadata)
        self._is_stateful = found is not None and found.is_stateful
        self._metrics.concurrency = len(self._servers.replicas)
        if found is None:
            return metadata
        extension = dict(metadata[EXTENSION])
        spec = dict(extension["spec"])
        spec["concurrency"] *= len(self._servers.replicas)
        if self._is_stateful:
            spec["max_batch"] = 1  # rows of one batch may live on two servers
        return {**metadata, EXTENSION: {**extension, "spec": spec}}

    async def answer(self, caller: Caller, frame: bytes) -> bytes:
        if self._servers.load >= self._max_queue:
            raise Overloaded(f"{self._servers.load} requests wait already. Try again later.")
        request = unpack(frame)
        if not isinstance(request, Mapping):
            raise WireError(f"A request must be a map, not {type(request).__name__}.")
        asked = request.get(EXTENSION)
        if isinstance(asked, Mapping) and asked.get("op") == "infer" and "id" in asked:
            caller.take(asked["id"])
        began = asyncio.get_running_loop().time()
        # A client that leaves must not cost its server the connection: the question is finished.
        task = asyncio.ensure_future(self._ask(frame, request))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        reply = await asyncio.shield(task)
        self._metrics.answered(1, asyncio.get_running_loop().time() - began)
        self._metrics.queue_depth = self._servers.load
        return reply

    def leave(self, caller: Caller) -> None:
        """Sessions outlive connections: their owner ends them."""

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._servers.close()

    async def _ask(self, frame: bytes, request: Mapping[str, Any]) -> bytes:
        extension = request.get(EXTENSION)
        op = extension.get("op") if isinstance(extension, Mapping) else None
        if op == "bind":
            reply, *_ = await self._servers.tell_all(bind_key(request), frame)
        elif not isinstance(extension, Mapping) or not self._is_stateful:
            reply = await self._servers.ask([frame])
        elif op == "reset":
            reply = await self._servers.end(str(extension.get("session")), frame)
        else:
            try:  # the sessions that it is about, and whether each begins with it
                sessions = {str(row[5]): row[2] == 0 for row in extension["rows"]}
            except (KeyError, TypeError, IndexError) as exc:
                raise WireError(f"An extended request needs rows: {exc!r}") from exc
            for session, is_first in sessions.items():
                if is_first:
                    await self._servers.begin(session)
            reply = await self._servers.ask([frame], list(sessions))
        return reply.frames[0]

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(task.exception(), PolicyUnavailableError):
            self._metrics.errors["upstream"] += 1
