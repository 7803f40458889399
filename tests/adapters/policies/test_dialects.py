"""Other servers' dialects of OpenPI's protocol, from the side that asks."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import connect

from hocket.adapters.policies.openpi.connection import parse_endpoint
from hocket.adapters.policies.openpi.keying import find_keying
from hocket.adapters.policies.openpi.policy import OpenPI, OpenPIConfig
from hocket.adapters.policies.openpi.protocol import (
    WrongNumberError,
    read_chunk,
    read_extended,
)
from hocket.core.codec import pack, unpack
from hocket.core.data import Batch
from hocket.errors import ChunkShapeError, ConfigError, PolicyError, PolicyUnavailableError
from hocket.runs.config import EvalConfig
from support.dialects import HORIZON, PADDED, PATHS, Dialect, dialect
from support.processes import DEADLINE_S, wait_until
from support.sites import outcomes, run_here
from support.wire_clients import make_batch, make_row

NAMES = sorted(PATHS)


@contextmanager
def client(
    server: Dialect, name: str, path: str | None = None, **settings: Any
) -> Iterator[OpenPI]:
    if name == "gr00t":
        settings.setdefault("reply_key", "arm,gripper")
    config = OpenPIConfig(**{"ready_timeout_s": DEADLINE_S, "timeout_s": DEADLINE_S, **settings})
    address = f"openpi://127.0.0.1:{server.port}{PATHS[name] if path is None else path}"
    with closing(OpenPI(address, config)) as found:
        yield found


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("openpi://a:8000/openpi/policy", "ws://a:8000/openpi/policy"),
        ("a/v1/realtime/robot/openpi", "ws://a:8000/v1/realtime/robot/openpi"),
        ("[::1]:9/x/", "ws://[::1]:9/x"),
        ("a:8000/", "ws://a:8000"),
        ("wss://a/x", "wss://a/x"),
    ],
)
def test_an_address_may_have_a_path(text: str, uri: str) -> None:
    assert parse_endpoint(text).uri == uri


@pytest.mark.parametrize("name", NAMES)
def test_every_dialect_answers(name: str) -> None:
    with dialect(name) as server, client(server, name, noise="none") as policy:
        for value in (1, 2):
            actions = np.asarray(policy.infer(make_batch(value)).values)
            assert actions.shape == (1, HORIZON, 2)
        assert policy.spec.exactness(alone=False) == "environment"
        assert server.connections == 1


def form(value: Any) -> Any:
    """What a value is, less its numbers."""
    if isinstance(value, dict):
        return {key: form(value[key]) for key in sorted(value)}
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape
    return type(value).__name__


RECORDED = json.loads((Path(__file__).parents[2] / "fixtures" / "dialects.json").read_text())
"""Frames of SGLang's and vLLM-Omni's own wire code, which ran on FastAPI before an engine of a few
lines: the metadata, an answer, and an error where there is one."""


@pytest.mark.parametrize("name", NAMES)
def test_our_stand_ins_send_what_the_packages_own_code_sent(name: str) -> None:
    frames = [bytes.fromhex(frame) for frame in RECORDED[name]["frames"]]
    asked: dict[str, Any] = {"observation/state": np.float32([1.0, 2.0]), "prompt": "go"}
    if name == "sglang":
        asked["noise"] = np.zeros((HORIZON, PADDED), np.float32)
    with dialect(name) as server, connect(f"ws://127.0.0.1:{server.port}{PATHS[name]}") as wire:
        metadata, theirs = unpack(wire.recv()), unpack(frames[0])
        both = metadata.keys() & theirs.keys()
        assert both, "some of it is what theirs say"
        for key in both - {"model", "output"}:
            assert form(metadata[key]) == form(theirs[key]), key
        wire.send(pack(asked))
        assert form(unpack(wire.recv())) == form(unpack(frames[1]))
        if name != "gr00t":
            wire.send(pack({"prompt": "no state"}))
            assert form(unpack(wire.recv())) == form(unpack(frames[2 if name == "sglang" else 3]))


@pytest.mark.parametrize("name", NAMES)
def test_frames_of_the_packages_own_code_are_read(name: str) -> None:
    frames = [bytes.fromhex(frame) for frame in RECORDED[name]["frames"]]
    keying = find_keying("auto", unpack(frames[0]))
    assert (keying and keying.shape) == ((HORIZON, PADDED) if name == "sglang" else None)
    reply_key = "arm,gripper" if name == "gr00t" else ""
    assert read_chunk(frames[1], reply_key).shape == (HORIZON, 2)
    said = {"sglang": r"noise must have shape \(4, 5\)", "vllm-omni": "Internal inference error"}
    if name in said:
        with pytest.raises(PolicyError, match=said[name]):
            read_chunk(frames[2 if name == "sglang" else 3], reply_key)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_path_is_said_to_be_one(name: str) -> None:
    said = r"HTTP 403: .*key.*path.*/openpi/policy"
    with (
        dialect(name) as server,
        client(server, name, "/other") as policy,
        pytest.raises(PolicyUnavailableError, match=said),
    ):
        policy.infer(make_batch(1))


@pytest.mark.parametrize(
    ("name", "said"),
    [("sglang", "KeyError: 'observation/state'"), ("vllm-omni", "inference error")],
)
def test_an_error_frame_is_shown_in_the_server_s_own_words(name: str, said: str) -> None:
    batch = Batch(arrays={"observation/other": np.zeros((1, 1), np.float32)}, rows=(make_row(1),))
    with dialect(name) as server, client(server, name, noise="none") as policy:
        with pytest.raises(PolicyError, match=said) as caught:
            policy.infer(batch)
        assert "reply-key" not in str(caught.value)
        policy.infer(make_batch(1))


def test_a_connection_that_was_closed_as_idle_is_no_lost_one() -> None:
    with dialect("vllm-omni") as server, client(server, "vllm-omni", noise="none") as policy:
        source = policy.infer(make_batch(1)).source
        server.closes_idle.set()
        wait_until(lambda: not server.closes_idle.is_set())
        wait_until(lambda: not policy._client.servers.replicas[0]._living[0].is_open)
        policy.infer(make_batch(1))
        assert server.connections == 2
        assert policy.reconnects == 0
        assert not policy.is_stale(source)


@pytest.mark.parametrize(("name", "noise"), [("sglang", "auto"), ("vllm-omni", "seed")])
def test_noise_is_keyed_by_trial_and_chunk(name: str, noise: Any) -> None:
    answers = []
    for order in ((1, 2, 3), (3, 2, 1)):
        with dialect(name) as server, client(server, name, noise=noise) as policy:
            assert policy.spec.exactness(alone=False) == "inputs"
            found = {value: np.asarray(policy.infer(make_batch(value)).values) for value in order}
            answers.append(found)
            other = np.asarray(policy.infer(make_batch(1, chunk=1)).values)
            assert not np.array_equal(other, found[1])
            sent = server.requests[-1]["noise" if noise == "auto" else "seed"]
            assert np.shape(sent) == ((HORIZON, PADDED) if noise == "auto" else ())
    for value in (1, 2, 3):
        assert np.array_equal(answers[0][value], answers[1][value])


@pytest.mark.parametrize(("name", "noise"), [("sglang", "auto"), ("vllm-omni", "seed")])
def test_noise_that_a_server_does_not_heed_is_no_claim(name: str, noise: Any) -> None:
    with (
        dialect(name, heeds_noise=False) as server,
        client(server, name, noise=noise) as policy,
        pytest.raises(PolicyError, match=r"in two ways.*--policy\.noise none"),
    ):
        policy.infer(make_batch(1))


def test_a_server_that_does_not_tell_the_size_of_its_noise_is_not_guessed_at() -> None:
    with (
        dialect("vllm-omni") as server,
        client(server, "vllm-omni", noise="noise") as policy,
        pytest.raises(ConfigError, match=r"--policy\.noise seed"),
    ):
        policy.infer(make_batch(1))


def test_nobody_who_listens_is_told_as_such() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}/openpi/policy"
        with (
            closing(OpenPI(address, OpenPIConfig(ready_timeout_s=0.2))) as policy,
            pytest.raises(PolicyUnavailableError, match="/openpi/policy"),
        ):
            policy.infer(make_batch(1))


def test_a_run_on_a_foreign_server_is_the_same_again_and_says_so(tmp_path: Any) -> None:
    found = []
    for number, lanes in enumerate((1, 4)):
        with dialect("sglang") as server:
            config = {
                "env": ("support.point_env:PointEnv",),
                "policy": f"openpi://127.0.0.1:{server.port}/openpi/policy",
                "episodes": 6,
                "lanes": lanes,
                "video": "none",
            }
            report = run_here(EvalConfig.from_plain(config), tmp_path / f"{number}")
        assert report.exactness == "inputs"
        found.append(outcomes(tmp_path / f"{number}"))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "reply", [[[1, 2], [3]], [["a", "b"]], {"actions": [[None]]}, {"actions": [[1], [[2]]]}]
)
def test_actions_that_are_no_numbers_are_refused(reply: Any) -> None:
    with pytest.raises(ChunkShapeError, match="answered with actions"):
        read_chunk(pack(reply))


def test_a_reply_whose_number_is_an_array_answers_nothing() -> None:
    with pytest.raises(WrongNumberError):
        read_extended(pack({"hocket": {"id": np.zeros(0)}}), 1)
