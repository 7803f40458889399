"""`hocket serve` as its clients see it: batches, errors, refusals, health, ends."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from hocket.core import plugins
from hocket.core.codec import pack, unpack
from hocket.core.data import Actions, Batch, Observation, Row
from hocket.core.specs import ArraySpec, PolicySpec
from hocket.serve.metrics import Metrics
from support.processes import wait_until
from support.running_server import WAIT_S, Running, ServePolicy
from support.wire_clients import RowWise


class Echo:
    """Answers each row with its own state; refuses rows whose state is 13."""

    def __init__(self, **spec: Any) -> None:
        self.spec = PolicySpec(**{"chunk_length": 3, "action_size": 2, **spec})
        self.batches: list[Batch] = []
        self.entered = threading.Semaphore(0)
        self.gate: threading.Semaphore | None = None
        self.is_closed = False

    def infer(self, batch: Batch) -> Actions:
        self.batches.append(batch)
        self.entered.release()
        if self.gate is not None:
            assert self.gate.acquire(timeout=WAIT_S)
        state = batch.arrays["observation/state"]
        if (state[:, 0] == 13).any():
            raise ValueError("unlucky row")
        values = np.repeat(state[:, None, :1], 3, axis=1).repeat(2, axis=2)
        return Actions(values, version=4)

    def close(self) -> None:
        self.is_closed = True


def open_client(server: Running, **settings: Any) -> ClientConnection:
    return connect(
        f"ws://{server.address}", compression=None, max_size=None, open_timeout=WAIT_S, **settings
    )


@contextmanager
def open_clients(server: Running, count: int) -> Iterator[list[ClientConnection]]:
    with ExitStack() as stack:
        clients = [stack.enter_context(open_client(server)) for _ in range(count)]
        for client in clients:
            client.recv(timeout=WAIT_S)
        yield clients


def state(value: float) -> dict[str, Any]:
    return {"observation/state": np.array([value], np.float32), "prompt": f"do {value:g}"}


def ask(client: ClientConnection, request: Any) -> Any:
    client.send(request if isinstance(request, (bytes, str)) else pack(request))
    reply = client.recv(timeout=WAIT_S)
    return reply if isinstance(reply, str) else unpack(reply)


def get(server: Running, path: str, key: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(f"http://{server.address}{path}")
    if key is not None:
        request.add_header("Authorization", f"Api-Key {key}")
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def test_metadata_comes_first_and_replies_in_the_stock_form(serve_policy: ServePolicy) -> None:
    server = serve_policy(Echo(), metadata={"reset_pose": [0, -1.5]})
    with open_client(server) as client:
        metadata = unpack(client.recv(timeout=WAIT_S))
        assert metadata["reset_pose"] == [0, -1.5]
        first, second = ask(client, state(5)), ask(client, state(6))
    assert first["actions"].tolist() == [[5, 5]] * 3
    assert second["actions"].tolist() == [[6, 6]] * 3
    assert set(first["server_timing"]) == {"infer_ms"}
    assert set(second["server_timing"]) == {"infer_ms", "prev_total_ms"}
    assert first["policy_timing"]["infer_ms"] >= 0
    assert first["hocket"]["version"] == 4


def test_requests_that_wait_together_are_one_batch(serve_policy: ServePolicy) -> None:
    policy = Echo()
    server = serve_policy(policy)
    with open_clients(server, 5) as clients:
        for _ in range(3):
            ask(clients[0], state(0))
            assert policy.entered.acquire(timeout=WAIT_S)
        policy.batches.clear()
        policy.gate = threading.Semaphore(0)
        for i, client in enumerate(clients):
            client.send(pack(state(i)))
            if i == 0:
                assert policy.entered.acquire(timeout=WAIT_S)
        wait_for_depth(server, 4)
        policy.gate.release(2)
        for i, client in enumerate(clients):
            reply = unpack(client.recv(timeout=WAIT_S))
            assert reply["actions"][0, 0] == i
    assert [batch.size for batch in policy.batches] == [1, 4]
    assert [row.prompt for row in policy.batches[1].rows] == ["do 1", "do 2", "do 3", "do 4"]


def wait_for_depth(server: Running, depth: int) -> None:
    line = f"hocket_queue_depth {depth}\n"
    for _ in range(2000):
        if line in get(server, "/metrics")[1]:
            return
    raise AssertionError(f"the queue never held {depth}")


def test_bad_row_fails_alone_in_its_batch(serve_policy: ServePolicy) -> None:
    policy = Echo()
    policy.gate = threading.Semaphore(0)
    server = serve_policy(policy)
    values = (0, 1, 13, 3)
    with open_clients(server, 4) as clients:
        for i, (client, value) in enumerate(zip(clients, values, strict=True)):
            client.send(pack(state(value)))
            if i == 0:
                assert policy.entered.acquire(timeout=WAIT_S)
        wait_for_depth(server, 3)
        policy.gate.release(20)
        replies = [client.recv(timeout=WAIT_S) for client in clients]
        assert isinstance(replies[2], str)
        assert "unlucky row" in replies[2]
        for i in (0, 1, 3):
            assert unpack(replies[i])["actions"][0, 0] == values[i]
        with pytest.raises(ConnectionClosed) as caught:
            clients[2].recv(timeout=WAIT_S)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1011


def test_health_answers_while_the_policy_works(serve_policy: ServePolicy) -> None:
    policy = Echo()
    policy.gate = threading.Semaphore(0)
    server = serve_policy(policy)
    with open_client(server) as client:
        client.recv(timeout=WAIT_S)
        client.send(pack(state(1)))
        assert policy.entered.acquire(timeout=WAIT_S)
        assert get(server, "/healthz") == (200, "OK\n")
        assert client.ping().wait(WAIT_S), "a ping is answered meanwhile"
        policy.gate.release()
        assert unpack(client.recv(timeout=WAIT_S))["actions"][0, 0] == 1
    assert get(server, "/nothing")[0] == 426


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ("text", "binary frame"),
        (b"\xc1", "cannot be read"),
        (b"\x93\x01\x02\x03", "must be a map"),
        (pack({}), "empty"),
        (pack({"observation/state": "words"}), "observation/state"),
        (pack({"observation/state": [[1], [2, 3]]}), "observation/state"),
        (pack({"prompt": 3}), "prompt"),
        (pack({"hocket": {"op": "infer"}}), "number"),
        (pack({"hocket": 3}), "number"),
    ],
)
def test_bad_request_gets_a_text_frame_and_1011(
    serve_policy: ServePolicy, request_: Any, says: str
) -> None:
    server = serve_policy(Echo())
    with open_client(server) as good, open_client(server) as client:
        good.recv(timeout=WAIT_S)
        client.recv(timeout=WAIT_S)
        assert says in ask(client, request_)
        with pytest.raises(ConnectionClosed) as caught:
            client.recv(timeout=WAIT_S)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1011
        assert ask(good, state(2))["actions"][0, 0] == 2


def test_nested_observation_gets_slash_keys(serve_policy: ServePolicy) -> None:
    policy = Echo()
    server = serve_policy(policy)
    with open_client(server) as client:
        client.recv(timeout=WAIT_S)
        ask(client, {"observation": {"state": np.array([7.0]), "more": {"x": 1}}})
    assert set(policy.batches[0].arrays) == {"observation/state", "observation/more/x"}


def test_what_the_policy_reads_is_checked_cut_and_cast(serve_policy: ServePolicy) -> None:
    policy = Echo(inputs={"observation/state": ArraySpec(shape=(1,), dtype="<f4")})
    server = serve_policy(policy, warm_up=True)
    warmed = len(policy.batches)
    assert {batch.size for batch in policy.batches} == {1, 2, 4, 8, 16, 32, 64}
    with open_client(server) as client:
        client.recv(timeout=WAIT_S)
        ask(client, {"observation/state": np.array([7.0]), "extra": "words"})
    (batch,) = policy.batches[warmed:]
    assert set(batch.arrays) == {"observation/state"}
    assert batch.arrays["observation/state"].dtype == np.float32
    for wrong in (np.zeros(2, np.float32), np.zeros((1, 1), np.float32)):
        with open_client(server) as client:
            client.recv(timeout=WAIT_S)
            assert "has shape" in ask(client, {"observation/state": wrong})
    with open_client(server) as client:
        client.recv(timeout=WAIT_S)
        told = ask(client, {"other": np.zeros(1)})
        assert "lacks 'observation/state'; it has: other. The policy reads: observation/" in told


def test_first_request_warms_up_where_the_policy_does_not_say_what_it_reads(
    serve_policy: ServePolicy,
) -> None:
    policy = Echo(max_batch=4)
    server = serve_policy(policy, warm_up=True)
    assert policy.batches == []
    with open_client(server) as client:
        client.recv(timeout=WAIT_S)
        assert ask(client, state(3))["actions"][0, 0] == 3
    assert {batch.size for batch in policy.batches} == {1, 2, 4}


def test_policy_that_knows_only_its_own_tasks_is_served_all_the_same(
    serve_policy: ServePolicy,
) -> None:
    server = serve_policy(plugins.build("policies", "reference"), warm_up=True)
    with open_client(server) as client:
        metadata = unpack(bytes(client.recv(timeout=WAIT_S)))
        assert metadata["hocket"]["spec"]["chunk_length"] == 16


def test_full_queue_is_refused_in_words(serve_policy: ServePolicy) -> None:
    policy = Echo()
    policy.gate = threading.Semaphore(0)
    server = serve_policy(policy, max_queue=2)
    with open_clients(server, 3) as clients:
        clients[0].send(pack(state(0)))
        assert policy.entered.acquire(timeout=WAIT_S)
        clients[1].send(pack(state(1)))
        wait_for_depth(server, 1)
        assert "limit is 2" in ask(clients[2], state(2))
        with pytest.raises(ConnectionClosed) as caught:
            clients[2].recv(timeout=WAIT_S)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1013
        policy.gate.release(2)
        for i in (0, 1):
            assert unpack(clients[i].recv(timeout=WAIT_S))["actions"][0, 0] == i


def test_row_of_a_client_that_left_is_not_computed(serve_policy: ServePolicy) -> None:
    policy = Echo()
    policy.gate = threading.Semaphore(0)
    server = serve_policy(policy)
    with open_client(server) as busy:
        busy.recv(timeout=WAIT_S)
        busy.send(pack(state(0)))
        assert policy.entered.acquire(timeout=WAIT_S)
        with open_client(server) as gone:
            gone.recv(timeout=WAIT_S)
            gone.send(pack(state(1)))
            wait_for_depth(server, 1)
        wait_for_depth(server, 0)
        policy.gate.release(5)
        assert unpack(busy.recv(timeout=WAIT_S))["actions"][0, 0] == 0
        assert ask(busy, state(2))["actions"][0, 0] == 2
    assert [batch.size for batch in policy.batches] == [1, 1]


def test_drain_answers_what_is_under_way_and_refuses_the_rest(serve_policy: ServePolicy) -> None:
    policy = Echo()
    policy.gate = threading.Semaphore(0)
    server = serve_policy(policy)
    with open_client(server) as busy, open_client(server) as idle, ThreadPoolExecutor() as pool:
        busy.recv(timeout=WAIT_S)
        idle.recv(timeout=WAIT_S)
        busy.send(pack(state(8)))
        assert policy.entered.acquire(timeout=WAIT_S)
        address = f"ws://{server.address}"
        stopped = pool.submit(server.stop)
        with pytest.raises(ConnectionClosed) as caught:
            idle.recv(timeout=WAIT_S)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1001
        with pytest.raises(OSError, match="refused"), connect(address):
            pass
        policy.gate.release()
        assert unpack(busy.recv(timeout=WAIT_S))["actions"][0, 0] == 8
        stopped.result(WAIT_S)
    assert policy.is_closed


def test_keys_are_wanted_for_all_but_health(serve_policy: ServePolicy) -> None:
    server = serve_policy(Echo(), listening={"keys": {"one": "a", "two": "b"}})
    assert get(server, "/healthz")[0] == 200
    assert get(server, "/metrics")[0] == 401
    assert get(server, "/metrics", "two")[0] == 200
    for header in (None, {"Authorization": "Api-Key no"}, {"Authorization": "Bearer one"}):
        with (
            pytest.raises(InvalidStatus),
            open_client(server, additional_headers=header),
        ):
            pass
    with open_client(server, additional_headers={"Authorization": "Api-Key one"}) as client:
        client.recv(timeout=WAIT_S)
        assert ask(client, state(1))["actions"][0, 0] == 1


def test_web_pages_cannot_connect(serve_policy: ServePolicy) -> None:
    server = serve_policy(Echo())
    with pytest.raises(InvalidStatus), open_client(server, origin="http://evil.example"):
        pass


def test_message_over_the_limit_ends_its_connection_alone(serve_policy: ServePolicy) -> None:
    server = serve_policy(Echo(), listening={"max_message_bytes": 1000})
    with open_client(server) as good, open_client(server) as client:
        good.recv(timeout=WAIT_S)
        client.recv(timeout=WAIT_S)
        with pytest.raises(ConnectionClosed) as caught:
            ask(client, {"observation/state": np.zeros(1000)})
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009
        assert ask(good, state(1))["actions"][0, 0] == 1


def test_too_many_connections_are_refused(serve_policy: ServePolicy) -> None:
    server = serve_policy(Echo(), listening={"max_connections": 1})
    with open_client(server) as client:
        client.recv(timeout=WAIT_S)
        with pytest.raises(InvalidStatus) as caught, open_client(server):
            pass
        assert caught.value.response.status_code == 503


def test_kinds_of_observation_without_end_are_answered_and_forgotten(
    serve_policy: ServePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hocket.serve.batching.MAX_KINDS", 4)
    monkeypatch.setattr("hocket.engine.inferring.policy_thread.BUFFERED_QUEUES", 4)
    server = serve_policy(Echo())
    for size in range(1, 12):
        with open_client(server) as client:
            client.recv(timeout=WAIT_S)
            assert "KeyError" in str(ask(client, {"other": np.zeros(size, np.float32)}))
    with open_client(server) as client:
        client.recv(timeout=WAIT_S)
        for size in (*range(1, 12), 1, 2, 3):
            reply = ask(client, {"observation/state": np.full(size, size, np.float32)})
            assert reply["actions"][0, 0] == size
    batcher = server.server._backend._batcher  # type: ignore[attr-defined]
    assert len(batcher._kinds) == 4
    assert len(batcher._scheduler._queues) == 4


def test_metrics_count_what_happened(serve_policy: ServePolicy) -> None:
    server = serve_policy(Echo())
    with open_client(server) as client:
        client.recv(timeout=WAIT_S)
        for value in range(3):
            ask(client, state(value))
        text = get(server, "/metrics")[1]
    assert "hocket_requests_total 3\n" in text
    assert 'hocket_batch_size_bucket{le="1"} 3\n' in text
    assert 'hocket_request_seconds{quantile="0.99"}' in text
    assert "hocket_connections 1\n" in text
    for line in text.splitlines():
        assert line.startswith("# ") or float(line.rpartition(" ")[2]) >= 0


def test_labels_of_metrics_are_escaped() -> None:
    metrics = Metrics()
    metrics.errors['a "quoted\\" kind\n'] += 1
    assert r'hocket_errors_total{kind="a \"quoted\\\" kind\n"} 1' in metrics.text().splitlines()


class Counting(Echo):
    """Counts the requests of each session."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, int] = {}
        self.ended = threading.Semaphore(0)

    def begin_session(self, row: Row) -> None:
        self.live[row.session] = 0

    def end_session(self, session: str) -> None:
        self.live.pop(session, None)
        self.ended.release()

    def infer(self, batch: Batch) -> Actions:
        for row in batch.rows:
            self.live[row.session] += 1
        counts = np.array([self.live[row.session] for row in batch.rows], np.float32)
        return Actions(np.broadcast_to(counts[:, None, None], (len(counts), 3, 2)).copy())


