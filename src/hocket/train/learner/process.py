"""The collecting side's ways to the learner: in this process, or in one of its own. `Remote` starts
that and is the collecting side's end of the socket between them; `python -m
hocket.train.learner.process SOCKET BLOCK` is the other.

The two sides then share nothing but the block of weights. Threads that do nothing else read and
write messages, so that the collecting side never waits for an update to end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from hocket.core import codec
from hocket.errors import HocketError
from hocket.system.child import Child
from hocket.train.algorithms.ranks import Ranks
from hocket.train.algorithms.stretches import Parcel, Stretch
from hocket.train.config import TrainConfig
from hocket.train.learner.learner import Learner, Updated
from hocket.train.learner.weights import WeightBlock
from hocket.train.networks.building import Description, Made
from hocket.train.networks.contract import published_tensors

_LENGTH = struct.Struct("<Q")
_CLOSE_S = 2.0
"""How long a learner that was told to end may take before it is killed."""
_START_S = 120.0
"""How long a learner may be silent while it imports torch and builds its network, or writes its
last checkpoint, on a slow disk and a busy machine."""

Inbox = queue.SimpleQueue[dict[str, Any]]


class InProcess:
    """A learner on the caller's own thread. It learns when it is asked for news: everything else
    stands still meanwhile, which is what synchronous means. `Remote` has one at its far end."""

    def __init__(
        self,
        config: TrainConfig,
        description: Description,
        run: Path,
        *,
        ranks: Ranks,
        resume: Path | None,
        made: Made | None = None,
        block_fd: int | None = None,
    ) -> None:
        self.learner = Learner(
            config, description, ranks, run=run, made=made, block_fd=block_fd, resume=resume
        )
        self.block = self.learner.block
        self._run = run
        self._ranks = ranks
        self._floor, self._fraction = 0, 0.0

    def put(self, parcel: Parcel) -> None:
        self.learner.queue.put(parcel)

    def tell(self, *, floor: int, fraction: float) -> None:
        """Tell the oldest version in flight, and the share of the training that is done."""
        self._floor, self._fraction = floor, fraction

    def news(self) -> list[Updated]:
        """Return the updates since the last call."""
        updated = self.learner.update(self._floor, self._fraction)
        return [] if updated is None else [updated]

    def save(self, counters: Mapping[str, Any]) -> None:
        """Write a checkpoint with these counters, soon, between two updates."""
        if self._ranks.is_first:
            self.learner.save(self._run, counters)

    def finish(self, counters: Mapping[str, Any]) -> list[Updated]:
        """End learning with a checkpoint, and return the updates that `news` has not told."""
        self.save(counters)
        return []

    def take_corrections(self, count: int) -> None:
        """Learn from this many rounds of corrections from now on."""
        self.learner.take_corrections(self._run, count)

    def judge(self) -> dict[str, float]:
        """Calibrate and measure a reward model."""
        return self.learner.judge(self._run)

    def close(self) -> None:
        self.block.close()


class Remote:
    """A learner in a process of its own, which dies with this one. It does what `InProcess` does,
    and none of it waits, except `finish`."""

    def __init__(
        self,
        config: TrainConfig,
        description: Description,
        run: Path,
        *,
        made: Made,
        wake: Callable[[], None],
        resume: Path | None,
    ) -> None:
        """`made` is the collecting side's network. `wake` is called from another thread when there
        is news."""
        self._wake = wake
        self.block = WeightBlock(published_tensors(made.network))
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._outbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._inbox: Inbox = queue.SimpleQueue()
        self._told: tuple[int, float] | None = None
        fds = (theirs.fileno(), self.block.fd)
        self._child = Child(
            [sys.executable, "-m", "hocket.train.learner.process", *map(str, fds)],
            pass_fds=fds,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
        )
        theirs.close()
        for work in (self._send_all, self._receive_all):
            threading.Thread(target=work, name="hocket-learner-link", daemon=True).start()
        self._outbox.put(
            {
                "kind": "start",
                "config": config.to_plain(),
                "description": description.to_plain(),
                "run": str(run),
                "resume": None if resume is None else str(resume),
            }
        )
        self._updates(until="ready")

    def put(self, parcel: Parcel) -> None:
        self._outbox.put({"kind": "parcel", "stretches": [one.to_plain() for one in parcel]})

    def tell(self, *, floor: int, fraction: float) -> None:
        if self._told is None or self._told[0] != floor or fraction - self._told[1] > 0.001:
            self._told = (floor, fraction)
            self._outbox.put({"kind": "tell", "floor": floor, "fraction": fraction})

    def news(self) -> list[Updated]:
        return self._updates()

    def save(self, counters: Mapping[str, Any]) -> None:
        self._outbox.put({"kind": "save", "counters": dict(counters)})

    def finish(self, counters: Mapping[str, Any]) -> list[Updated]:
        self._outbox.put({"kind": "finish", "counters": dict(counters)})
        return self._updates(until="finished")

    def close(self) -> None:
        """End the learner: by asking for a moment, then by force. Closing twice is safe."""
        self._outbox.put(None)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._child.end(_CLOSE_S)
        self._socket.close()
        self.block.close()

    def _updates(self, until: str | None = None) -> list[Updated]:
        """Return the updates that have come; with `until`, wait for a message of that kind."""
        updates: list[Updated] = []
        while until is not None or not self._inbox.empty():
            try:
                message = self._inbox.get(timeout=_START_S)
            except queue.Empty:
                raise HocketError(f"The learner was silent for {_START_S:g} s.") from None
            kind = message.pop("kind")
            if kind == "failed":
                said = message["error"] or f"its process {self._child.ending()}"
                raise HocketError(f"The learner failed: {said}")
            if kind == "updated":
                updates.append(Updated(**message))
            if kind == until:
                break
        return updates

    def _send_all(self) -> None:
        with contextlib.suppress(OSError):
            while (message := self._outbox.get()) is not None:
                send(self._socket, message)

    def _receive_all(self) -> None:
        error = None
        try:
            with self._socket.makefile("rb") as stream:
                while (message := receive(stream)) is not None:
                    self._inbox.put(message)
                    self._wake()
        except (OSError, HocketError) as exc:
            error = str(exc)
        self._inbox.put({"kind": "failed", "error": error})
        self._wake()


LearnerLink = InProcess | Remote


def send(stream: socket.socket, message: Mapping[str, Any]) -> None:
    frame = codec.pack(message)
    stream.sendall(_LENGTH.pack(len(frame)))
    stream.sendall(frame)


def receive(stream: BinaryIO) -> dict[str, Any] | None:
    """Read the next message; None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    size = _LENGTH.unpack(head)[0]
    frame = stream.read(size)
    return codec.unpack(frame) if len(frame) == size else None


