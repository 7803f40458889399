"""A websocket proxy between an OpenPI client and its server that doubles, holds back and reorders
frames: what no network does by itself, and proxies, retries and bugs do."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import Literal

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import ServerConnection, serve

from support.processes import wait_until

Fault = Literal["again", "older", "asked twice", "late"]
"""A reply once more after itself; an earlier frame of the connection (its metadata too) before the
true reply; a request passed on twice; a reply held back for a moment."""


class FrameProxy:
    """Forwards frames to `target`. Each fault hits a frame with probability `share`."""

    def __init__(self, target: int, faults: tuple[Fault, ...], *, share: float = 0.4) -> None:
        self._target = target
        self._faults = faults
        self.share = share
        self._random = random.Random(7)
        self._live: set[ServerConnection] = set()
        self.hits = 0
        """Faults that were done so far."""
        self._server = serve(self._carry, "127.0.0.1", 0, compression=None, max_size=None)
        self.port = int(self._server.socket.getsockname()[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> FrameProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        wait_until(lambda: not self._live)

    def _hit(self, fault: Fault) -> bool:
        is_hit = fault in self._faults and self._random.random() < self.share
        self.hits += is_hit
        return is_hit

    def _carry(self, near: ServerConnection) -> None:
        self._live.add(near)
        try:
            with connect(f"ws://127.0.0.1:{self._target}", compression=None, max_size=None) as far:
                past: list[str | bytes] = []
                down = threading.Thread(target=self._pass_down, args=(far, near, past), daemon=True)
                down.start()
                with contextlib.suppress(ConnectionClosed):
                    for request in near:
                        if past and self._hit("older"):
                            near.send(self._random.choice(past))
                        far.send(request)
                        if self._hit("asked twice"):
                            far.send(request)
                far.close()
                down.join()
        except (OSError, ConnectionClosed):
            pass
        finally:
            self._live.discard(near)

    def _pass_down(
        self, far: ClientConnection, near: ServerConnection, past: list[str | bytes]
    ) -> None:
        with contextlib.suppress(ConnectionClosed):
            for reply in far:
                if self._hit("late"):
                    time.sleep(0.02)
                near.send(reply)
                past.append(reply)
                if self._hit("again"):
                    near.send(reply)
        with contextlib.suppress(ConnectionClosed):
            near.close()
