"""Arrays that do not travel: memory files, and what else may come over their socket."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import connect as dial

from hocket.adapters.policies.openpi.protocol import SharedArraysError, batch_rows
from hocket.adapters.policies.openpi.shared import SharedArrays, SharedFile, this_machine
from hocket.core.codec import pack, unpack
from hocket.core.data import Actions, Batch
from hocket.core.specs import PolicySpec
from hocket.serve import shared
from hocket.serve.shared import SharedReader
from support.running_server import WAIT_S, Running, ServePolicy
from support.wire_clients import Connect, make_batch

pytestmark = pytest.mark.skipif(
    this_machine() is None, reason="memory cannot be shared on this system"
)


def large_batch(*values: int) -> Batch:
    batch = make_batch(*values)
    images = np.stack([np.full((256, 256, 3), value, np.uint8) for value in values])
    return Batch(arrays={**batch.arrays, "observation/image": images}, rows=batch.rows)


class Looking:
    """Answers with what it sees in the image."""

    spec = PolicySpec(chunk_length=4, action_size=2, max_batch=16, concurrency=2)

    def infer(self, batch: Batch) -> Actions:
        means = batch.arrays["observation/image"].reshape(batch.size, -1).mean(axis=1)
        return Actions(np.broadcast_to(means[:, None, None], (batch.size, 4, 2)).copy())

    def close(self) -> None:
        """Nothing is held."""


def test_large_arrays_do_not_travel_on_one_machine(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    server = serve_policy(Looking(), listening={"max_message_bytes": 10_000})
    client = connect(server)
    with ThreadPoolExecutor(4) as pool:
        for i, answer in enumerate(
            pool.map(lambda i: client.infer(large_batch(i, i + 100)), range(40))
        ):
            assert answer.values[:, 0, 0].tolist() == [i, i + 100]


def test_batches_that_grow_do_not_travel_either(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    client = connect(serve_policy(Looking(), listening={"max_message_bytes": 10_000}))
    for size in (1, 3, 9, 2, 16):
        answer = client.infer(large_batch(*range(size)))
        assert answer.values[:, 0, 0].tolist() == [*range(size)]


def test_memory_is_shared_with_a_server_that_was_started_again(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    first = serve_policy(Looking())
    client, port = connect(first), first.port
    assert client.infer(large_batch(3)).values[0, 0, 0] == 3
    first.stop()
    serve_policy(Looking(), listening={"port": port, "max_message_bytes": 1 << 20})
    assert client.infer(large_batch(4)).values[0, 0, 0] == 4  # travels: the old memory is unknown
    assert client.infer(large_batch(*range(16))).values[:, 0, 0].tolist() == [*range(16)]


def test_arrays_travel_where_memory_cannot_be_shared(
    serve_policy: ServePolicy, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise SharedArraysError("not permitted")

    monkeypatch.setattr(SharedReader, "read", refuse)
    client = connect(serve_policy(Looking()))
    for value in (3, 4):
        assert client.infer(large_batch(value)).values[0, 0, 0] == value


def test_arrays_travel_where_the_server_takes_no_more_files(
    serve_policy: ServePolicy, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "MAX_FILES", 1)
    server = serve_policy(Looking())
    for value in (3, 4, 5):
        assert connect(server).infer(large_batch(value)).values[0, 0, 0] == value


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Reading:
    """A reader on a loop of the test's own, and a client's end of its socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_bytes: int = 1 << 20) -> None:
        self.reader = SharedReader(max_bytes)
        self._loop = loop
        self.name = loop.run_until_complete(self._listen())

    async def _listen(self) -> str:
        name = self.reader.listen()
        assert name is not None
        return name

    def run(self, work: Any) -> Any:
        """What `work` returns, which talks to the reader from a thread."""
        return self._loop.run_until_complete(self._loop.run_in_executor(None, work))

    def close(self) -> None:
        async def close() -> None:
            self.reader.close()

        self._loop.run_until_complete(close())

    def hand(self, descriptor: int, number: int) -> bytes:
        """What the reader says to a descriptor; nothing where it hangs up."""

        def send() -> bytes:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
                channel.settimeout(WAIT_S)
                channel.connect(f"\0{self.name}")
                channel.send(b"x")
                socket.send_fds(channel, [struct.pack("<Q", number)], [descriptor])
                return channel.recv(1)

        said: bytes = self.run(send)
        return said


