"""What a server writes about itself, which never holds it up: not even where nobody reads it."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from logging.handlers import QueueHandler
from typing import Any

_MOST = 1000
"""Lines that wait to be written; more are lost."""


class _Lossy(QueueHandler):
    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


def log_to_stderr() -> None:
    """Write what is logged from now on to standard error, on a thread of its own."""
    lines: queue.Queue[Any] = queue.Queue(_MOST)
    # No handler of logging's: the process would wait for it at its end.
    threading.Thread(target=_write, args=(lines,), daemon=True).start()
    logging.basicConfig(handlers=[_Lossy(lines)], format="%(message)s", level=logging.INFO)


def _write(lines: queue.Queue[Any]) -> None:
    with contextlib.suppress(OSError):  # nobody will ever read it
        while True:
            os.write(2, f"hocket: {lines.get().getMessage()}\n".encode(errors="replace"))