def drawn(observation: Observation, row: Row) -> np.ndarray:
    random = np.random.default_rng(row.noise_seed)
    return observation["observation/state"][0] + random.standard_normal((3, 2))


def test_a_stock_request_may_choose_its_noise(serve_policy: ServePolicy) -> None:
    server = serve_policy(RowWise(drawn, chunk_length=3, action_size=2))
    request = {"observation/state": np.array([4.0], np.float32)}
    with open_client(server) as one, open_client(server) as two:
        for client in (one, two):
            client.recv(timeout=WAIT_S)
            ask(client, request)  # noise of the server's own choice, in between
        first = ask(one, {**request, "seed": 7})["actions"]
        assert np.array_equal(first, ask(two, {**request, "seed": 7})["actions"])
        assert not np.array_equal(first, ask(two, {**request, "seed": 8})["actions"])
        many = ask(one, {**request, "seed": [8, 7]})["actions"]
        assert many.shape == (2, 3, 2)
        assert np.array_equal(many[1], first)
        assert np.array_equal(ask(one, {**request, "seed": [7]})["actions"], first[None])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"seed": -1}, "must be a whole number"),
        ({"seed": 1.5}, "must be a whole number"),
        ({"seed": []}, "must be a whole number"),
        ({"seed": [1] * 65}, "up to 64"),
        ({"noise": np.zeros((3, 2), np.float32)}, "takes no 'noise'"),
    ],
    ids=repr,
)
def test_noise_that_cannot_count_is_refused(
    serve_policy: ServePolicy, more: dict[str, Any], said: str
) -> None:
    server = serve_policy(RowWise(drawn, chunk_length=3, action_size=2))
    with open_client(server) as client:
        client.recv(timeout=WAIT_S)
        client.send(pack({"observation/state": np.array([4.0], np.float32), **more}))
        assert said in str(client.recv(timeout=WAIT_S))


