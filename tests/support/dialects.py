"""Servers that speak others' dialects of OpenPI's protocol, after the source of SGLang 0.5.23 and
vLLM-Omni 0.30, whose models need a GPU: paths, first frames, replies, errors, noise and idle
closing are theirs; the policy is a few lines. Their own wire code runs on a CPU: its frames are
recorded in tests/fixtures/dialects.json, and these are compared with them."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from support.stock_openpi import decode, encode

HORIZON, WIDTH, PADDED = 4, 2, 5


@dataclass
class Dialect:
    """A server that listens."""

    port: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    connections: int = 0
    heeds_noise: bool = True
    closes_idle: threading.Event = field(default_factory=threading.Event)
    """Set: the next connection that waits is closed as idle."""
    _draws: int = 0

    def actions(self, noise: Any) -> np.ndarray:
        """What a flow policy makes of its noise; where it is given none, it draws its own."""
        if noise is None or not self.heeds_noise:
            self._draws += 1
            noise = np.random.default_rng(self._draws).standard_normal((HORIZON, PADDED))
        state = self.requests[-1]["observation/state"]
        return np.asarray(state.sum() + noise[:, :WIDTH], np.float32)


def _sglang(server: Dialect, connection: ServerConnection) -> None:
    metadata = {
        "object": "action.metadata",
        "model": "pi05",
        "output": {"action_horizon": HORIZON, "action_dim": WIDTH, "padded_action_dim": PADDED},
    }
    connection.send(encode(metadata))
    for frame in connection:
        try:
            assert isinstance(frame, bytes)
            server.requests.append(decode(frame))
            noise = server.requests[-1].get("noise")
            if noise is not None and noise.shape != (HORIZON, PADDED):
                raise ValueError(f"noise must have shape {(HORIZON, PADDED)}")
            reply = {"actions": server.actions(noise), "server_timing": {"infer_ms": 1.0}}
            connection.send(encode(reply))
        except Exception:  # noqa: BLE001 - as theirs does
            connection.send(encode({"error": traceback.format_exc()}))
            connection.close(1011)
            return


def _vllm_omni(server: Dialect, connection: ServerConnection, *, parts: bool) -> None:
    connection.send(encode({"image_resolution": (224, 224), "action_horizon": HORIZON}))
    while True:
        try:
            frame = connection.recv(timeout=0.02)
        except TimeoutError:
            if server.closes_idle.is_set():
                server.closes_idle.clear()
                connection.close()
                return
            continue
        try:
            assert isinstance(frame, bytes)
            server.requests.append(decode(frame))
            seed = server.requests[-1].get("seed")
            noise = None
            if seed is not None:
                noise = np.random.default_rng(int(seed)).standard_normal((HORIZON, PADDED))
            found = server.actions(noise)
            both = {"arm": found[None, :, :1], "gripper": found[None, :, 1:]}
            connection.send(encode(both if parts else found))
        except ConnectionClosed:
            raise
        except Exception:  # noqa: BLE001 - as theirs does
            connection.send(encode({"type": "error", "message": "Internal inference error"}))


PATHS = {
    "sglang": "/openpi/policy",
    "vllm-omni": "/v1/realtime/robot/openpi",
    "gr00t": "/v1/realtime/robot/openpi",
}


@contextmanager
def dialect(name: str, **settings: Any) -> Iterator[Dialect]:
    """Serve one of them on loopback."""
    server = Dialect(**settings)

    def check(connection: ServerConnection, request: Request) -> Response | None:
        return None if request.path == PATHS[name] else connection.respond(403, "")

    def attend(connection: ServerConnection) -> None:
        server.connections += 1
        try:
            if name == "sglang":
                _sglang(server, connection)
            else:
                _vllm_omni(server, connection, parts=name == "gr00t")
        except ConnectionClosed:
            return

    with serve(
        attend, "127.0.0.1", 0, compression=None, max_size=None, process_request=check
    ) as listening:
        server.port = listening.socket.getsockname()[1]
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield server
        listening.shutdown()
