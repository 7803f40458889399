"""hocket's client against hocket's server: batches, seeds, sessions, versions over one wire."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import connect as websocket

from hocket.adapters.policies.openpi.policy import OpenPI, OpenPIConfig
from hocket.adapters.policies.openpi.protocol import EXTENSION, batch_rows
from hocket.core.codec import pack, unpack
from hocket.core.data import Actions, Batch, Row
from hocket.core.specs import ArraySpec, PolicySpec
from hocket.errors import ChunkShapeError, ObservationError, PolicyError, SessionLostError
from hocket.serve.gateway import Gateway
from hocket.serve.metrics import Metrics
from hocket.testing import ScriptedPolicy
from support.running_server import WAIT_S, ServePolicy, running
from support.wire_clients import Connect, RowWise, Stateful, env_spec, make_batch, make_row


class Keeper:
    """Remembers what it was asked, and answers with extras and a version."""

    spec = PolicySpec(
        chunk_length=4,
        action_size=2,
        max_batch=16,
        concurrency=2,
        batch_invariant=True,
        control_rate=15.0,
        cameras=("observation/image",),
        replan=3,
    )

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def infer(self, batch: Batch) -> Actions:
        self.batches.append(batch)
        state = batch.arrays["observation/state"][:, 0]
        if (state == 13).any():
            raise ValueError("unlucky")
        values = np.broadcast_to(state[:, None, None], (len(state), 4, 2)).copy()
        return Actions(values, {"logprob": -state}, version=11)

    def close(self) -> None:
        """Nothing is held."""


def test_spec_travels_whole(serve_policy: ServePolicy, connect: Connect) -> None:
    assert connect(serve_policy(Keeper())).spec == Keeper.spec
    wanted = {"observation/state": ArraySpec(shape=(-1, 3), dtype="<f4")}
    scripted = ScriptedPolicy()
    scripted.spec = PolicySpec(chunk_length=2, inputs=wanted, cameras=None)
    assert connect(serve_policy(scripted)).spec == scripted.spec


def test_history_travels_with_each_row(serve_policy: ServePolicy, connect: Connect) -> None:
    class Differing(Keeper):
        """Answers with the difference of the last two states."""

        spec = PolicySpec(
            chunk_length=4,
            action_size=2,
            history=2,
            inputs={"observation/state": ArraySpec(shape=(1,), dtype="<f4")},
        )

        def infer(self, batch: Batch) -> Actions:
            state = batch.arrays["observation/state"]
            change = (state[:, 1] - state[:, 0])[:, :, None]
            return Actions(np.broadcast_to(change, (len(state), 4, 2)).copy())

    client = connect(serve_policy(Differing(), warm_up=True))
    states = np.array([[[1.0], [3.0]], [[2.0], [9.0]]], np.float32)
    batch = Batch(arrays={"observation/state": states}, rows=make_batch(1, 2).rows)
    assert client.infer(batch).values[:, 0, 0].tolist() == [2, 7]


def test_batch_is_one_request_with_rows_extras_and_version(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    policy = Keeper()
    server = serve_policy(policy)
    client = connect(server)
    answer = client.infer(make_batch(1, 2, 3, pad=1))
    assert answer.values.shape == (4, 4, 2)
    assert answer.values[:, 0, 0].tolist() == [1, 2, 3, 3]
    assert answer.extras["logprob"].tolist() == [-1, -2, -3, -3]
    assert answer.version == 11
    assert server.address in str(answer.source)
    assert server.metrics.requests == 1
    asked = [row for batch in policy.batches for row in batch.rows]
    for row, value in zip(sorted(asked, key=lambda row: row.trial.seed), (1, 2, 3), strict=True):
        assert replace(row, session=f"session {value}") == make_row(value)
        assert row.session.endswith(f"/session {value}")


def test_row_that_fails_is_told_and_the_connection_stays(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    server = serve_policy(Keeper())
    client = connect(server)
    with pytest.raises(PolicyError, match="unlucky"):
        client.infer(make_batch(13))
    assert client.infer(make_batch(4)).values[0, 0, 0] == 4
    assert server.metrics.connections_total == 1


def test_request_over_the_queue_s_limit_is_refused_in_words(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    client = connect(serve_policy(Keeper(), max_queue=2))
    with pytest.raises(PolicyError, match="limit is 2"):
        client.infer(make_batch(1, 2, 3))
    assert client.infer(make_batch(1, 2)).values.shape == (2, 4, 2)


def test_answers_equal_those_in_this_process(serve_policy: ServePolicy, connect: Connect) -> None:
    spec = env_spec(3)
    here, there = ScriptedPolicy(), ScriptedPolicy()
    client = connect(serve_policy(there))
    client.bind(spec)
    batch = make_batch(1, 2, 3, env=spec)
    assert np.array_equal(client.infer(batch).values, np.asarray(here.infer(batch)))


def test_env_is_told_again_to_a_server_that_was_restarted(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    first = serve_policy(ScriptedPolicy())
    port = first.port
    client, spec = connect(first), env_spec(3)
    client.bind(spec)
    before = client.infer(make_batch(5, env=spec)).values
    first.stop()
    serve_policy(ScriptedPolicy(), listening={"port": port})
    assert np.array_equal(client.infer(make_batch(5, env=spec)).values, before)


def test_server_that_is_down_hears_of_envs_when_it_is_back(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    living, dead = serve_policy(ScriptedPolicy()), serve_policy(ScriptedPolicy())
    client, port, spec = connect(living, dead), dead.port, env_spec(3)
    dead.stop()
    client.bind(spec)
    before = client.infer(make_batch(5, env=spec)).values
    serve_policy(ScriptedPolicy(), listening={"port": port})
    living.stop()
    assert np.array_equal(client.infer(make_batch(5, env=spec)).values, before)


def test_mapping_stands_before_an_extended_server(
    serve_policy: ServePolicy, connect: Connect, tmp_path: Any
) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(
        "request: {observation/state: {from: observation/state, range: [[0, 1], [0, 10]]},\n"
        "          x/image: {from: observation/image, resize: [4, 4]}}\n"
        "actions: {clip: [0, 25]}\n"
    )
    policy = Keeper()
    client = connect(serve_policy(policy), mapping=str(file))
    assert client.infer(make_batch(2, 3)).values[:, 0, 0].tolist() == [20, 25]
    assert policy.batches[0].arrays["x/image"].shape[1:] == (4, 4, 3)


def test_sessions_begin_count_and_end(serve_policy: ServePolicy, connect: Connect) -> None:
    policy = Stateful()
    client = connect(serve_policy(policy))
    for value in (1, 2):
        client.begin_session(make_row(value))
    assert client.infer(make_batch(1, 2)).values.ravel().tolist() == [1, 1]
    assert client.infer(make_batch(1, chunk=1)).values.ravel().tolist() == [2]
    client.end_session("session 1")
    assert policy.ended.acquire(timeout=WAIT_S)
    assert [name.partition("/")[2] for name in policy.live] == ["session 2"]


@pytest.mark.parametrize("through_gateway", [False, True])
def test_a_request_that_came_twice_is_answered_once(
    serve_policy: ServePolicy, connect: Connect, through_gateway: bool
) -> None:
    with ExitStack() as stack:
        server = serve_policy(Stateful())
        if through_gateway:
            servers = OpenPI(server.address, OpenPIConfig(timeout_s=WAIT_S)).servers()
            metrics = Metrics()
            gateway = Gateway(servers, metrics, max_queue=64)
            server = stack.enter_context(running(gateway, metrics))
        wire = stack.enter_context(websocket(f"ws://{server.address}", max_size=None))
        wire.recv()
        for chunk in range(4):
            batch = make_batch(1, chunk=chunk)
            asked = {"op": "infer", "id": chunk, "client": "mine", "rows": batch_rows(batch, {})}
            frame = pack({EXTENSION: asked, "arrays": batch.arrays})
            wire.send(frame)
            wire.send(frame)
            reply = unpack(wire.recv())
            assert (reply[EXTENSION]["id"], reply["actions"].item()) == (chunk, chunk + 1)


def test_session_that_nobody_uses_is_ended_after_a_while(
    serve_policy: ServePolicy, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Stateful()
    server = serve_policy(policy)
    gone = connect(server)
    gone.begin_session(make_row(1))
    gone.infer(make_batch(1))
    monkeypatch.setattr("hocket.serve.clients.SESSION_IDLE_S", 0.0)
    client = connect(server)
    client.begin_session(make_row(2))
    client.infer(make_batch(2))
    assert policy.ended.acquire(timeout=WAIT_S)
    assert [name.partition("/")[2] for name in policy.live] == ["session 2"]
    with pytest.raises(SessionLostError, match="idle"):
        gone.infer(make_batch(1, chunk=1))


def test_session_is_lost_with_its_server_and_not_asked_again(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    first = serve_policy(Stateful())
    port = first.port
    client = connect(first)
    client.begin_session(make_row(1))
    client.infer(make_batch(1))
    first.stop()
    fresh = Stateful()
    serve_policy(fresh, listening={"port": port})
    with pytest.raises(SessionLostError):
        client.infer(make_batch(1, chunk=1))
    assert fresh.live == {}
    client.begin_session(make_row(2))
    assert client.infer(make_batch(2)).values.ravel().tolist() == [1]


def test_sessions_stay_on_the_server_where_they_began(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    policies = [Stateful(), Stateful()]
    client = connect(*(serve_policy(policy) for policy in policies))
    assert client.spec.max_batch == 1
    with ThreadPoolExecutor(8) as pool:

        def drive(value: int) -> list[float]:
            client.begin_session(make_row(value))
            return [
                float(client.infer(make_batch(value, chunk=chunk)).values[0, 0, 0])
                for chunk in range(5)
            ]

        for counts in pool.map(drive, range(8)):
            assert counts == [1, 2, 3, 4, 5]
    assert sum(len(policy.live) for policy in policies) == 8


def test_answers_of_different_shapes_for_one_request_are_refused(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    def ragged(_: Any, row: Row) -> np.ndarray:
        return np.zeros((row.trial.seed, 2))

    policy = RowWise(ragged, chunk_length=0, action_size=2, max_batch=1)
    client = connect(serve_policy(policy))
    with pytest.raises((PolicyError, ObservationError, ChunkShapeError), match="shapes"):
        client.infer(make_batch(2, 3))
