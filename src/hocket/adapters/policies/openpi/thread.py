"""The event loop that a client's servers live on, for callers on other threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from hocket.adapters.policies.openpi.servers import Servers
from hocket.errors import PolicyUnavailableError

CLOSE_S = 2.0
"""Seconds in which connections are closed politely; what is left then is dropped."""

Result = TypeVar("Result")


class ServersThread:
    """The servers, on an event loop with a thread of its own, for callers on other threads."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="hocket-openpi", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The coroutine's result. An interrupted caller cancels it."""
        if self._loop.is_closed() or not self._thread.is_alive():
            work.close()
            raise PolicyUnavailableError("The policy was closed.")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise PolicyUnavailableError("The policy was closed while it was asked.") from None
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop)
        self._thread.join(CLOSE_S + 1.0)

    async def _finish(self) -> None:
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        try:
            await asyncio.wait_for(self.servers.close(), CLOSE_S)
        finally:
            asyncio.get_running_loop().stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
