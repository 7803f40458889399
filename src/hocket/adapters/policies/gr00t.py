"""`gr00t://host:5555`: a policy behind GR00T's ZMQ server, asked in batches, with real timeouts.

Requests are `{"endpoint", "data", "api_token"?}` in msgpack, arrays as `np.save` bytes.
Observations are batched: video `[N, 1, H, W, C]`, state `[N, 1, D]`, language `[[text]] * N`. A
socket whose reply did not come in time is closed and replaced, so that a late reply can never
answer a newer request.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from hocket.adapters.policies.mapping import (
    Embodiment,
    Identity,
    check_env,
    open_mapping,
    padded,
    spec_fields,
)
from hocket.adapters.policies.openpi.connection import parse_endpoint
from hocket.core.data import Actions, Array, Batch, Observation
from hocket.core.specs import EnvSpec, PolicySpec
from hocket.errors import (
    ChunkShapeError,
    ObservationError,
    PolicyError,
    PolicyUnavailableError,
    WireError,
)
from hocket.system.exposure import API_KEY_VARIABLE, read_key
from hocket.system.waits import awaiting

DEFAULT_PORT = 5555
PING_S = 2.0
"""Seconds for one ping while the server comes up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gr00tConfig:
    mapping: str = ""
    """A .yaml file or package.module:Class that makes keys video/NAME and state/NAME; empty names
    them after the last part of the env's keys."""
    language_key: str = "annotation.human.task_description"
    actions: tuple[str, ...] = ()
    """Parts of the server's action, in the order in which they make the env's; empty takes the
    server's own order."""
    timeout_s: float = 60.0
    """Seconds for one request."""
    ready_timeout_s: float = 240.0
    """Seconds for the server to come up, and for its first answer."""
    retries: int = 2
    """Times that a question is asked again after a timeout."""
    api_token_file: str = ""
    """Holds the server's token; the variable HOCKET_API_KEY does too."""
    max_batch: int = 32

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or self.ready_timeout_s <= 0:
            raise ValueError("timeout_s and ready_timeout_s must be more than 0")
        if self.retries < 0 or self.max_batch < 1:
            raise ValueError("retries must be 0 or more, max_batch 1 or more")


