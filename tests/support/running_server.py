"""A server of hocket's on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hocket.serve.backend import Backend
from hocket.serve.metrics import Metrics
from hocket.serve.server import PolicyServer, ServeOptions
from support.processes import DEADLINE_S

WAIT_S = DEADLINE_S


@dataclass
class Running:
    """A server that listens, and the loop that it lives on."""

    server: PolicyServer
    metrics: Metrics
    loop: asyncio.AbstractEventLoop
    stop: Callable[[], None]
    """Drain, and wait for the end."""

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def running(backend: Backend, metrics: Metrics, **listening: Any) -> Iterator[Running]:
    """Serve a backend on a thread until the block ends."""
    ready: threading.Event = threading.Event()
    found: list[Running] = []
    errors: list[BaseException] = []

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        settings = ServeOptions(**{"port": 0, "drain_s": 5.0, **listening})
        async with PolicyServer(backend, settings, metrics) as server:

            def end() -> None:
                if thread.is_alive():
                    loop.call_soon_threadsafe(stop.set)
                    thread.join(WAIT_S)
                    assert not thread.is_alive(), "the server did not end"

            found.append(Running(server, metrics, loop, end))
            ready.set()
            await stop.wait()

    def work() -> None:
        try:
            asyncio.run(main())
        except BaseException as exc:  # noqa: BLE001 - raised again on the test's thread
            errors.append(exc)
            ready.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(WAIT_S), "the server did not come up"
    if errors:
        raise errors[0]
    try:
        yield found[0]
    finally:
        found[0].stop()
        if errors:
            raise errors[0]


ServePolicy = Callable[..., Running]
