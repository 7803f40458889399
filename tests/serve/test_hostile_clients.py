"""Frames that no client should send, and clients that come and go by the thousand."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn
from websockets.asyncio.client import connect as connect_soon
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from hocket.core.codec import pack, unpack
from hocket.core.data import Observation, Row
from hocket.serve.frames import MeasuredConnection
from support.processes import wait_until
from support.running_server import WAIT_S, Running, ServePolicy
from support.serve_command import command
from support.wire_clients import RowWise, env_spec

GOOD = {"observation/state": np.array([3.0], np.float32), "prompt": "x"}


def echo(observation: Observation, _: Row) -> np.ndarray:
    return np.full((2, 1), observation["observation/state"][0], np.float32)


def make_policy() -> RowWise:
    return RowWise(echo, chunk_length=2, action_size=1)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
names = st.sampled_from(
    ["observation/state", "prompt", "hocket", "arrays", "rows", "op", "id", "session", "env"]
)
arrays = stn.arrays(
    st.sampled_from(["<f4", "<f8", "|u1", "|b1", "<U2"]), stn.array_shapes(min_dims=0, max_side=3)
)
sent_rows = st.tuples(
    st.just(["s", "t", 0, 0]),
    st.just(0),
    st.integers(0, 1),
    st.integers(0, 9),
    st.just("go"),
    st.sampled_from(["a", "b"]),
    st.none() | st.integers(0, 3),
)
frames = (
    st.text(max_size=50)
    | st.binary(max_size=200)
    | plain.map(msgpack.packb)
    | st.dictionaries(names, plain | arrays, max_size=4).map(pack)
    | st.fixed_dictionaries(
        {
            "hocket": st.fixed_dictionaries(
                {
                    "op": st.sampled_from(["infer", "bind", "reset", "leave", "other"]),
                    "id": st.integers(0, 9),
                },
                optional={
                    "client": st.sampled_from(["x", "y"]) | plain,
                    "number": st.integers(0, 3) | plain,
                    "rows": plain | st.lists(sent_rows, min_size=1, max_size=3),
                    "session": plain,
                    "env": plain | st.just(env_spec(1).to_plain()),
                    "shared": plain,
                },
            ),
        },
        optional={"arrays": st.dictionaries(names, plain | arrays)},
    ).map(pack)
)


@pytest.fixture
def server(serve_policy: ServePolicy) -> Running:
    return serve_policy(make_policy(), listening={"max_message_bytes": 1 << 20})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frame=frames)
def test_any_frame_is_answered_or_ends_its_own_connection(
    server: Running, frame: str | bytes
) -> None:
    with connect(f"ws://{server.address}", compression=None, open_timeout=WAIT_S) as client:
        client.recv(timeout=WAIT_S)
        client.send(frame)
        try:
            reply = client.recv(timeout=WAIT_S)
            if isinstance(reply, str):
                with pytest.raises(ConnectionClosed):
                    client.recv(timeout=WAIT_S)
            else:
                assert isinstance(unpack(reply), dict)
        except ConnectionClosed:
            pass
    assert_serves(server)


def assert_serves(server: Running) -> None:
    with connect(f"ws://{server.address}", compression=None, open_timeout=WAIT_S) as client:
        client.recv(timeout=WAIT_S)
        client.send(pack(GOOD))
        reply = client.recv(timeout=WAIT_S)
        assert isinstance(reply, bytes), reply
        assert unpack(reply)["actions"].tolist() == [[3.0], [3.0]]


def test_bytes_that_are_no_websocket_harm_nobody(server: Running) -> None:
    rng = np.random.default_rng(0)
    for size in (0, 1, 40, 5000):
        with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
            raw.sendall(rng.bytes(size))
    upgrade = (
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
            raw.sendall(upgrade)
            assert raw.recv(4096).startswith(b"HTTP/1.1 101")
            raw.sendall(rng.bytes(300))
    assert_serves(server)


@pytest.mark.slow
@pytest.mark.timeout(600)  # on a busy machine; the test measures no time
def test_a_thousand_connections_leak_nothing(server: Running) -> None:
    async def come_and_go(number: int) -> None:
        client = await connect_soon(
            f"ws://{server.address}", compression=None, open_timeout=None, close_timeout=None
        )
        await client.recv()
        if number % 3:
            await client.send(pack(GOOD))
        if number % 3 == 1:
            await client.recv()
        if number % 2:
            client.transport.abort()
        else:
            await client.close()

    async def crowd(count: int) -> None:
        for start in range(0, count, 50):
            await asyncio.gather(*(come_and_go(start + i) for i in range(50)))

    asyncio.run(crowd(100))
    wait_until_empty(server)
    before = footprint(server)
    asyncio.run(crowd(1000))
    wait_until_empty(server)
    after = footprint(server)
    for what, count in before.items():
        assert after[what] <= count + 5, f"{what}: {count} before, {after[what]} after"
    assert_serves(server)


def test_a_message_of_pieces_without_end_is_refused(server: Running) -> None:
    with connect(f"ws://{server.address}", compression=None, open_timeout=WAIT_S) as client:
        client.recv(timeout=WAIT_S)
        with contextlib.suppress(ConnectionClosed):
            client.send(b"" for _ in range(20_000))
        with contextlib.suppress(ConnectionClosed):  # closed while it was still being sent
            assert "pieces" in str(client.recv(timeout=WAIT_S))
    with connect(f"ws://{server.address}", compression=None, open_timeout=WAIT_S) as client:
        client.recv(timeout=WAIT_S)
        frame = pack(GOOD)
        client.send([frame[:3], b"", frame[3:]])
        assert unpack(client.recv(timeout=WAIT_S))["actions"].tolist() == [[3.0], [3.0]]
    assert server.metrics.errors["WireError"] == 1


def hostile_frames() -> dict[str, bytes]:
    """Frames of many megabytes that are small to make and dear to read."""
    size = 16 << 20
    count = size.to_bytes(4, "big")
    return {
        "maps": b"\x81\xa1x\xdd" + count + b"\x80" * size,
        "lists": b"\x81\xa1x" + b"\x91" * size,
        "numbers": b"\x81\xa1x\xdd" + count + b"\x01" * size,
        "text": b"\x81\xa6prompt\xdb" + count + b"x" * size,
        "keys": b"\xdf" + (size // 4).to_bytes(4, "big") + b"\xa2ab\xc0" * (size // 4),
        "bytes": b"\x81\xa1x\xc6" + count + bytes(size),
        "arrays": msgpack.packb({"x": ["12345678" * 8] * (size // 66)}),
    }


def test_frames_that_are_dear_to_read_are_refused_and_cost_little() -> None:
    """The server is a process of its own, whose memory is looked at."""
    with command("--policy", "scripted", "--policy.action-size", "2", "--port", "0") as (
        process,
        place,
    ):
        address = place.removeprefix("ws://")
        ask_good(address)
        before = peak_bytes(process.pid)
        stop, answered = threading.Event(), threading.Semaphore(0)

        def behave() -> None:
            with connect(place, compression=None, open_timeout=WAIT_S) as client:
                client.recv(timeout=WAIT_S)
                while not stop.is_set():
                    client.send(pack(GOOD))
                    assert isinstance(client.recv(timeout=WAIT_S), bytes)
                    answered.release()

        with ThreadPoolExecutor(1) as pool:
            good = pool.submit(behave)
            try:
                for name, frame in hostile_frames().items():
                    with connect(place, compression=None, open_timeout=WAIT_S) as client:
                        client.recv(timeout=WAIT_S)
                        client.send(frame)
                        assert isinstance(client.recv(timeout=WAIT_S), str), name
                    assert answered.acquire(timeout=WAIT_S), name
            finally:
                stop.set()
            good.result(WAIT_S)
        # A few copies of a frame, of two connections where one is slow to go, and not a hundred
        # bytes for each of its own.
        assert peak_bytes(process.pid) - before < 20 * (16 << 20)


def ask_good(address: str) -> None:
    with connect(f"ws://{address}", compression=None, open_timeout=WAIT_S) as client:
        client.recv(timeout=WAIT_S)
        client.send(pack(GOOD))
        assert isinstance(client.recv(timeout=WAIT_S), bytes)


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    (line,) = [
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    ]
    return int(line.split()[1]) << 10


def test_frames_beyond_a_client_s_share_are_refused_while_all_are_too_much(
    serve_policy: ServePolicy,
) -> None:
    gate = threading.Event()

    def wait(observation: Observation, row: Row) -> np.ndarray:
        assert gate.wait(WAIT_S)
        return echo(observation, row)

    policy = RowWise(wait, chunk_length=2, action_size=1)
    server = serve_policy(policy, listening={"max_held_bytes": 1 << 20})
    large = {**GOOD, "more": np.zeros(3 << 18, np.uint8)}
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                connect(f"ws://{server.address}", compression=None, open_timeout=WAIT_S)
            )
            for _ in range(3)
        ]
        for client in clients:
            client.recv(timeout=WAIT_S)
        clients[0].send(pack(large))
        wait_until(lambda: server.server._budget.total >= 3 << 18)
        clients[1].send(pack(large))
        assert "more than a client's share" in str(clients[1].recv(timeout=WAIT_S))
        clients[2].send(pack(GOOD))
        gate.set()
        for client in (clients[0], clients[2]):
            assert isinstance(client.recv(timeout=WAIT_S), bytes)


def masked(size: int, sent: int) -> bytes:
    """The beginning of a frame of `size` bytes, of which `sent` come."""
    return b"\x82\xff" + size.to_bytes(8, "big") + bytes(4 + sent)


def test_messages_that_never_end_are_bounded_over_all_connections(
    serve_policy: ServePolicy,
) -> None:
    limit = 4 << 20
    server = serve_policy(make_policy(), listening={"max_held_bytes": limit})
    budget = server.server._budget
    with ExitStack() as stack:
        good = stack.enter_context(connect(f"ws://{server.address}", compression=None))
        good.recv(timeout=WAIT_S)
        for number in range(20):
            client = stack.enter_context(connect(f"ws://{server.address}", compression=None))
            client.recv(timeout=WAIT_S)
            # Half of them as one frame, half in pieces of which none is the last.
            if number % 2:
                data = [masked(1 << 20, (1 << 20) - 1)]
            else:
                data = [b"\x02\xfe\xff\xff" + bytes(4 + 0xFFFF)]
                data += [b"\x00\xfe\xff\xff" + bytes(4 + 0xFFFF)] * 15
            with contextlib.suppress(OSError):
                client.socket.sendall(b"".join(data))
            good.send(pack(GOOD))
            assert unpack(good.recv(timeout=WAIT_S))["actions"].tolist() == [[3.0], [3.0]]
            assert budget.total <= limit
        wait_until(lambda: server.metrics.errors["held_too_much"] >= 15)
        assert budget.total > limit // 2  # what is within the bound is left alone
        large = {**GOOD, "more": np.zeros(1 << 20, np.uint8)}
        good.send(pack(large))
        assert isinstance(good.recv(timeout=WAIT_S), bytes)
    wait_until(lambda: budget.total == 0)


def test_small_pieces_that_wait_count_for_what_they_cost(serve_policy: ServePolicy) -> None:
    gate = threading.Event()

    def wait(observation: Observation, row: Row) -> np.ndarray:
        assert gate.wait(WAIT_S)
        return echo(observation, row)

    policy = RowWise(wait, chunk_length=2, action_size=1)
    # A connection is read no further once more than 16 pieces wait, however many came with them.
    server = serve_policy(policy, listening={"max_held_bytes": 4 << 10})
    with connect(f"ws://{server.address}", compression=None, open_timeout=WAIT_S) as client:
        client.recv(timeout=WAIT_S)
        client.send(pack(GOOD))
        wait_until(lambda: True in server.server._connections.values())
        assert server.metrics.errors["held_too_much"] == 0
        with contextlib.suppress(OSError):
            client.socket.sendall(b"\x82\x80\0\0\0\0" * 17)
        wait_until(lambda: server.metrics.errors["held_too_much"] == 1)
        gate.set()
    wait_until_empty(server)


def test_nothing_keeps_a_request_that_was_answered(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = threading.Event()
    take = MeasuredConnection.take

    class Frame(bytes):
        def __del__(self) -> None:
            gone.set()

    async def take_one(connection: MeasuredConnection) -> bytes:
        return Frame(await take(connection))

    monkeypatch.setattr(MeasuredConnection, "take", take_one)
    budget = server.server._budget
    with connect(f"ws://{server.address}", compression=None, open_timeout=WAIT_S) as client:
        client.recv(timeout=WAIT_S)
        client.send(pack({**GOOD, "more": np.zeros(3 << 18, np.uint8)}))
        client.recv(timeout=WAIT_S)
        wait_until(lambda: budget.total < 1 << 12)
        assert gone.wait(WAIT_S)


def test_strangers_that_never_say_hello_keep_nobody_out(serve_policy: ServePolicy) -> None:
    server = serve_policy(make_policy(), listening={"max_connections": 8})
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), WAIT_S))
        assert_serves(server)
        wait_until(lambda: server.metrics.errors["held_too_much"] > 0)
        assert_serves(server)


def wait_until_empty(server: Running) -> None:
    wait_until(lambda: server.metrics.connections == 0)


def footprint(server: Running) -> dict[str, int]:
    async def tasks() -> int:
        return len(asyncio.all_tasks())

    gc.collect()
    counts: dict[str, Any] = {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "tasks": asyncio.run_coroutine_threadsafe(tasks(), server.loop).result(WAIT_S),
    }
    kinds = ("_Pace", "Caller", "ServerConnection", "_Waiting")
    for kind in kinds:
        counts[kind] = sum(type(found).__name__ == kind for found in gc.get_objects())
    return counts
