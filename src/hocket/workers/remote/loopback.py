"""Workers beside this process that are reached as those of a cloud are: by a WebSocket with a key.

It shows what that costs, and lets the whole way be tested where there is no cloud.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

from hocket.core.contracts.link import Link
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.plugins import NoSettings
from hocket.errors import WorkerFailed
from hocket.system.child import Child
from hocket.system.scratch import ScratchFolder
from hocket.workers.remote.archive import code_archive
from hocket.workers.remote.link import dial
from hocket.workers.remote.websocket import KEY_VARIABLE, join, new_key

_START_S = 120.0
"""Seconds for a far end to listen."""
_END_S = 4.0
"""Seconds for far ends to go by themselves once nobody talks to them."""


class LoopbackRuntime:
    """Starts far ends as children of this process."""

    Config = NoSettings

    def __init__(self, argument: str = "", config: NoSettings | None = None) -> None:
        del argument, config
        # Guards that whoever is started is ended by `close`.
        self._lock = threading.Lock()
        self._far: list[FarProcess] = []
        self._folder: ScratchFolder | None = None

    def start(self, spec: WorkerSpec) -> Link:
        """Ask for a worker; a thread starts and calls it."""
        python = spec.python or sys.executable

        def attach(stream: socket.socket) -> FarProcess:
            far = FarProcess(python, self._code())
            with self._lock:
                gone = [other for other in self._far if not other.child.is_alive]
                self._far = [other for other in self._far if other not in gone] + [far]
            for other in gone:
                other.child.end(0.0)
            far.join(stream)
            return far

        return dial(spec, attach)

    def _code(self) -> str:
        with self._lock:
            if self._folder is None:
                self._folder = ScratchFolder("loopback")
                (self._folder.path / "code.zip").write_bytes(code_archive())
            return str(self._folder.path / "code.zip")

    def close(self) -> None:
        with self._lock:
            gone, self._far = self._far, []
        for far in gone:
            far.child.end(_END_S)
        if self._folder is not None:
            self._folder.close()
            self._folder = None


class FarProcess:
    """A far end on this machine."""

    def __init__(self, python: str, code: str) -> None:
        self._key = new_key()
        env = {**os.environ, KEY_VARIABLE: self._key}
        self.child = Child([python, code, "ws", "0"], stdout=subprocess.PIPE, env=env)

    def join(self, stream: socket.socket) -> None:
        port = self.child.line(_START_S)
        if not port.isdigit():
            raise WorkerFailed(self.explain())
        join(f"ws://127.0.0.1:{port}", self._key, stream)

    def end(self) -> None:
        """Do nothing: it ends with its stream."""

    def explain(self) -> str:
        return f"The far end {self.child.ending()}"
