"""hocket's client against hocket's server: batches, seeds, sessions, versions over one wire."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pytest

from hocket.adapters.policies.openpi.policy import OpenPI, OpenPIConfig
from hocket.adapters.policies.openpi.shared import (
    SharedArrays,
    SharedArraysError,
    SharedReader,
)
from hocket.core.data import (
    Actions,
    ActionSpec,
    ArraySpec,
    Batch,
    EnvSpec,
    PolicySpec,
    Row,
    TaskInfo,
    Trial,
    noise_seed,
)
from hocket.errors import ChunkShapeError, ObservationError, PolicyError, SessionLostError
from hocket.serve.gateway import Gateway
from hocket.serve.metrics import Metrics
from hocket.testing import ScriptedPolicy
from support.frame_proxy import FrameProxy
from support.running_server import WAIT_S, Running, ServePolicy, running

Connect = Callable[..., OpenPI]


@pytest.fixture
def connect() -> Iterator[Connect]:
    opened: list[OpenPI] = []

    def start(*servers: Running, **settings: Any) -> OpenPI:
        settings = {"ready_timeout_s": WAIT_S, "timeout_s": WAIT_S, **settings}
        opened.append(
            OpenPI(",".join(server.address for server in servers), OpenPIConfig(**settings))
        )
        return opened[-1]

    yield start
    for policy in opened:
        policy.close()


def make_row(value: int, chunk: int = 0) -> Row:
    trial = Trial(suite="s", task="push", seed=value, repeat=1)
    return Row(
        trial=trial,
        attempt=2,
        chunk=chunk,
        noise_seed=noise_seed(trial, chunk),
        prompt=f"go {value}",
        session=f"session {value}",
    )


def make_batch(*values: int, chunk: int = 0, pad: int = 0) -> Batch:
    state = np.array([*values, *values[-1:] * pad], np.float32)[:, None]
    image = np.zeros((len(state), 8, 8, 3), np.uint8)
    return Batch(
        arrays={"observation/state": state, "observation/image": image},
        rows=tuple(make_row(value, chunk) for value in values),
        pad=pad,
    )


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
    assert sorted(asked, key=lambda row: row.trial.seed) == [make_row(i) for i in (1, 2, 3)]


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
    here.bind(spec)
    client.bind(spec)
    batch = make_batch(1, 2, 3)
    assert np.array_equal(client.infer(batch).values, np.asarray(here.infer(batch)))


def env_spec(actions: int) -> EnvSpec:
    bound = np.full(actions, 0.5)
    return EnvSpec(
        task=TaskInfo(name="push"),
        action=ActionSpec(
            size=actions, kind="box", shape=(actions,), dtype="<f4", low=-bound, high=bound
        ),
        observations={"observation/state": ArraySpec(shape=(1,), dtype="<f4")},
        cameras=(),
        abilities=(),
    )


def test_env_is_told_again_to_a_server_that_was_restarted(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    first = serve_policy(ScriptedPolicy())
    port = first.port
    client = connect(first)
    client.bind(env_spec(3))
    before = client.infer(make_batch(5)).values
    first.stop()
    serve_policy(ScriptedPolicy(), listening={"port": port})
    assert np.array_equal(client.infer(make_batch(5)).values, before)


def test_server_that_is_down_hears_of_envs_when_it_is_back(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    living, dead = serve_policy(ScriptedPolicy()), serve_policy(ScriptedPolicy())
    client, port = connect(living, dead), dead.port
    dead.stop()
    client.bind(env_spec(3))
    before = client.infer(make_batch(5)).values
    serve_policy(ScriptedPolicy(), listening={"port": port})
    living.stop()
    assert np.array_equal(client.infer(make_batch(5)).values, before)


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


class Stateful(Keeper):
    """Counts the chunks of each session."""

    spec = PolicySpec(chunk_length=1, action_size=1, max_batch=8)

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, int] = {}
        self.ended = threading.Semaphore(0)

    def begin_session(self, row: Row) -> None:
        self.live[row.session] = 0

    def end_session(self, session: str) -> None:
        del self.live[session]
        self.ended.release()

    def infer(self, batch: Batch) -> Actions:
        for row in batch.rows:
            self.live[row.session] += 1
        counts = [[[float(self.live[row.session])]] for row in batch.rows]
        return Actions(np.array(counts))


def test_sessions_begin_count_and_end(serve_policy: ServePolicy, connect: Connect) -> None:
    policy = Stateful()
    client = connect(serve_policy(policy))
    for value in (1, 2):
        client.begin_session(make_row(value))
    assert client.infer(make_batch(1, 2)).values.ravel().tolist() == [1, 1]
    assert client.infer(make_batch(1, chunk=1)).values.ravel().tolist() == [2]
    client.end_session("session 1")
    assert policy.ended.acquire(timeout=WAIT_S)
    assert set(policy.live) == {"session 2"}


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
        proxy = stack.enter_context(FrameProxy(server.port, ("asked twice",), share=1.0))
        client = stack.enter_context(
            closing(OpenPI(f"127.0.0.1:{proxy.port}", OpenPIConfig(timeout_s=WAIT_S)))
        )
        client.begin_session(make_row(1))
        counts = [client.infer(make_batch(1, chunk=chunk)).values.item() for chunk in range(6)]
        assert counts == [1, 2, 3, 4, 5, 6]
        assert proxy.hits >= 6


def test_session_whose_client_died_is_ended_after_a_while(
    serve_policy: ServePolicy, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Stateful()
    server = serve_policy(policy)
    gone = connect(server)
    gone.begin_session(make_row(1))
    gone.infer(make_batch(1))
    gone.close()
    monkeypatch.setattr("hocket.serve.backend.SESSION_IDLE_S", 0.0)
    client = connect(server)
    client.begin_session(make_row(2))
    client.infer(make_batch(2))
    assert policy.ended.acquire(timeout=WAIT_S)
    assert set(policy.live) == {"session 2"}


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

    policy = ScriptedPolicy.of(ragged, chunk_length=1, action_size=2, max_batch=1)
    policy.spec = PolicySpec(chunk_length=0, action_size=2, max_batch=1)
    client = connect(serve_policy(policy))
    with pytest.raises((PolicyError, ObservationError, ChunkShapeError), match="shapes"):
        client.infer(make_batch(2, 3))


# -- Shared memory -------------------------------------------------------------------------------


def large_batch(*values: int) -> Batch:
    batch = make_batch(*values)
    images = np.stack([np.full((256, 256, 3), value, np.uint8) for value in values])
    return Batch(arrays={**batch.arrays, "observation/image": images}, rows=batch.rows)


class Looking(Keeper):
    """Answers with what it sees in the image."""

    def infer(self, batch: Batch) -> Actions:
        self.batches.append(batch)
        means = batch.arrays["observation/image"].reshape(batch.size, -1).mean(axis=1)
        return Actions(np.broadcast_to(means[:, None, None], (batch.size, 4, 2)).copy())


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


def test_arrays_travel_where_memory_cannot_be_shared(
    serve_policy: ServePolicy, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise SharedArraysError("not permitted")

    monkeypatch.setattr("hocket.adapters.policies.openpi.shared.SharedReader.read", refuse)
    client = connect(serve_policy(Looking()))
    for value in (3, 4):
        assert client.infer(large_batch(value)).values[0, 0, 0] == value


def test_only_sealed_memory_of_ours_is_mapped(tmp_path: Any) -> None:
    reader = SharedReader(1 << 20)
    written = SharedArrays().write({"x": np.arange(4.0)})
    good = written.description
    assert reader.read(good)["x"].tolist() == [0, 1, 2, 3]
    file = tmp_path / "secret"
    file.write_bytes(b"s" * 4096)
    unsealed = os.memfd_create("hocket-arrays")
    os.ftruncate(unsealed, 4096)
    stranger = os.memfd_create("other")
    with file.open() as opened:
        bad = [
            {**good, "path": str(file)},
            {**good, "path": f"/proc/self/fd/{opened.fileno()}"},
            {**good, "path": f"/proc/{os.getpid()}/fd/{opened.fileno()}", "file": [1, 4096]},
            {**good, "path": f"/proc/{os.getpid()}/fd/{unsealed}", "file": [2, 4096]},
            {**good, "path": f"/proc/{os.getpid()}/fd/{stranger}", "file": [3, 4096]},
            {**good, "file": [4, 1 << 16]},
            {**good, "file": [5, 1 << 30]},
            {**good, "layout": [["x", [1 << 20], "<f8", 0]]},
            {**good, "layout": [["x", [4], "|O", 0]]},
            {**good, "layout": [["x", [4], "<f8", -8]]},
            {"path": 3},
            None,
        ]
        for description in bad:
            with pytest.raises(SharedArraysError):
                reader.read(description)
    for number in (unsealed, stranger):
        os.close(number)
    written.close()
