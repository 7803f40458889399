"""The process that serves the page: until it is told to end, or beside a run until that ends.

    python -m hocket.watch.process FOLDER [run]

is what a run starts for `--watch`. It prints the page's address, and ends when its standard input
does: however the run ends, the page does not outlive it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hocket.errors import HocketError
from hocket.system import children
from hocket.watch.guard import Guard, new_token
from hocket.watch.server import Watching, WatchServer, watching

_START_S = 60.0
_END_S = 10.0
_NICENESS = 10
"""How far a page stands back behind the simulators of its machine."""


async def serve_until_signal(
    root: Path,
    settings: Watching,
    on_ready: Callable[[WatchServer], object],
    *,
    is_one_run: bool = False,
    until: int | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C, or until a file that can be read from is at its end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until is not None:
        loop.add_reader(until, stop.set)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    async with watching(root, settings, is_one_run=is_one_run) as server:
        on_ready(server)
        await stop.wait()


class Beside:
    """A page beside a run, in a process of its own. A context manager; its end is the page's."""

    def __init__(self, folder: Path, *, is_one_run: bool) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder), *(["run"] if is_one_run else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the run's: it may have films to make
        )
        self.address = ""

    def __enter__(self) -> Beside:
        process = self._process
        assert process.stdout is not None
        assert process.stderr is not None
        ready, _, _ = select.select([process.stdout], [], [], _START_S)
        self.address = process.stdout.readline().decode().strip() if ready else ""
        if not self.address:
            process.kill()
            said = process.stderr.read().decode(errors="replace").strip()
            self.__exit__()
            raise HocketError(
                f"The page could not be shown: {said or 'its process did not start'}. The run does "
                f"not need it: leave out --watch, and try hocket watch beside it."
            )
        return self

    def __exit__(self, *_: Any) -> None:
        process = self._process
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        children.end(process, _END_S)


def main() -> None:
    """Serve the page of a folder, as a run starts it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = Watching(guard=Guard(token=new_token()))

    def say(server: WatchServer) -> None:
        sys.stdout.write(f"{server.address}\n")
        sys.stdout.flush()

    asyncio.run(
        serve_until_signal(
            Path(sys.argv[1]), settings, say, is_one_run="run" in sys.argv[2:], until=0
        )
    )


if __name__ == "__main__":
    main()