def main(socket_fd: int, block_fd: int) -> None:
    """Serve the other side until it goes away; this process lives no longer."""
    stream = socket.socket(fileno=socket_fd)
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_read, args=(stream.makefile("rb"), inbox), daemon=True).start()
    try:
        _serve(stream, inbox, block_fd)
    except Exception:  # noqa: BLE001 - told to the other side, which stops
        send(stream, {"kind": "failed", "error": traceback.format_exc()})


def _read(stream: BinaryIO, inbox: Inbox) -> None:
    try:
        while (message := receive(stream)) is not None:
            inbox.put(message)
    finally:
        # Nobody is left to learn for; an update in progress is not worth its end.
        os._exit(0)


def _serve(stream: socket.socket, inbox: Inbox, block_fd: int) -> None:
    start = inbox.get()
    resume = start["resume"]
    link = InProcess(
        TrainConfig.from_plain(start["config"]),
        Description.from_plain(start["description"]),
        Path(start["run"]),
        ranks=Ranks(),
        resume=None if resume is None else Path(resume),
        block_fd=block_fd,
    )
    send(stream, {"kind": "ready"})
    while True:
        # Everything that has come is heard first: the floor must be the newest one.
        message: dict[str, Any] | None = inbox.get()
        while message is not None:
            kind = message["kind"]
            if kind == "parcel":
                link.put([Stretch.from_plain(plain) for plain in message["stretches"]])
            elif kind == "tell":
                link.tell(floor=message["floor"], fraction=message["fraction"])
            elif kind == "save":
                link.save(message["counters"])
            elif kind == "finish":
                link.finish(message["counters"])
                send(stream, {"kind": "finished"})
                threading.Event().wait()  # until the other side goes away, and `_read` with it
            message = None if inbox.empty() else inbox.get()
        for updated in link.news():
            send(stream, {"kind": "updated", **dataclasses.asdict(updated)})
            inbox.put({"kind": "again"})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
