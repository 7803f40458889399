"""`vla-eval://host:8000`: a policy behind a model server of vla-eval's.

Their server keeps what is left of a chunk itself, by connection. So each attempt has a connection
of its own, and asks at every step: every step is rendered, and hocket gains nothing from chunks
here. Where an answer is no action to this very observation the attempt ends: after an episode
whose beginning failed, their stream is one step late.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

import numpy as np
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from hocket import __version__
from hocket.adapters.policies import vla_eval_wire as wire
from hocket.adapters.policies.mapping import Identity, check_env, open_mapping, spec_fields
from hocket.adapters.policies.openpi.connection import Endpoint, parse_endpoint
from hocket.core.data import Actions, Array, Batch, Observation, Row
from hocket.core.specs import EnvSpec, PolicySpec
from hocket.errors import (
    ChunkShapeError,
    ObservationError,
    PolicyError,
    PolicyUnavailableError,
    SessionLostError,
    SpecMismatchError,
    WireError,
)
from hocket.system.waits import awaiting

CONCURRENCY = 32
"""Attempts that are asked about at once."""
_LOOK_S = 0.5
"""Seconds between two looks at a server that is not up."""
WANTS_WRIST, WANTS_STATE = "send_wrist_image", "send_state"
_SEEDS = ("seed", "env_seed")
PARAMS_FACT = "params"
"""The fact in which a `vla-eval:` env tells what its benchmark was made with, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VlaEvalConfig:
    mapping: str = ""
    """A .yaml file or package.module:Class that makes the keys that the server reads; empty sends
    pictures as images/NAME and the rest as it is called, without observation/."""
    provides: tuple[str, ...] = ()
    """What the server wants of an env that the mapping or the env is known to give, by the names
    that the server has for it: absolute_action, say."""
    timeout_s: float = 60.0
    """Seconds for one answer."""
    ready_timeout_s: float = 240.0
    """Seconds for the server to come up, and for the first answer of an attempt."""

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or self.ready_timeout_s <= 0:
            raise ValueError("timeout_s and ready_timeout_s must be more than 0")


class VlaEval:
    """A policy that keeps state for each attempt: so does its server."""

    Config = VlaEvalConfig

    def __init__(self, argument: str, config: VlaEvalConfig | None = None) -> None:
        self._config = config or VlaEvalConfig()
        self._endpoint = parse_endpoint(argument, "vla-eval")
        self._address = self._endpoint.name
        self._mapping = open_mapping(self._config.mapping)
        self._lanes: dict[str, _Attempt] = {}
        """By session."""
        self._lock = threading.Lock()
        self._hello: Mapping[str, Any] | None = None
        """What the server says of itself."""

    @property
    def spec(self) -> PolicySpec:
        fields = {} if isinstance(self._mapping, Identity) else spec_fields(self._mapping)
        # Rows in one call would end together; so each has a call of its own, many at once.
        return PolicySpec(
            chunk_length=0, max_batch=1, concurrency=CONCURRENCY, keyed_noise=False, **fields
        )

    def bind(self, spec: EnvSpec) -> None:
        """See that the env gives what the server wants of it."""
        check_env(self._mapping, self._config.mapping, spec)
        pictures = [key for key, one in spec.observations.items() if len(one.shape) == 3]
        given = {
            WANTS_WRIST: len(pictures) > 1,
            WANTS_STATE: len(pictures) < len(spec.observations),
            **dict.fromkeys(_SEEDS, True),  # each trial has one of its own
            **dict.fromkeys(self._config.provides, True),
        }
        params = json.loads(spec.facts.get(PARAMS_FACT, "{}"))
        wanted = self._says().get("observation_params")
        wanted = dict(wanted) if isinstance(wanted, Mapping) else {}
        for name, value in wanted.items():
            if value is False or value is None or given.get(str(name)):
                continue
            if name in params and params[name] == value:
                continue
            advice = f"Where it does: --policy.provides {name}."
            if PARAMS_FACT in spec.facts:
                advice = f"Make it do so: --env.params '{json.dumps({**params, **wanted})}'."
            raise SpecMismatchError(
                f"The server at {self._address} wants {name} = {value!r} of its env; nothing "
                f"says that task {spec.task.name!r} gives that. {advice}"
            )

    def begin_session(self, row: Row) -> None:
        self._says()
        try:
            attempt = _Attempt(self._endpoint, self._config)
            attempt.begin(row)
        except (OSError, WebSocketException) as exc:
            raise PolicyUnavailableError(f"vla-eval://{self._address}: {exc}") from exc
        self._lanes[row.session] = attempt

    def end_session(self, session: str) -> None:
        attempt = self._lanes.pop(session, None)
        if attempt is not None:
            attempt.end()

    def infer(self, batch: Batch) -> Actions:
        """The server's answer to one row, asked on the connection of its attempt."""
        (row,) = batch.rows
        attempt = self._lanes.get(row.session)
        if attempt is None:
            raise SessionLostError("The server's state of this attempt is gone.")
        seen = {key: value[0] for key, value in batch.arrays.items()}
        try:
            chunk = self._mapping.actions(attempt.act(self.request(seen, row.prompt)))
        except BaseException:
            # Nothing that comes on this connection could be told from what was asked before.
            self._lanes.pop(row.session, None)
            attempt.drop()
            raise
        return Actions(chunk[None], source=f"vla-eval://{self._address}")

    def request(self, observation: Observation, prompt: str) -> dict[str, Any]:
        """What the server is sent for one env's observation."""
        found: dict[str, Any] = {}
        if isinstance(self._mapping, Identity):
            for key, value in observation.items():
                name = key.removeprefix("observation/")
                if value.ndim == 3:
                    found.setdefault("images", {})[name.rpartition("/")[2]] = value
                else:
                    found[name] = value
        else:
            found = self._mapping.request(observation, prompt)
            prompt = found.pop("prompt", prompt)
        return {**found, "task_description": prompt}

    def close(self) -> None:
        for attempt in self._lanes.values():
            attempt.drop()
        self._lanes.clear()

    def _says(self) -> Mapping[str, Any]:
        """The server's hello, once it is up."""
        with self._lock:
            if self._hello is None:
                self._await_health()
                attempt = _Attempt(self._endpoint, self._config)
                self._hello = attempt.hello
                attempt.drop()
            return self._hello

    def _await_health(self) -> None:
        url = urljoin(self._endpoint.uri.replace("ws", "http", 1), "/health")
        limit_s = self._config.ready_timeout_s
        halt = threading.Event()
        said = ""
        with awaiting(f"the model server at {self._address}, up to {limit_s:.0f} s"):
            for _ in range(max(1, int(limit_s / _LOOK_S))):
                try:
                    with urllib.request.urlopen(url, timeout=self._config.timeout_s):
                        return
                except OSError as exc:
                    if getattr(exc, "code", None) in (404, 426):  # an older one does not tell
                        return
                    said = str(exc)
                halt.wait(_LOOK_S)
        raise PolicyUnavailableError(
            f"No model server answered at {self._address} for {limit_s:.0f} s ({said}). Is it "
            "running? --policy.ready-timeout-s says how long to wait."
        )


