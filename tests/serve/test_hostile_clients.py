"""Frames that no client should send, and clients that come and go by the thousand."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
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

from hocket.adapters.policies.openpi.msgpack_numpy import pack, unpack
from hocket.core.data import Observation, Row
from hocket.testing import ScriptedPolicy
from support.processes import wait_until
from support.running_server import WAIT_S, Running, ServePolicy

GOOD = {"observation/state": np.array([3.0], np.float32), "prompt": "x"}


def echo(observation: Observation, _: Row) -> np.ndarray:
    return np.full((2, 1), observation["observation/state"][0], np.float32)


def make_policy() -> ScriptedPolicy:
    return ScriptedPolicy.of(echo, chunk_length=2, action_size=1)


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
operations = st.sampled_from(["infer", "bind", "reset", "other"])
frames = (
    st.text(max_size=50)
    | st.binary(max_size=200)
    | plain.map(msgpack.packb)
    | st.dictionaries(names, plain | arrays, max_size=4).map(pack)
    | st.fixed_dictionaries(
        {
            "hocket": st.fixed_dictionaries(
                {
                    "op": st.sampled_from(["infer", "bind", "reset", "other"]),
                    "id": st.integers(0, 9),
                },
                optional={"rows": plain, "session": plain, "env": plain},
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
