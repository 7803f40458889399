"""The learner as a process of its own: `python -m hocket.train.learner.process SOCKET BLOCK`.

Messages are read by a thread that does nothing else, so that the collecting side never waits for an
update to end. It lives no longer than the other side does.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from hocket.train.collect.segments import Segment
from hocket.train.config import TrainConfig
from hocket.train.learner.learner import Learner
from hocket.train.learner.links import receive, send, updated_message
from hocket.train.learner.ranks import Ranks
from hocket.train.networks.building import Description

Inbox = queue.SimpleQueue[dict[str, Any]]


def main(socket_fd: int, block_fd: int) -> None:
    """Serve the other side until it says `finish` or goes away."""
    stream = socket.socket(fileno=socket_fd)
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_read, args=(stream, inbox), daemon=True).start()
    try:
        _serve(stream, inbox, block_fd)
    except Exception:  # noqa: BLE001 - told to the other side, which stops
        send(stream, {"kind": "failed", "error": traceback.format_exc()})


def _read(stream: socket.socket, inbox: Inbox) -> None:
    try:
        while (message := receive(stream)) is not None:
            inbox.put(message)
    finally:
        # Nobody is left to learn for; an update in progress is not worth its end.
        os._exit(0)


def _serve(stream: socket.socket, inbox: Inbox, block_fd: int) -> None:
    start = inbox.get()
    run, resume = Path(start["run"]), start["resume"]
    learner = Learner(
        TrainConfig.from_plain(start["config"]),
        Description.from_plain(start["description"]),
        Ranks(),
        block_fd=block_fd,
        resume=None if resume is None else Path(resume),
    )
    send(stream, {"kind": "ready"})
    floor, fraction = 0, 0.0
    while True:
        # Everything that has come is heard first: the floor must be the newest one.
        message: dict[str, Any] | None = inbox.get()
        while message is not None:
            kind = message["kind"]
            if kind == "parcel":
                learner.put([Segment.from_plain(plain) for plain in message["segments"]])
            elif kind == "tell":
                floor, fraction = message["floor"], message["fraction"]
            elif kind == "save":
                learner.save(run, message["counters"])
            elif kind == "finish":
                learner.save(run, message["counters"])
                send(stream, {"kind": "finished"})
                threading.Event().wait()  # until the other side goes away, and `_read` with it
            message = None if inbox.empty() else inbox.get()
        if (updated := learner.update(floor, fraction)) is not None:
            send(stream, updated_message(updated))
            inbox.put({"kind": "again"})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
