"""The process that serves the page: until it is told to end, or beside a run until that ends.

    python -m hocket.watch.process FOLDER [run]

is what a run starts for `--watch`. It prints the page's address, and ends when its standard input
does: however the run ends, the page does not outlive it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hocket.errors import HocketError
from hocket.system.child import Child
from hocket.system.exposure import serve_until_signal
from hocket.watch.guard import new_token
from hocket.watch.server import Watching, WatchServer

_START_S = 60.0
_END_S = 10.0
_NICENESS = 10
"""How far a page stands back behind the simulators of its machine."""


def serve(
    server: WatchServer, on_ready: Callable[[WatchServer], object], *, until: int | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C, or until a file that can be read from is at its end."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    asyncio.run(serve_until_signal(server, on_ready, until=until))


class Beside:
    """A page beside a run, in a process of its own. A context manager; its end is the page's."""

    def __init__(self, folder: Path, *, is_one_run: bool) -> None:
        words = [sys.executable, "-m", __name__, str(folder), *(["run"] if is_one_run else [])]
        self._child = Child(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.address = ""

    def __enter__(self) -> Beside:
        self.address = self._child.line(_START_S)
        if not self.address:
            said = self._child.ending()
            self._child.end(0.0)
            raise HocketError(
                f"The page could not be shown: its process {said} The run does not need it: leave "
                f"out --watch, and try hocket watch beside it."
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._child.end(_END_S)


def main() -> None:
    """Serve the page of a folder, as a run starts it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def say(server: WatchServer) -> None:
        sys.stdout.write(f"{server.address}\n")
        sys.stdout.flush()

    folder, is_one_run = Path(sys.argv[1]), "run" in sys.argv[2:]
    serve(WatchServer(folder, Watching(token=new_token()), is_one_run=is_one_run), say, until=0)


if __name__ == "__main__":
    main()
