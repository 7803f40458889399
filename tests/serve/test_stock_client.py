"""The real openpi-client against `hocket serve`."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from hocket.core.codec import pack, unpack
from hocket.core.data import Observation, Row
from support.running_server import WAIT_S, ServePolicy
from support.wire_clients import RowWise, Stateful

pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager")


def identify(observation: Observation, row: Row) -> np.ndarray:
    """Actions that say whose they are: the image's mean, and the prompt's number."""
    mean = float(observation["observation/image"].mean())
    return np.full((5, 2), [mean, float(row.prompt.split()[-1])], np.float32)


def request(client: int, turn: int) -> dict[str, Any]:
    return {
        "observation/image": np.full((224, 224, 3), client, np.uint8),
        "observation/state": np.zeros(8, np.float32),
        "prompt": f"task {turn}",
    }


def test_single_client_gets_metadata_and_actions(
    serve_policy: ServePolicy, openpi_client: Any
) -> None:
    policy = RowWise(identify, chunk_length=5, action_size=2, max_batch=32)
    server = serve_policy(policy, metadata={"robot": "toy"})
    client = openpi_client.WebsocketClientPolicy("127.0.0.1", server.port)
    assert client.get_server_metadata()["robot"] == "toy"
    for turn in range(3):
        actions = client.infer(request(9, turn))["actions"]
        assert actions.tolist() == [[9, turn]] * 5
    client.reset()
    client._ws.close()


def test_clients_of_sglang_and_vllm_omni_are_known_by_their_paths(
    serve_policy: ServePolicy, openpi_client: Any
) -> None:
    server = serve_policy(RowWise(identify, chunk_length=5, action_size=2))
    place = f"ws://{server.address}"
    client = openpi_client.WebsocketClientPolicy(f"{place}/openpi/policy")
    assert client.infer(request(3, 1))["actions"].tolist() == [[3, 1]] * 5
    client._ws.close()
    client = openpi_client.WebsocketClientPolicy(f"{place}/v1/realtime/robot/openpi")
    answer = client.infer({**request(3, 2), "session_id": "a"})
    assert np.asarray(answer, np.float32).tolist() == [[3, 2]] * 5
    told = client.infer({**request(3, 2), "deadline_ms": 1e-6})
    assert told["type"] == "error"
    assert "cannot be there" in told["message"]
    client._ws.close()


def test_an_attempt_ends_where_vllm_omni_s_client_says_so(
    serve_policy: ServePolicy, openpi_client: Any
) -> None:
    policy = Stateful()
    server = serve_policy(policy)
    client = openpi_client.WebsocketClientPolicy(f"ws://{server.address}/v1/realtime/robot/openpi")
    seen = {"observation/state": np.zeros(1, np.float32), "prompt": ""}
    assert [client.infer(seen).item() for _ in range(2)] == [1, 2]
    assert client.infer({"endpoint": "reset"}) == {"status": "reset successful"}
    assert policy.ended.acquire(timeout=WAIT_S)
    assert client.infer(seen).item() == 1
    client._ws.close()


def test_error_reaches_the_client_as_text(serve_policy: ServePolicy, openpi_client: Any) -> None:
    policy = RowWise(identify, chunk_length=5, action_size=2)
    server = serve_policy(policy)
    client = openpi_client.WebsocketClientPolicy("127.0.0.1", server.port)
    with pytest.raises(RuntimeError, match="observation/image"):
        client.infer({"prompt": "task 1", "observation/state": np.zeros(2)})
    client._ws.close()


def test_thirty_two_clients_at_once_each_get_their_own_rows(
    serve_policy: ServePolicy, openpi_client: Any
) -> None:
    policy = RowWise(identify, chunk_length=5, action_size=2, max_batch=32, latency_s=0.02)
    server = serve_policy(policy)

    def drive(number: int) -> list[Any]:
        client = openpi_client.WebsocketClientPolicy("127.0.0.1", server.port)
        try:
            return [client.infer(request(number, turn))["actions"] for turn in range(6)]
        finally:
            client._ws.close()

    with ThreadPoolExecutor(32) as pool:
        for number, answers in enumerate(pool.map(drive, range(32))):
            for turn, actions in enumerate(answers):
                assert actions.tolist() == [[number, turn]] * 5
    assert sum(policy.batch_sizes) == 32 * 6
    assert max(policy.batch_sizes) > 4, "clients shared batches"


@given(
    stn.arrays(
        st.sampled_from(["<f4", "<f8", "|u1", "|b1", "<i8", ">f4", "<U3"]),
        stn.array_shapes(min_dims=0, max_side=4),
    )
)
def test_codec_makes_the_bytes_of_the_real_one(openpi_client: Any, array: np.ndarray) -> None:
    theirs = importlib.import_module("openpi_client.msgpack_numpy")
    value = {"a": array, "nested": {"b": [1, "x", array]}, "c": np.float32(2)}
    assert pack(value) == theirs.packb(value)
    assert np.array_equal(unpack(theirs.packb(array)), array, equal_nan=array.dtype.kind == "f")