def test_a_seed_that_the_policy_would_not_heed_is_refused(serve_policy: ServePolicy) -> None:
    server = serve_policy(RowWise(drawn, chunk_length=3, action_size=2, keyed_noise=False))
    with open_client(server) as client:
        client.recv(timeout=WAIT_S)
        client.send(pack({"observation/state": np.array([4.0], np.float32), "seed": 3}))
        assert "no 'seed' counts" in str(client.recv(timeout=WAIT_S))


def test_stock_connection_is_one_session(serve_policy: ServePolicy) -> None:
    policy = Counting()
    server = serve_policy(policy)
    with open_client(server) as one, open_client(server) as two:
        for client in (one, two):
            client.recv(timeout=WAIT_S)
        assert [ask(one, state(0))["actions"][0, 0] for _ in range(3)] == [1, 2, 3]
        assert ask(two, state(0))["actions"][0, 0] == 1
        assert len(policy.live) == 2
    for _ in range(2):
        assert policy.ended.acquire(timeout=WAIT_S)
    assert policy.live == {}


def test_the_row_that_is_needed_first_goes_first(serve_policy: ServePolicy) -> None:
    gate, order = threading.Event(), list[float]()

    def wait(observation: Observation, _: Row) -> np.ndarray:
        assert gate.wait(WAIT_S)
        order.append(float(observation["observation/state"][0]))
        return np.zeros((1, 1))

    policy = RowWise(wait, chunk_length=1, action_size=1, max_batch=1)
    server = serve_policy(policy)
    batcher = server.server._backend._batcher  # type: ignore[attr-defined]
    with open_clients(server, 6) as clients:
        asked = [{}, {}, {}, {"deadline_ms": 80_000}, {"deadline_ms": 70_000.0}, {}]
        for number, (client, more) in enumerate(zip(clients, asked, strict=True)):
            client.send(pack({**state(number), **more}))
            wait_until(lambda count=number + 1: len(batcher._waiting) == count)
        gate.set()
        for client in clients:
            assert "actions" in unpack(client.recv(timeout=WAIT_S))
    assert order == [0, 4, 3, 1, 2, 5]