def sealed(size: int = 4096, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def test_only_memory_that_cannot_shrink_is_mapped(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    reading = Reading(loop)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "file").write_bytes(b"s" * 4096)
    ends = os.pipe()
    bad = {
        "a fifo that nobody writes to": os.open(fifo, os.O_RDONLY | os.O_NONBLOCK),
        "a pipe": os.dup(ends[0]),
        "a file": os.open(tmp_path / "file", os.O_RDONLY),
        "a device": os.open("/dev/zero", os.O_RDONLY),
        "a socket": socket.socket().detach(),
        "memory that may shrink": sealed(seals=fcntl.F_SEAL_GROW),
        "too much memory": sealed(1 << 21),
        "none": sealed(0),
    }
    for number, (what, descriptor) in enumerate(bad.items()):
        assert reading.hand(descriptor, number) == b"\0", what
        os.close(descriptor)
        with pytest.raises(SharedArraysError):
            reading.reader.read("x", {"file": number, "layout": [["x", [1], "|u1", 0]]})
    good = sealed()
    assert reading.hand(good, 77) == b"\1"
    for descriptor in (good, *ends):
        os.close(descriptor)
    reading.close()


def test_descriptions_that_name_no_memory_of_their_client_are_refused(
    loop: asyncio.AbstractEventLoop,
) -> None:
    reading = Reading(loop)
    arrays: SharedArrays = reading.run(lambda: SharedArrays(reading.name, "x"))
    written: SharedFile = reading.run(lambda: arrays.write({"x": np.arange(4.0)}))
    good = written.description
    assert reading.reader.read("x", good)["x"].tolist() == [0, 1, 2, 3]
    with pytest.raises(SharedArraysError):
        reading.reader.read("another client", good)
    bad: list[Any] = [
        {**good, "file": written.number + 1},
        {**good, "file": [written.number, 4096]},
        {**good, "file": "/proc/self/fd/0"},
        {"path": "/proc/self/fd/0", "layout": good["layout"]},
        {**good, "layout": [["x", [1 << 20], "<f8", 0]]},
        {**good, "layout": [["x", [4], "|O", 0]]},
        {**good, "layout": [["x", [4], "<f8", -8]]},
        {**good, "layout": [[f"x{i}", [4096], "|u1", 0] for i in range(257)]},
        {**good, "layout": 3},
        None,
    ]
    for description in bad:
        with pytest.raises(SharedArraysError):
            reading.reader.read("x", description)
    arrays.release(written)
    arrays.close()
    reading.run(lambda: None)
    reading.close()
    with pytest.raises(SharedArraysError):
        reading.reader.read("x", good)  # the client is gone, and its memory with it


def test_whatever_is_said_on_the_socket_harms_nobody(loop: asyncio.AbstractEventLoop) -> None:
    reading = Reading(loop)

    def babble(*messages: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.settimeout(WAIT_S)
            channel.connect(f"\0{reading.name}")
            try:
                for message in messages:
                    channel.send(message)
                if len(messages) > 1:
                    assert channel.recv(1) == b""
            except ConnectionError:
                pass

    for messages in ((), (b"x",), (b"\xff\xfe", b"y"), (b"x", b"y"), (b"x", bytes(16))):
        reading.run(lambda messages=messages: babble(*messages))
    descriptor = sealed()
    assert reading.hand(descriptor, 1) == b"\1"
    os.close(descriptor)
    reading.close()


def test_a_frame_that_names_a_fifo_is_answered(
    serve_policy: ServePolicy, connect: Connect, tmp_path: Path
) -> None:
    server = serve_policy(Looking())
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    descriptor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    for path in (str(fifo), f"/proc/{os.getpid()}/fd/{descriptor}"):
        for file in ([1, 4096], 1, path):
            reply = ask_shared(server, {"path": path, "file": file, "layout": []})
            assert reply["hocket"]["kind"] == "SharedArraysError"
    os.close(descriptor)
    assert connect(server).infer(large_batch(3)).values[0, 0, 0] == 3


def ask_shared(server: Running, description: Any) -> Any:
    rows = batch_rows(make_batch(1), {})
    asked = {"op": "infer", "id": 1, "client": "x", "rows": rows, "shared": description}
    with dial(f"ws://{server.address}", compression=None, open_timeout=WAIT_S) as client:
        client.recv(timeout=WAIT_S)
        client.send(pack({"hocket": asked}))
        return unpack(client.recv(timeout=WAIT_S))
