"""GR00T's ZMQ protocol, against a minimal server written from its description."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq

from hocket.adapters.policies.gr00t import Gr00t, Gr00tConfig
from hocket.core import plugins
from hocket.core.data import Batch, Row, Trial
from hocket.errors import (
    ChunkShapeError,
    ConfigError,
    ObservationError,
    PolicyError,
    PolicyUnavailableError,
)
from support.processes import DEADLINE_S as WAIT_S

Answer = Callable[[dict[str, Any]], Any]


def encode(value: Any) -> bytes:
    def array(found: Any) -> Any:
        file = io.BytesIO()
        np.save(file, found)
        return {"__ndarray_class__": True, "as_npy": file.getvalue()}

    return msgpack.packb(value, default=array)


def decode(frame: bytes) -> Any:
    def array(found: dict[str, Any]) -> Any:
        return np.load(io.BytesIO(found["as_npy"])) if "__ndarray_class__" in found else found

    return msgpack.unpackb(frame, object_hook=array)


class ZmqServer:
    """One request at a time, as GR00T's."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[dict[str, Any]] = []
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.is_over = threading.Event()

    def serve(self) -> None:
        while not self.is_over.is_set():
            if not self.socket.poll(20):
                continue
            *head, frame = self.socket.recv_multipart()
            request = decode(frame)
            self.requests.append(request)
            if request["endpoint"] == "ping":
                reply: Any = {"status": "ok"}
            else:
                reply = self.answer(request)
            if reply is not None:
                self.socket.send_multipart([*head, encode(reply)])
        self.socket.close(linger=0)
        self.context.term()


@contextmanager
def gr00t_server(answer: Answer) -> Iterator[ZmqServer]:
    server = ZmqServer(answer)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.is_over.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()


@contextmanager
def connected(server: ZmqServer, **settings: Any) -> Iterator[Gr00t]:
    settings = {"timeout_s": WAIT_S, "ready_timeout_s": WAIT_S, **settings}
    policy = Gr00t(f"127.0.0.1:{server.port}", Gr00tConfig(**settings))
    try:
        yield policy
    finally:
        policy.close()
        policy.close()


def make_batch(*values: float, pad: int = 0) -> Batch:
    count = len(values) + pad
    states = np.array([*values, *values[-1:] * pad])[:, None]
    return Batch(
        arrays={
            "observation/image": np.zeros((count, 8, 9, 3), np.uint8),
            "observation/state": states,
        },
        rows=tuple(
            Row(
                trial=Trial(suite="s", task="t", seed=0),
                attempt=0,
                chunk=0,
                noise_seed=1,
                prompt=f"go {value:g}",
                session="x",
            )
            for value in values
        ),
        pad=pad,
    )


def echo(request: dict[str, Any]) -> list[Any]:
    state = request["data"]["observation"]["state"]["state"][:, 0]
    arm = np.repeat(state[:, None], 4, axis=1)
    return [{"arm": arm, "gripper": -arm}, {}]


def test_batch_is_one_request_in_gr00t_s_layout() -> None:
    with gr00t_server(echo) as server, connected(server) as policy:
        answer = policy.infer(make_batch(1, 2, pad=1))
        assert answer.values.shape == (3, 4, 2)
        assert answer.values[:, 0].tolist() == [[1, -1], [2, -2], [2, -2]]
        assert [request["endpoint"] for request in server.requests] == ["ping", "get_action"]
        observation = server.requests[-1]["data"]["observation"]
        assert observation["video"]["image"].shape == (2, 1, 8, 9, 3)
        assert observation["state"]["state"].dtype == np.float32
        assert observation["language"] == {
            "annotation.human.task_description": [["go 1"], ["go 2"]]
        }


def test_parts_of_the_action_are_joined_in_the_order_asked_for() -> None:
    with gr00t_server(echo) as server:
        with connected(server, actions=("gripper", "arm")) as policy:
            assert policy.infer(make_batch(3)).values[0, 0].tolist() == [-3, 3]
        with (
            connected(server, actions=("leg",)) as policy,
            pytest.raises(PolicyError, match="it has: arm, gripper"),
        ):
            policy.infer(make_batch(3))


