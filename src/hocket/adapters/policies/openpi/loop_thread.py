"""An event loop on a thread of its own, for policies whose `infer` is called from other threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from hocket.errors import PolicyUnavailableError

Result = TypeVar("Result")


class LoopThread:
    """Runs coroutines for callers on other threads, until it is closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
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

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a plain function on the loop, some time soon."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def close(self, last: Coroutine[Any, Any, Any], timeout_s: float = 3.0) -> None:
        """Cancel what runs, run `last`, and end."""
        asyncio.run_coroutine_threadsafe(self._finish(last), self._loop)
        self._thread.join(timeout_s)

    async def _finish(self, last: Coroutine[Any, Any, Any]) -> None:
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        try:
            await asyncio.wait_for(last, 2.0)
        finally:
            asyncio.get_running_loop().stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
