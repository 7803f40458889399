"""Several clients of one server: what a policy keeps for one is nothing to another."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import connect as dial

import hocket
from hocket.adapters.policies.openpi.policy import OpenPI, OpenPIConfig
from hocket.adapters.policies.openpi.protocol import batch_rows
from hocket.core.codec import pack, unpack
from hocket.core.data import Row
from hocket.core.specs import EnvSpec
from hocket.errors import PolicyError
from hocket.serve.clients import Client
from hocket.serve.gateway import Gateway
from hocket.serve.metrics import Metrics
from hocket.testing import ScriptedPolicy
from support.processes import wait_until
from support.running_server import WAIT_S, Running, ServePolicy, running
from support.stock_openpi import StockServer
from support.wire_clients import Clipping, Connect, Stateful, env_spec, make_batch, make_row


@pytest.fixture
def behind_gateway() -> Iterator[Any]:
    """`behind_gateway(*servers)`: a gateway in front of them."""
    with ExitStack() as stack:

        def start(*addresses: str) -> Running:
            settings = OpenPIConfig(ready_timeout_s=WAIT_S, timeout_s=WAIT_S)
            metrics = Metrics()
            servers = OpenPI(",".join(addresses), settings).servers()
            return stack.enter_context(running(Gateway(servers, metrics, max_queue=64), metrics))

        yield start


def counts(client: OpenPI, chunk: int) -> float:
    return float(client.infer(make_batch(1, chunk=chunk)).values[0, 0, 0])


def assert_sessions_apart(one: OpenPI, other: OpenPI) -> None:
    for client in (one, other):
        client.begin_session(make_row(1))
        assert counts(client, 0) == 1
    for chunk in (1, 2, 3):
        for client in (one, other):
            assert counts(client, chunk) == chunk + 1


def test_equal_sessions_of_two_clients_do_not_meet(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    server = serve_policy(Stateful())
    assert_sessions_apart(connect(server), connect(server))


def test_equal_sessions_of_two_clients_do_not_meet_behind_a_gateway(
    serve_policy: ServePolicy, connect: Connect, behind_gateway: Any
) -> None:
    policies = [Stateful(), Stateful()]
    gateway = behind_gateway(*(serve_policy(policy).address for policy in policies))
    assert_sessions_apart(connect(gateway), connect(gateway))


def test_two_runs_that_ask_one_policy_name_their_attempts_differently() -> None:
    policies = [Witness(), Witness()]
    for policy in policies:
        hocket.evaluate(env="toy:count", policy=policy, episodes=2, lanes=1, max_steps=20)
    one, other = policies
    assert one.trials == other.trials
    assert len(one.trials) == 2
    assert one.sessions
    assert not one.sessions & other.sessions


class Witness(ScriptedPolicy):
    """Remembers the sessions that began."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: set[str] = set()
        self.trials: set[str] = set()

    def begin_session(self, row: Row) -> None:
        self.sessions.add(row.session)
        self.trials.add(row.trial.id)

    def end_session(self, session: str) -> None:
        """Names are not given twice."""


def alone(policy: Any, spec: EnvSpec, serve_policy: ServePolicy, connect: Connect) -> list[Any]:
    client = connect(serve_policy(policy))
    client.bind(spec)
    return [client.infer(make_batch(value, env=spec)).values for value in range(4)]


@pytest.mark.parametrize("make", [ScriptedPolicy, Clipping])
@pytest.mark.parametrize("wide", [env_spec(2, 8.0), env_spec(3, 8.0)], ids=["bounds", "size"])
def test_envs_of_two_clients_with_a_task_of_one_name_do_not_meet(
    make: Any, wide: EnvSpec, serve_policy: ServePolicy, connect: Connect
) -> None:
    specs = (env_spec(2, 0.5), wide)
    expected = [alone(make(), spec, serve_policy, connect) for spec in specs]
    server = serve_policy(make())
    clients = [connect(server) for _ in specs]
    for client, spec in zip(clients, specs, strict=True):
        client.bind(spec)
    for value in range(4):
        for client, spec, answers in zip(clients, specs, expected, strict=True):
            found = client.infer(make_batch(value, env=spec)).values
            assert np.array_equal(found, answers[value])