class Gr00t:
    Config = Gr00tConfig

    def __init__(self, argument: str, config: Gr00tConfig | None = None) -> None:
        self._config = config or Gr00tConfig()
        self._address = parse_endpoint(argument, "gr00t", DEFAULT_PORT).name
        file = self._config.api_token_file
        self._token = read_key(file) if file else os.environ.get(API_KEY_VARIABLE)
        self._mapping: Embodiment = open_mapping(self._config.mapping)
        self.spec = PolicySpec(
            chunk_length=0,
            max_batch=self._config.max_batch,
            keyed_noise=False,
            **spec_fields(self._mapping),
        )
        # A ZMQ socket belongs to one thread at a time, and REQ asks one question at a time.
        self._lock = threading.Lock()
        self._socket: Any = None
        self._is_ready = False

    def bind(self, spec: EnvSpec) -> None:
        check_env(self._mapping, self._config.mapping, spec)

    def infer(self, batch: Batch) -> Actions:
        data = {"observation": self._observation(batch), "options": None}
        with self._lock:
            self._wait_until_ready()
            reply = self._ask_again(data)
        values = padded(self._values(reply, len(batch.rows)), batch.pad)
        return Actions(values, source=f"gr00t://{self._address}")

    def request(self, observation: Observation, prompt: str) -> dict[str, Any]:
        """What the server is sent for one env's observation, less the axes of batch and time."""
        return {**self._arrays(observation, prompt), self._config.language_key: prompt}

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _observation(self, batch: Batch) -> dict[str, Any]:
        requests = [
            self._arrays({key: value[i] for key, value in batch.arrays.items()}, row.prompt)
            for i, row in enumerate(batch.rows)
        ]
        found: dict[str, dict[str, Any]] = {"video": {}, "state": {}}
        for key in requests[0]:
            kind, _, name = key.partition("/")
            stacked = np.stack([request[key] for request in requests])[:, None]
            if kind not in found or not name:
                raise ObservationError(
                    f"The mapping makes {key!r}; GR00T's keys are video/NAME and state/NAME."
                )
            found[kind][name] = stacked if kind == "video" else stacked.astype(np.float32)
        texts = [[row.prompt] for row in batch.rows]
        return {**found, "language": {self._config.language_key: texts}}

    def _arrays(self, observation: Observation, prompt: str) -> Observation:
        if isinstance(self._mapping, Identity):
            return {_default_key(key, value): value for key, value in observation.items()}
        made = self._mapping.request(observation, prompt)
        return {key: value for key, value in made.items() if isinstance(value, np.ndarray)}

    def _values(self, reply: Any, rows: int) -> Array:
        parts = reply[0] if isinstance(reply, (list, tuple)) and reply else reply
        if not isinstance(parts, Mapping) or not parts:
            raise PolicyError(f"{self._address} answered without actions: {reply!r:.200}")
        names = self._config.actions or tuple(parts)
        missing = [name for name in names if name not in parts]
        if missing:
            raise PolicyError(
                f"{self._address} answered without {missing[0]!r}; it has: {', '.join(parts)}. "
                f"Set --policy.actions."
            )
        arrays = [_steps(parts[name], rows, name) for name in names]
        if len({array.shape[:2] for array in arrays}) > 1:
            shapes = {name: a.shape for name, a in zip(names, arrays, strict=True)}
            raise ChunkShapeError(f"{self._address} answered with parts of {shapes}.")
        values = np.concatenate(arrays, axis=-1)
        return np.stack([self._mapping.actions(chunk) for chunk in values])

    def _wait_until_ready(self) -> None:
        limit_s = self._config.ready_timeout_s
        deadline = time.monotonic() + limit_s
        with awaiting(f"a GR00T server at {self._address}, up to {limit_s:.0f} s"):
            while not self._is_ready:
                left_s = deadline - time.monotonic()
                try:
                    self._ask("ping", None, max(0.01, min(PING_S, left_s)))
                    self._is_ready = True
                except TimeoutError:
                    if left_s <= 0:
                        raise PolicyUnavailableError(
                            f"No GR00T server answers at {self._address} after {limit_s:.0f} s. "
                            f"Is it running? --policy.ready-timeout-s says how long to wait."
                        ) from None

    def _ask_again(self, data: Any) -> Any:
        for attempt in range(self._config.retries + 1):
            try:
                return self._ask("get_action", data, self._config.timeout_s)
            except TimeoutError as exc:
                if attempt == self._config.retries:
                    raise PolicyUnavailableError(f"Asked {attempt + 1} times: {exc}") from exc
        raise AssertionError("the last attempt returns or raises")

    def _ask(self, endpoint: str, data: Any, timeout_s: float) -> Any:
        import zmq

        if self._socket is None:
            self._socket = zmq.Context.instance().socket(zmq.REQ)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.connect(f"tcp://{self._address}")
        request: dict[str, Any] = {"endpoint": endpoint}
        if data is not None:
            request["data"] = data
        if self._token:
            request["api_token"] = self._token
        self._socket.setsockopt(zmq.SNDTIMEO, int(1e3 * timeout_s))
        self._socket.setsockopt(zmq.RCVTIMEO, int(1e3 * timeout_s))
        try:
            self._socket.send(msgpack.packb(request, default=_encode))
            frame = self._socket.recv()
        except zmq.Again as exc:
            self._drop()
            raise TimeoutError(
                f"{self._address} did not answer {endpoint!r} within {timeout_s:.1f} s"
            ) from exc
        except BaseException:
            self._drop()
            raise
        return self._read(frame)

    def _read(self, frame: bytes) -> Any:
        try:
            reply = msgpack.unpackb(frame, object_hook=_decode)
        except (ValueError, TypeError, KeyError, EOFError, msgpack.UnpackException) as exc:
            raise WireError(f"{self._address} sent what cannot be read: {exc}") from exc
        if isinstance(reply, Mapping) and "error" in reply:
            raise PolicyError(f"{self._address} answered with an error: {reply['error']}")
        return reply

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None


def _default_key(key: str, value: Array) -> str:
    name = key.rpartition("/")[2]
    return f"video/{name}" if value.ndim == 3 and value.dtype == np.uint8 else f"state/{name}"


def _steps(value: Any, rows: int, name: str) -> Array:
    """One part of an action as `[N, T, d]`."""
    array = np.asarray(value)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or len(array) != rows:
        raise ChunkShapeError(f"{name!r} has shape {array.shape}; needed ({rows}, T, A).")
    return array


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        return {"__ndarray_class__": True, "as_npy": file.getvalue()}
    raise TypeError(f"{type(value).__name__} is neither plain data nor an array")


def _decode(found: dict[str, Any]) -> Any:
    if "__ndarray_class__" in found:
        return np.load(io.BytesIO(found["as_npy"]), allow_pickle=False)
    return found
