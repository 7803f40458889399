"""One endpoint in front of several servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from hocket.adapters.policies.openpi.policy import OpenPI, OpenPIConfig
from hocket.adapters.policies.vla_eval_wire import HELLO, pack_message
from hocket.core.codec import pack, unpack
from hocket.core.data import Actions, Batch
from hocket.core.specs import ArraySpec, PolicySpec
from hocket.serve.gateway import Gateway
from hocket.serve.metrics import Metrics
from support.processes import wait_until
from support.running_server import WAIT_S, Running, ServePolicy, running
from support.stock_openpi import StockServer


class OpenGateway:
    """Starts gateways that end with the test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __call__(self, *addresses: str, **settings: Any) -> Running:
        settings = {"ready_timeout_s": WAIT_S, "timeout_s": WAIT_S, **settings}
        policy = OpenPI(",".join(addresses), OpenPIConfig(**settings))
        metrics = Metrics()
        gateway = Gateway(policy.servers(), metrics, max_queue=64)
        return self._stack.enter_context(running(gateway, metrics))


@pytest.fixture
def open_gateway() -> Iterator[OpenGateway]:
    with ExitStack() as stack:
        yield OpenGateway(stack)


def echo(request: dict[str, Any]) -> dict[str, Any]:
    return {"action": np.full((2, 2), request["nested"]["x"]), "note": "kept"}


def ask_once(gateway: Running, value: float) -> Any:
    with connect(f"ws://{gateway.address}", compression=None) as client:
        client.recv(timeout=WAIT_S)
        client.send(pack({"nested": {"x": value}, "words": "any"}))
        reply = client.recv(timeout=WAIT_S)
        return reply if isinstance(reply, str) else unpack(reply)


def test_frames_and_metadata_pass_as_they_are(open_gateway: OpenGateway) -> None:
    with StockServer(echo, metadata={"robot": "aloha"}) as server:
        gateway = open_gateway(server.address)
        with connect(f"ws://{gateway.address}") as client:
            assert unpack(client.recv(timeout=WAIT_S)) == {"robot": "aloha"}
        reply = ask_once(gateway, 3)
        assert reply["note"] == "kept"
        assert reply["action"].tolist() == [[3, 3], [3, 3]]
        assert server.requests[-1]["words"] == "any"


def test_vla_eval_s_clients_are_told_that_a_gateway_is_not_for_them(
    open_gateway: OpenGateway,
) -> None:
    with StockServer(echo) as server:
        gateway = open_gateway(server.address)
        with connect(f"ws://{gateway.address}/vla-eval") as client:
            client.send(pack_message(HELLO, {}, 1))
            assert "none of vla-eval's" in str(client.recv(timeout=WAIT_S))
        assert server.requests == []


def test_clients_are_spread_over_the_servers(open_gateway: OpenGateway) -> None:
    both = threading.Barrier(2)

    def together(request: dict[str, Any]) -> dict[str, Any]:
        both.wait(WAIT_S)
        return echo(request)

    with StockServer(together) as one, StockServer(together) as two, ThreadPoolExecutor() as pool:
        gateway = open_gateway(one.address, two.address)
        replies = list(pool.map(lambda value: ask_once(gateway, value), (1, 2)))
        assert [reply["action"][0, 0] for reply in replies] == [1, 2]


def test_request_moves_when_its_server_dies(open_gateway: OpenGateway) -> None:
    asked = threading.Event()
    servers: list[StockServer] = []

    def dies(_: dict[str, Any]) -> dict[str, Any]:
        asked.set()
        assert servers[0].is_dead.wait(WAIT_S)
        return {"action": np.full((2, 2), -1.0)}

    with StockServer(dies) as one, StockServer(echo) as two, ThreadPoolExecutor() as pool:
        servers += [one, two]
        gateway = open_gateway(one.address, two.address)
        reply = pool.submit(ask_once, gateway, 7)
        assert asked.wait(WAIT_S)
        one.stop()
        assert reply.result(WAIT_S)["action"][0, 0] == 7
        for value in range(5):
            assert ask_once(gateway, value)["action"][0, 0] == value


def test_error_frame_passes_to_its_client_alone(open_gateway: OpenGateway) -> None:
    with StockServer(echo) as server:
        gateway = open_gateway(server.address)
        with connect(f"ws://{gateway.address}", compression=None) as client:
            client.recv(timeout=WAIT_S)
            client.send(pack({"wrong": 1}))
            assert "KeyError" in str(client.recv(timeout=WAIT_S))
            with pytest.raises(ConnectionClosed):
                client.recv(timeout=WAIT_S)
        assert ask_once(gateway, 5)["action"][0, 0] == 5


def test_dead_servers_are_told_as_such(open_gateway: OpenGateway) -> None:
    with StockServer(echo) as server:
        gateway = open_gateway(server.address, ready_timeout_s=1.0)
    assert "PolicyUnavailableError" in ask_once(gateway, 1)


def test_garbage_reaches_no_server(open_gateway: OpenGateway) -> None:
    with StockServer(echo) as server:
        gateway = open_gateway(server.address)
        with connect(f"ws://{gateway.address}") as client:
            client.recv(timeout=WAIT_S)
            client.send(b"\xc1garbage")
            assert "cannot be read" in str(client.recv(timeout=WAIT_S))
        assert server.requests == []


class Batching:
    """Waits until several rows are there, which only a wide gateway can bring about."""

    spec = PolicySpec(
        chunk_length=1,
        action_size=1,
        max_batch=8,
        inputs={"nested/x": ArraySpec(shape=(), dtype="<f8")},
    )

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.gate = threading.Event()
        self.entered = threading.Event()

    def infer(self, batch: Batch) -> Actions:
        self.sizes.append(batch.size)
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        return Actions(batch.arrays["nested/x"][:, None, None].astype(np.float32))

    def close(self) -> None:
        """Nothing is held."""


def test_server_that_batches_gets_batches_through_a_gateway(
    open_gateway: OpenGateway, serve_policy: ServePolicy
) -> None:
    policy = Batching()
    server = serve_policy(policy)
    gateway = open_gateway(server.address)
    with ThreadPoolExecutor(8) as pool:
        replies = [pool.submit(ask_once, gateway, float(i)) for i in range(7)]
        assert policy.entered.wait(WAIT_S)
        wait_until(lambda: server.metrics.queue_depth >= 7 - sum(policy.sizes))
        policy.gate.set()
        for i, reply in enumerate(replies):
            assert reply.result(WAIT_S)["actions"].ravel().tolist() == [i]
    assert max(policy.sizes) > 1


def test_hocket_s_own_client_may_stand_behind_a_gateway(
    open_gateway: OpenGateway, serve_policy: ServePolicy
) -> None:
    policy = Batching()
    policy.gate.set()
    gateway = open_gateway(serve_policy(policy).address, serve_policy(policy).address)
    client = OpenPI(gateway.address, OpenPIConfig(ready_timeout_s=WAIT_S))
    try:
        assert client.spec.concurrency == 2
        assert client.spec.max_batch == 8
    finally:
        client.close()