def test_rows_of_two_envs_share_no_batch_where_their_actions_differ_in_size(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    client = connect(serve_policy(Clipping()))
    small, large = env_spec(2, 1.0), env_spec(3, 2.0)
    for spec in (small, large):
        client.bind(spec)
    mixed = make_batch(1, 2)
    rows = (make_row(1, env=small), make_row(2, env=large))
    with pytest.raises(PolicyError, match="different shapes"):
        client.infer(hocket.Batch(arrays=mixed.arrays, rows=rows))
    assert client.infer(make_batch(1, env=large)).values.shape == (1, 1, 3)


def test_an_env_that_the_policy_refused_is_not_known(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    class Refusing(Clipping):
        def bind(self, spec: EnvSpec) -> None:
            raise hocket.HocketError("not that one")

    client, spec = connect(serve_policy(Refusing())), env_spec(2)
    with pytest.raises(PolicyError, match="not that one"):
        client.bind(spec)
    with pytest.raises(PolicyError, match="told of no env"):
        client.infer(make_batch(1, env=spec))


def test_what_is_kept_for_a_client_ends_when_it_is_gone(
    serve_policy: ServePolicy, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hocket.serve.clients.LEFT_S", 0.0)
    policy = Stateful()
    server = serve_policy(policy)
    staying, gone = connect(server), connect(server)
    for client in (staying, gone):
        client.bind(env_spec(1))
        client.begin_session(make_row(1))
        assert counts(client, 0) == 1
    gone.close()
    assert policy.ended.acquire(timeout=WAIT_S)
    assert counts(staying, 1) == 2
    assert list(policy.live.values()) == [2]
    gc.collect()
    assert sum(type(found) is Client for found in gc.get_objects()) == 1


def test_a_gateway_tells_its_servers_that_a_client_is_gone(
    serve_policy: ServePolicy,
    connect: Connect,
    behind_gateway: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = Stateful()
    gateway = behind_gateway(serve_policy(policy).address)
    staying, gone = connect(gateway), connect(gateway)
    for client in (staying, gone):
        client.begin_session(make_row(1))
        assert counts(client, 0) == 1
    monkeypatch.setattr("hocket.serve.clients.LEFT_S", 0.0)
    gone.close()
    assert policy.ended.acquire(timeout=WAIT_S)
    assert counts(staying, 1) == 2


def test_a_client_that_comes_back_soon_finds_its_sessions(serve_policy: ServePolicy) -> None:
    server = serve_policy(Stateful())
    for chunk in range(3):
        reply = ask_and_leave(server, chunk)
        assert reply["actions"].ravel().tolist() == [chunk + 1]


def ask_and_leave(server: Running, chunk: int) -> Any:
    """The reply to a row of the client `x`, over a connection of its own."""
    batch = make_batch(1, chunk=chunk)
    asked = {"op": "infer", "id": chunk, "client": "x", "rows": batch_rows(batch, {})}
    with dial(f"ws://{server.address}", compression=None, open_timeout=WAIT_S) as client:
        client.recv(timeout=WAIT_S)
        client.send(pack({"hocket": asked, "arrays": batch.arrays}))
        reply = unpack(client.recv(timeout=WAIT_S))
    wait_until(lambda: server.metrics.connections == 0)
    return reply


def test_an_attempt_that_the_server_does_not_know_is_lost_and_not_begun_anew(
    serve_policy: ServePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hocket.serve.clients.LEFT_S", 0.0)
    policy = Stateful()
    server = serve_policy(policy)
    assert "actions" in ask_and_leave(server, 0)
    assert policy.ended.acquire(timeout=WAIT_S)
    assert ask_and_leave(server, 1)["hocket"]["kind"] == "SessionLostError"
    assert policy.live == {}


BINDS = [
    {"op": "bind", "id": 1, "client": "x", "number": 0, "env": env_spec(2).to_plain()},
    {"op": "bind", "id": 1, "env": 3},
    {"op": "bind", "id": 1, "client": "x", "number": 0, "env": {"task": {}}},
]


@pytest.mark.parametrize("told", BINDS, ids=["an env", "no env", "half an env"])
def test_a_gateway_over_stock_servers_outlives_whoever_tells_it_of_envs(
    told: Any, behind_gateway: Any
) -> None:
    def echo(request: dict[str, Any]) -> dict[str, Any]:
        return {"actions": np.full((2, 2), request["x"])}

    def ask(request: Any) -> Any:
        with dial(f"ws://{gateway.address}", compression=None, open_timeout=WAIT_S) as client:
            client.recv(timeout=WAIT_S)
            client.send(pack(request))
            reply = client.recv(timeout=WAIT_S)
            return reply if isinstance(reply, str) else unpack(reply)

    with StockServer(echo) as server:
        gateway = behind_gateway(server.address)
        assert "KeyError" in ask({"hocket": told})
        for value in range(4):
            assert ask({"x": value})["actions"][0, 0] == value


@pytest.mark.parametrize("told", BINDS[1:], ids=["no env", "half an env"])
def test_a_gateway_passes_nothing_on_that_describes_no_env(
    told: Any, behind_gateway: Any, serve_policy: ServePolicy, connect: Connect
) -> None:
    gateway = behind_gateway(serve_policy(ScriptedPolicy()).address)
    with dial(f"ws://{gateway.address}", compression=None, open_timeout=WAIT_S) as client:
        client.recv(timeout=WAIT_S)
        client.send(pack({"hocket": told}))
        assert "WireError" in str(client.recv(timeout=WAIT_S))
    client, spec = connect(gateway), env_spec(2)
    client.bind(spec)
    assert client.infer(make_batch(1, env=spec)).values.shape == (1, 16, 2)