def test_mapping_makes_gr00t_s_keys(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(
        "request: {video/ego: {from: observation/image, resize: [4, 4]},\n"
        "          state/state: observation/state}\n"
        "actions: {slice: [0, 1]}\n"
    )
    wrong = tmp_path / "w.yaml"
    wrong.write_text("request: {images/ego: observation/image}\n")
    with gr00t_server(echo) as server:
        with connected(server, mapping=str(file)) as policy:
            assert policy.infer(make_batch(3)).values.tolist() == [[[3]] * 4]
        video = server.requests[-1]["data"]["observation"]["video"]
        assert video["ego"].shape == (1, 1, 4, 4, 3)
        with (
            connected(server, mapping=str(wrong)) as policy,
            pytest.raises(ObservationError, match="images/ego"),
        ):
            policy.infer(make_batch(3))


def test_dead_server_is_given_up_in_time() -> None:
    policy = Gr00t("127.0.0.1:9", Gr00tConfig(ready_timeout_s=0.2))
    began = time.monotonic()
    with pytest.raises(PolicyUnavailableError, match="ready-timeout"):
        policy.infer(make_batch(1))
    assert time.monotonic() - began < WAIT_S
    policy.close()


def test_late_reply_is_never_taken_for_a_newer_one() -> None:
    calls = iter(range(100))
    is_given_up, is_answered = threading.Event(), threading.Event()

    def first_is_late(request: dict[str, Any]) -> list[Any]:
        if next(calls) == 0:
            is_given_up.wait(WAIT_S)
            is_answered.set()
        return echo(request)

    with (
        gr00t_server(first_is_late) as server,
        connected(server, timeout_s=2.0, retries=0) as policy,
    ):
        with pytest.raises(PolicyUnavailableError, match="Asked 1 times"):
            policy.infer(make_batch(1))
        is_given_up.set()
        assert is_answered.wait(WAIT_S)
        assert policy.infer(make_batch(2)).values[0, 0, 0] == 2


def test_question_without_a_reply_is_asked_again() -> None:
    calls = iter(range(100))

    def loses_the_first(request: dict[str, Any]) -> Any:
        return None if next(calls) == 0 else echo(request)

    with (
        gr00t_server(loses_the_first) as server,
        connected(server, timeout_s=0.3, retries=60) as policy,
    ):
        assert policy.infer(make_batch(2)).values[0, 0, 0] == 2


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        ({"error": "no checkpoint"}, PolicyError, "no checkpoint"),
        ([{}, {}], PolicyError, "without actions"),
        ([{"arm": np.zeros((3, 4, 1))}, {}], ChunkShapeError, r"\(3, 4, 1\)"),
        (
            [{"a": np.zeros((1, 4, 1)), "b": np.zeros((1, 5, 1))}, {}],
            ChunkShapeError,
            "parts",
        ),
    ],
)
def test_wrong_reply_is_an_error_of_the_policy(
    reply: Any, error: type[Exception], message: str
) -> None:
    with (
        gr00t_server(lambda _: reply) as server,
        connected(server) as policy,
        pytest.raises(error, match=message),
    ):
        policy.infer(make_batch(1))


def test_token_is_sent(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    with gr00t_server(echo) as server:
        with connected(server, api_token_file=str(tmp_path / "token")) as policy:
            policy.infer(make_batch(1))
        assert {request["api_token"] for request in server.requests} == {"t0ken"}


def test_policy_is_found_by_its_name() -> None:
    with gr00t_server(echo) as server:
        policy = plugins.build(
            "policies", f"gr00t://127.0.0.1:{server.port}", {"timeout_s": WAIT_S}
        )
        assert policy.infer(make_batch(4)).values.shape == (1, 4, 2)
        policy.close()


@pytest.mark.parametrize("address", ["", ":5555", "host:port"])
def test_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="gr00t://"):
        Gr00t(address)