def test_a_deadline_that_cannot_be_met_is_said_at_once(serve_policy: ServePolicy) -> None:
    server = serve_policy(
        RowWise(lambda *_: np.zeros((1, 1)), chunk_length=1, action_size=1, latency_s=0.3)
    )
    with open_client(server) as client:
        client.recv(timeout=WAIT_S)
        for _ in range(3):
            ask(client, state(1))
        before = len(server.server._backend._policy.batch_sizes)  # type: ignore[attr-defined]
        reply = ask(client, {**state(1), "deadline_ms": 20})
        assert "cannot be there within 20 ms" in reply["error"]
        assert reply["expected_ms"] > 200
        assert len(server.server._backend._policy.batch_sizes) == before  # type: ignore[attr-defined]
        assert "actions" in ask(client, {**state(1), "deadline_ms": 1e6})
        client.send(pack({**state(1), "deadline_ms": -1}))
        assert "must be milliseconds" in str(client.recv(timeout=WAIT_S))
    assert server.metrics.errors["TooLate"] == 1


def test_a_number_too_large_for_the_policy_is_refused(serve_policy: ServePolicy) -> None:
    reads = {"observation/state": ArraySpec(shape=(1,), dtype="<f4")}
    server = serve_policy(RowWise(drawn, chunk_length=3, action_size=2, inputs=reads))
    with open_client(server) as client:
        client.recv(timeout=WAIT_S)
        client.send(pack({"observation/state": np.array([1e300])}))
        assert "too large for" in str(client.recv(timeout=WAIT_S))
