"""The learner as a process of its own: `Remote` starts it and is the collecting side's end of the
socket between them; `python -m hocket.train.learner.process SOCKET BLOCK` is the other.

The two sides share nothing but the block of weights. Threads that do nothing else read and write
messages, so that the collecting side never waits for an update to end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hocket.adapters.policies.openpi import msgpack_numpy
from hocket.errors import HocketError
from hocket.train.algorithms.rollout import Parcel, Segment
from hocket.train.algorithms.update import Ranks
from hocket.train.config import TrainConfig
from hocket.train.learner.learner import Learner, Updated
from hocket.train.learner.weights import WeightBlock
from hocket.train.networks.building import Description
from hocket.train.networks.contract import trainable_parameters

_LENGTH = struct.Struct("<Q")
_CLOSE_S = 2.0
"""How long a learner that was told to end may take before it is killed. Chosen by hand."""
_START_S = 120.0
"""How long a learner may be silent while it imports torch and builds its network, or writes its
last checkpoint. Chosen by hand, for a slow disk and a busy machine."""

Inbox = queue.SimpleQueue[dict[str, Any]]


class Remote:
    """A learner in a process of its own, which dies with this one."""

    def __init__(
        self,
        config: TrainConfig,
        description: Description,
        run: Path,
        *,
        wake: Callable[[], None],
        resume: Path | None,
    ) -> None:
        """`wake` is called from another thread when there is news."""
        self._wake = wake
        network = description.build(config.policy)
        self.block = WeightBlock(trainable_parameters(network))
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._outbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._inbox: Inbox = queue.SimpleQueue()
        self._told: tuple[int, float] | None = None
        fds = (theirs.fileno(), self.block.fd)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hocket.train.learner.process", *map(str, fds)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
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
        self._await("ready", _START_S)

    def put(self, parcel: Parcel) -> None:
        self._outbox.put({"kind": "parcel", "segments": [one.to_plain() for one in parcel]})

    def tell(self, *, floor: int, fraction: float) -> None:
        if self._told is None or self._told[0] != floor or fraction - self._told[1] > 0.001:
            self._told = (floor, fraction)
            self._outbox.put({"kind": "tell", "floor": floor, "fraction": fraction})

    def news(self) -> list[Updated]:
        found = []
        while not self._inbox.empty():
            message = self._inbox.get()
            if (update := self._read(message)) is not None:
                found.append(update)
        return found

    def save(self, counters: Mapping[str, Any]) -> None:
        self._outbox.put({"kind": "save", "counters": dict(counters)})

    def finish(self, counters: Mapping[str, Any]) -> list[Updated]:
        self._outbox.put({"kind": "finish", "counters": dict(counters)})
        return self._await("finished", _START_S)

    def close(self) -> None:
        """Ends the learner: by asking for a moment, then by force. Closing twice is safe."""
        self._outbox.put(None)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._socket.close()
        self.block.close()

    def _await(self, kind: str, timeout_s: float) -> list[Updated]:
        updates: list[Updated] = []
        while True:
            try:
                message = self._inbox.get(timeout=timeout_s)
            except queue.Empty:
                raise HocketError(f"The learner was silent for {timeout_s:g} s.") from None
            if message["kind"] == kind:
                return updates
            if (update := self._read(message)) is not None:
                updates.append(update)

    def _read(self, message: dict[str, Any]) -> Updated | None:
        kind = message.pop("kind")
        if kind == "updated":
            return Updated(**message)
        if kind == "failed":
            raise HocketError(f"The learner failed: {message['error']}")
        return None

    def _send_all(self) -> None:
        with contextlib.suppress(OSError):
            while (message := self._outbox.get()) is not None:
                send(self._socket, message)

    def _receive_all(self) -> None:
        error = "its process ended."
        try:
            while (message := receive(self._socket)) is not None:
                self._inbox.put(message)
                self._wake()
        except (OSError, HocketError) as exc:
            error = str(exc)
        self._inbox.put({"kind": "failed", "error": error})
        self._wake()


def send(stream: socket.socket, message: Mapping[str, Any]) -> None:
    """Sends one message, all of it."""
    frame = msgpack_numpy.pack(message)
    stream.sendall(_LENGTH.pack(len(frame)))
    stream.sendall(frame)


def receive(stream: socket.socket) -> dict[str, Any] | None:
    """Returns the next message; None at the end of the stream."""
    head = _exactly(stream, _LENGTH.size)
    if head is None:
        return None
    frame = _exactly(stream, _LENGTH.unpack(head)[0])
    if frame is None:
        return None
    message: dict[str, Any] = msgpack_numpy.unpack(frame)
    return message


def _exactly(stream: socket.socket, size: int) -> bytes | None:
    buffer = bytearray(size)
    view, got = memoryview(buffer), 0
    while got < size:
        count = stream.recv_into(view[got:])
        if not count:
            return None
        got += count
    return bytes(buffer)


def main(socket_fd: int, block_fd: int) -> None:
    """Serves the other side until it goes away. The process lives no longer than that side."""
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
                learner.queue.put([Segment.from_plain(plain) for plain in message["segments"]])
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
            send(stream, {"kind": "updated", **dataclasses.asdict(updated)})
            inbox.put({"kind": "again"})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