class _Attempt:
    """One connection, and the attempt that it is for."""

    def __init__(self, endpoint: Endpoint, config: VlaEvalConfig) -> None:
        self._name, self._config = f"vla-eval://{endpoint.name}", config
        self._number = 0
        self._timeout_s = config.ready_timeout_s
        opening = connect(
            endpoint.uri,
            compression=None,
            max_size=None,
            proxy=None,
            ping_interval=None,
            open_timeout=config.timeout_s,
            close_timeout=1.0,
        )
        self._opened = contextlib.ExitStack()
        self._socket: ClientConnection = self._opened.enter_context(opening)
        try:
            says = {"harness_version": f"hocket {__version__}"}
            hello = {**says, "protocol_version": wire.PROTOCOL_VERSION}
            self.hello = self._ask(wire.HELLO, hello, wire.HELLO)
        except BaseException:
            self.drop()
            raise
        version = self.hello.get("protocol_version")
        if version != wire.PROTOCOL_VERSION:
            self.drop()
            raise PolicyError(f"{self._name} speaks version {version!r} of its protocol, not 1.")

    def begin(self, row: Row) -> None:
        task = {"suite": row.trial.suite, "name": row.trial.task, "episode_idx": row.trial.repeat}
        self._say(wire.BEGIN, {"task": {**task, "seed": row.trial.seed, "prompt": row.prompt}})

    def act(self, observation: Mapping[str, Any]) -> Array:
        """The server's action `[1, A]`, or the chunk `[T, A]` of one that does not keep it."""
        reply = self._ask(wire.OBSERVATION, observation, wire.ACTION)
        self._timeout_s = self._config.timeout_s
        actions = np.asarray(reply.get("actions", reply.get("action")))
        if actions.ndim == 1 and actions.dtype.kind in "fiu":
            actions = actions[None]
        if actions.ndim != 2 or 0 in actions.shape or actions.dtype.kind not in "fiu":
            raise ChunkShapeError(f"{self._name} answered with {list(reply)}; needed 'actions'.")
        return actions

    def end(self) -> None:
        try:
            self._say(wire.END, {})
            self._opened.close()
        except (OSError, WebSocketException):
            self.drop()

    def drop(self) -> None:
        """End it at once, without a word."""
        with contextlib.suppress(OSError):
            self._socket.socket.shutdown(socket.SHUT_RDWR)
        self._opened.close()

    def _say(self, kind: str, payload: Mapping[str, Any]) -> int:
        self._number += 1
        try:
            self._socket.send(wire.pack_message(kind, payload, self._number))
        except TypeError as exc:
            raise ObservationError(f"An observation cannot be sent to vla-eval: {exc}") from exc
        return self._number

    def _ask(self, kind: str, payload: Mapping[str, Any], wanted: str) -> dict[str, Any]:
        try:
            number = self._say(kind, payload)
            found, reply, answers = wire.unpack_message(self._socket.recv(timeout=self._timeout_s))
        except TimeoutError as exc:
            raise SessionLostError(
                f"{self._name} did not answer within {self._timeout_s:.0f} s."
            ) from exc
        except (OSError, WebSocketException) as exc:
            raise SessionLostError(f"{self._name} was lost: {exc}") from exc
        except WireError as exc:
            raise WireError(f"{self._name}: {exc}") from exc
        if found == wire.ERROR:
            raise PolicyError(f"{self._name} answered with an error:\n{reply.get('error', reply)}")
        if answers != number or found != wanted:
            raise SessionLostError(
                f"{self._name} answered message {answers} where {number} was asked: its stream is "
                "late, and none of it can be used."
            )
        return reply
