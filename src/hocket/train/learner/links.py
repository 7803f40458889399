"""How collection reaches the learner: in the same process, or in one of its own.

`InProcess` learns when it is asked whether there is news, on the caller's thread: everything else
stands still, which is what synchronous means. `Remote` ferries messages over a socket; the two
sides share nothing but the block of weights.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from hocket.adapters.policies.openpi import msgpack_numpy
from hocket.errors import HocketError
from hocket.train.collect.segments import Parcel
from hocket.train.config import TrainConfig
from hocket.train.learner.learner import Learner, Updated
from hocket.train.learner.ranks import Ranks
from hocket.train.learner.weights import WeightBlock
from hocket.train.networks.building import Description
from hocket.train.networks.contract import trainable_parameters

_LENGTH = struct.Struct("<Q")
_CLOSE_S = 2.0
_START_S = 120.0


class LearnerLink(Protocol):
    """The collecting side's way to the learner. None of it waits, except `finish`."""

    block: WeightBlock

    def put(self, parcel: Parcel) -> None: ...

    def tell(self, *, floor: int, fraction: float) -> None:
        """The oldest version in flight, and the share of the training that is done."""
        ...

    def news(self) -> list[Updated]: ...

    def save(self, counters: Mapping[str, Any]) -> None:
        """Write a checkpoint, soon, between two updates."""
        ...

    def finish(self, counters: Mapping[str, Any]) -> list[Updated]:
        """End learning with a checkpoint; what had not been told yet."""
        ...

    def close(self) -> None: ...


class InProcess:
    """A learner on the caller's own thread."""

    def __init__(
        self,
        config: TrainConfig,
        description: Description,
        run: Path,
        *,
        ranks: Ranks,
        resume: Path | None,
    ) -> None:
        self.learner = Learner(config, description, ranks, resume=resume)
        self.block = self.learner.block
        self._run = run
        self._ranks = ranks
        self._floor, self._fraction = 0, 0.0

    def put(self, parcel: Parcel) -> None:
        """Part of the link."""
        self.learner.put(parcel)

    def tell(self, *, floor: int, fraction: float) -> None:
        """Part of the link."""
        self._floor, self._fraction = floor, fraction

    def news(self) -> list[Updated]:
        """Part of the link: learns."""
        updated = self.learner.update(self._floor, self._fraction)
        return [] if updated is None else [updated]

    def save(self, counters: Mapping[str, Any]) -> None:
        """Part of the link."""
        if self._ranks.is_first:
            self.learner.save(self._run, counters)

    def finish(self, counters: Mapping[str, Any]) -> list[Updated]:
        """Part of the link."""
        self.save(counters)
        return []

    def close(self) -> None:
        """Part of the link."""
        self.block.close()


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
        self._inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
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

    @property
    def pid(self) -> int:
        """Of the learner."""
        return self._process.pid

    def put(self, parcel: Parcel) -> None:
        """Part of the link."""
        self._outbox.put({"kind": "parcel", "segments": [one.to_plain() for one in parcel]})

    def tell(self, *, floor: int, fraction: float) -> None:
        """Part of the link."""
        if self._told is None or self._told[0] != floor or fraction - self._told[1] > 0.001:
            self._told = (floor, fraction)
            self._outbox.put({"kind": "tell", "floor": floor, "fraction": fraction})

    def news(self) -> list[Updated]:
        """Part of the link."""
        found = []
        while not self._inbox.empty():
            message = self._inbox.get()
            if (update := self._read(message)) is not None:
                found.append(update)
        return found

    def save(self, counters: Mapping[str, Any]) -> None:
        """Part of the link."""
        self._outbox.put({"kind": "save", "counters": dict(counters)})

    def finish(self, counters: Mapping[str, Any]) -> list[Updated]:
        """Part of the link."""
        self._outbox.put({"kind": "finish", "counters": dict(counters)})
        return self._await("finished", _START_S)

    def close(self) -> None:
        """End the learner: by asking for a moment, then by force. Twice is safe."""
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
    """One message, all of it."""
    frame = msgpack_numpy.pack(message)
    stream.sendall(_LENGTH.pack(len(frame)))
    stream.sendall(frame)


def receive(stream: socket.socket) -> dict[str, Any] | None:
    """The next message; None at the end of the stream."""
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


def updated_message(updated: Updated) -> dict[str, Any]:
    """An update as a message."""
    return {"kind": "updated", **dataclasses.asdict(updated)}
