"""`openpi://host:8000`: a policy that lives in an OpenPI server, stock or hocket's own.

Nothing is connected before the first question. A stock server is asked row by row over a small pool
of connections; a server that announces hocket's extensions is asked batch by batch, with noise
seeds and sessions. Several addresses with commas between are replicas of one policy.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import ssl
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hocket.adapters.policies.mapping import (
    Embodiment,
    Identity,
    check_env,
    missing_key,
    open_mapping,
    padded,
    spec_fields,
)
from hocket.adapters.policies.openpi import keying
from hocket.adapters.policies.openpi.connection import Endpoint, Read, parse_endpoint
from hocket.adapters.policies.openpi.protocol import (
    EXTENSION,
    Announcement,
    SharedArraysError,
    batch_rows,
    bind_key,
    check_extended,
    continue_key,
    read_chunk,
    read_extended,
    read_observation,
)
from hocket.adapters.policies.openpi.servers import STOCK_CONNECTIONS, Reply, Servers
from hocket.adapters.policies.openpi.shared import WORTH_BYTES, SharedArrays, this_machine
from hocket.adapters.policies.openpi.thread import ServersThread
from hocket.adapters.policies.rtc import KEYS
from hocket.core.codec import pack
from hocket.core.contracts.policy import NOISE, PREFIX
from hocket.core.data import Actions, Array, Batch, Observation, Row
from hocket.core.specs import EnvSpec, PolicySpec
from hocket.errors import ChunkShapeError, ConfigError, PolicyError
from hocket.system.exposure import API_KEY_VARIABLE, read_key


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPIConfig:
    mapping: str = ""
    """droid, libero, aloha, metaworld, bridge, a YAML file, or a module:Class; empty sends the
    env's own keys."""
    connections: int = 0
    """Connections to each server; 0 means 2 for a stock server, more where it announces that."""
    timeout_s: float = 60.0
    """Seconds for one request; each request ahead of it on the same server adds as much."""
    ready_timeout_s: float = 240.0
    """Seconds for a server to come up, or back, and for its first answer."""
    retries: int = 3
    """Times that a question is asked again after a drop."""
    api_key_file: str = ""
    """Holds the server's key; the variable HOCKET_API_KEY does too."""
    ca_file: str = ""
    """Certificate that a wss:// server must prove itself with."""
    reply_key: str = ""
    """The key of the actions in a reply, or several with commas, whose numbers are joined; empty
    takes `actions` or `action`."""
    noise: keying.Wanted = "auto"
    """What a stock server takes its noise from: the request's noise or seed, which is then keyed by
    trial and chunk. auto is noise where the server tells its size, as SGLang does."""
    max_batch: int = 1
    """Rows that a stock server is asked for in one call, one after the other."""
    flush_on_reconnect: bool = False
    """After a lost connection, recall what is left of the chunks that lanes got over it, and ask
    again: for servers that keep state. A stock server keeps none."""

    def __post_init__(self) -> None:
        if self.connections < 0 or self.retries < 0 or self.max_batch < 1:
            raise ValueError("connections and retries must be 0 or more, max_batch 1 or more")
        if self.timeout_s <= 0 or self.ready_timeout_s <= 0:
            raise ValueError("timeout_s and ready_timeout_s must be more than 0")


class OpenPI:
    """A remote policy, which keeps no state unless its server announces that it does."""

    Config = OpenPIConfig

    def __init__(self, argument: str, config: OpenPIConfig | None = None) -> None:
        self._config = config or OpenPIConfig()
        self._endpoints = _endpoints(argument, self._config)
        self._mapping: Embodiment = open_mapping(self._config.mapping)
        # Numbers of several clients, which a gateway may send over one connection, never meet.
        self._numbers = itertools.count(secrets.randbits(48))
        self._name = secrets.token_hex(16)
        """Names this client to servers that keep envs and sessions for it."""
        self._envs: dict[EnvSpec, int] = {}
        """Envs that servers were told of, and the number of each."""
        self._shared: SharedArrays | None = None
        self._channel: str | None = None
        """The local socket for which sharing was tried."""
        # Guards what is below, and the shared memory: threads that ask for the first time at once
        # must share one client.
        self._lock = threading.Lock()
        self._client: ServersThread | None = None
        self._spec: PolicySpec | None = None
        self._announcement: Announcement | None = None
        self._keying: keying.Keying | None = None
        self._is_checked = False

    @property
    def spec(self) -> PolicySpec:
        """What the server announces, and what the mapping makes of it. Connects the first time."""
        self._connect()
        assert self._spec is not None
        return self._spec

    def bind(self, spec: EnvSpec) -> None:
        """Check that an env can feed the mapping, and tell servers of hocket's of the env."""
        check_env(self._mapping, self._config.mapping, spec)
        client = self._connect()
        if self._announcement is not None and isinstance(self._mapping, Identity):
            number = self._envs.setdefault(spec, len(self._envs))
            key = bind_key(self._name, number)
            self._tell_all(client, key, "bind", env=spec.to_plain(), number=number)

    @property
    def continuations(self) -> tuple[str, ...]:
        """The methods that the server announces, with a mapping too: the server is given back its
        own actions, as they were before they were mapped."""
        self._connect()
        return () if self._announcement is None else self._announcement.continuations

    def continue_by(self, method: str, settings: Mapping[str, Any]) -> None:
        """Tell every server, now and whenever it is connected to again."""
        key = continue_key(self._name)
        told = {"method": method, "settings": dict(settings)}
        self._tell_all(self._connect(), key, "continue", **told)

    def infer(self, batch: Batch) -> Actions:
        """The server's answer to all rows of a batch, all from one connection."""
        client = self._connect()
        if self._announcement is None:
            return self._infer_stock(client, batch)
        return self._infer_extended(client, batch)

    def begin_session(self, row: Row) -> None:
        """Tell a server that keeps state of an attempt; others have nothing to know."""
        client = self._connect()
        if self.is_stateful:
            client.run(client.servers.begin(row.session))

    @property
    def is_stateful(self) -> bool:
        """True where the server keeps state for attempts."""
        self._connect()
        return self._announcement is not None and self._announcement.is_stateful

    def end_session(self, session: str) -> None:
        client = self._connect()
        if self.is_stateful:
            request, read = self._extended("reset", session=session)
            reply = client.run(client.servers.end(session, pack(request), read))
            check_extended(reply.answers[0], reply.source)

    @property
    def reconnects(self) -> int:
        client = self._client
        return 0 if client is None else client.servers.reconnects

    @property
    def flushes(self) -> bool:
        return self._config.flush_on_reconnect

    def is_stale(self, source: str) -> bool:
        client = self._client
        return client is not None and not client.servers.knows(source)

    def request(self, observation: Observation, prompt: str) -> dict[str, Any]:
        return self._mapping.request(observation, prompt)

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
            self._stop_sharing()
        if client is not None:
            client.close()

    def servers(self) -> Servers:
        """The same servers for another event loop: what a gateway forwards single rows to."""
        return Servers(self._endpoints, self._config, is_row_wise=True)

    def _connect(self) -> ServersThread:
        with self._lock:
            if self._client is None:
                servers = Servers(self._endpoints, self._config, is_row_wise=False)
                self._client = ServersThread(servers)
            client = self._client
            if self._spec is None:
                connection = client.run(client.servers.connect())
                self._announcement = connection.announcement
                self._keying = keying.find_keying(self._config.noise, connection.metadata)
                self._spec = self._make_spec()
        return client

    def _make_spec(self) -> PolicySpec:
        config, mapping, found = self._config, self._mapping, self._announcement
        if found is not None:
            spec = found.spec
            if len(self._endpoints) > 1:
                spec = replace(spec, concurrency=spec.concurrency * len(self._endpoints))
                if found.is_stateful:
                    spec = replace(spec, max_batch=1)  # rows of one batch may live on two servers
        else:
            # Two calls for each stock server: one that it works on, one that is on its way.
            pool = config.connections or STOCK_CONNECTIONS
            spec = PolicySpec(
                chunk_length=0,
                max_batch=config.max_batch,
                concurrency=pool * len(self._endpoints),
                keyed_noise=self._keying is not None,
                noise=() if self._keying is None else self._keying.shape,
            )
        if isinstance(mapping, Identity):
            return spec
        return replace(spec, inputs=None, **spec_fields(mapping))

    def _infer_stock(self, client: ServersThread, batch: Batch) -> Actions:
        requests = [self._request(batch, i) for i in range(len(batch.rows))]
        read = partial(read_chunk, reply_key=self._config.reply_key)
        try:
            if self._keying is not None:
                self._check_keying(client, self._keying, requests[0], read)
                seeds = [row.noise_seed for row in batch.rows]
                requests = list(map(self._keying.keyed, requests, seeds))
            if NOISE in batch.arrays:
                given = batch.arrays[NOISE]
                requests = [{**one, NOISE: given[i]} for i, one in enumerate(requests)]
            reply = client.run(client.servers.ask(list(map(pack, requests)), read=read))
        except PolicyError as exc:
            if type(exc) is not PolicyError:
                raise
            raise PolicyError(f"{missing_key(str(exc), requests[0])} {exc}") from exc
        chunks = [self._mapping.actions(chunk) for chunk in reply.answers]
        shapes = {chunk.shape for chunk in chunks}
        if len(shapes) != 1:
            raise ChunkShapeError(
                f"{reply.source} answered rows of one batch with {sorted(shapes)}."
            )
        return Actions(padded(np.stack(chunks), batch.pad), source=reply.source)

    def _check_keying(
        self, client: ServersThread, key: keying.Keying, request: dict[str, Any], read: Read[Array]
    ) -> None:
        """Before the first answer counts, see that the noise does."""
        with self._lock:
            if not self._is_checked:
                frames = [pack(key.keyed(request, seed)) for seed in keying.CHECKED]
                reply = client.run(client.servers.ask(frames, read=read))
                keying.check_keyed(reply.answers, key, reply.source)
                self._is_checked = True

    def _infer_extended(self, client: ServersThread, batch: Batch) -> Actions:
        assert self._announcement is not None
        asked = batch if isinstance(self._mapping, Identity) else self._mapped(batch)
        stateful = self._announcement.is_stateful
        sessions = [row.session for row in batch.rows] if stateful else []
        try:
            reply = self._ask_batch(client, asked, sessions)
            answer = reply.answers[0]
            found = check_extended(answer, reply.source)
        except SharedArraysError:
            # This server takes no memory of ours after all: arrays travel from now on.
            with self._lock:
                self._stop_sharing()
            return self._infer_extended(client, batch)
        values = answer.get("actions")
        if not isinstance(values, np.ndarray) or values.ndim != 3 or len(values) != len(batch.rows):
            shape = getattr(values, "shape", None)
            raise ChunkShapeError(
                f"{reply.source} answered {len(batch.rows)} rows with actions {shape}."
            )
        extras = {key: padded(value, batch.pad) for key, value in answer["extras"].items()}
        if not isinstance(self._mapping, Identity):
            if PREFIX in batch.arrays:
                extras.setdefault(PREFIX, padded(values, batch.pad))
            length = values.shape[1]
            values = np.stack([self._mapping.actions(chunk) for chunk in values])
            if PREFIX in batch.arrays and values.shape[1] != length:
                raise ChunkShapeError(
                    f"The mapping {self._config.mapping!r} makes {values.shape[1]} actions of "
                    f"{length}, so that a chunk cannot be continued: use --method naive."
                )
        source = reply.source if not found["source"] else f"{reply.source}/{found['source']}"
        return Actions(padded(values, batch.pad), extras, found["version"], source)

    def _extended(self, op: str, **asked: Any) -> tuple[dict[str, Any], Read[Mapping[str, Any]]]:
        """A numbered request of hocket's protocol, and the function that reads its reply."""
        number = next(self._numbers)
        head = {"op": op, "id": number, "client": self._name}
        return {EXTENSION: {**head, **asked}}, partial(read_extended, number=number)

    def _tell_all(self, client: ServersThread, key: bytes, op: str, **told: Any) -> None:
        request, read = self._extended(op, **told)
        for reply in client.run(client.servers.tell_all(key, pack(request), read)):
            check_extended(reply.answers[0], reply.source)

    def _ask_batch(self, client: ServersThread, batch: Batch, sessions: Sequence[str]) -> Reply:
        rows = batch_rows(batch, self._envs)
        # The batch's padding is never sent.
        arrays = {key: value[: len(rows)] for key, value in batch.arrays.items()}
        is_large = sum(value.nbytes for value in arrays.values()) >= WORTH_BYTES
        shared = self._sharing(client) if is_large else None
        if shared is None:
            request, read = self._extended("infer", rows=rows)
            frame = pack({**request, "arrays": arrays})
            return client.run(client.servers.ask([frame], sessions, read))
        with self._lock:
            written = shared.write(arrays)
        request, read = self._extended("infer", rows=rows, shared=written.description)
        reply = client.run(client.servers.ask([pack(request)], sessions, read))
        with self._lock:
            shared.release(written)
        return reply

    def _sharing(self, client: ServersThread) -> SharedArrays | None:
        """Memory shared with the one server, None where that is elsewhere. Tried once for each
        start of it."""
        found = client.servers.replicas[0].announcement
        if found is None or not found.channel or len(self._endpoints) > 1:
            return None
        with self._lock:
            if found.channel != self._channel:
                self._stop_sharing()
                self._channel = found.channel
                if found.machine and found.machine == this_machine():
                    with contextlib.suppress(SharedArraysError):
                        self._shared = SharedArrays(found.channel, self._name)
            return self._shared

    def _stop_sharing(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    def _request(self, batch: Batch, row: int) -> dict[str, Any]:
        observation = {key: value[row] for key, value in batch.arrays.items()}
        return self.request(observation, batch.rows[row].prompt)

    def _mapped(self, batch: Batch) -> Batch:
        """The batch as the mapping's server would see it. Committed actions and noise are in the
        server's own space already."""
        told = {key: value for key, value in batch.arrays.items() if key in (*KEYS, NOISE)}
        seen = replace(batch, arrays={k: v for k, v in batch.arrays.items() if k not in told})
        found = [read_observation(self._request(seen, i)) for i in range(len(batch.rows))]
        arrays = {key: np.stack([one[key] for one, _ in found]) for key in found[0][0]}
        if told:
            assert self._announcement is not None
            told[PREFIX] = _of_width(told[PREFIX], self._announcement.spec.action_size)
            arrays |= {key: value[: len(batch.rows)] for key, value in told.items()}
        rows = tuple(
            replace(row, prompt=prompt if prompt is not None else row.prompt)
            for row, (_, prompt) in zip(batch.rows, found, strict=True)
        )
        return Batch(arrays=arrays, rows=rows)


def _endpoints(argument: str, config: OpenPIConfig) -> tuple[Endpoint, ...]:
    key = os.environ.get(API_KEY_VARIABLE)
    if config.api_key_file:
        key = read_key(config.api_key_file)
    tls = ssl.create_default_context(cafile=config.ca_file) if config.ca_file else None
    parts = [part.strip() for part in argument.split(",")]
    if not all(parts):
        raise ConfigError(
            "openpi:// needs the address of a server: openpi://host:8000, or several with commas."
        )
    return tuple(replace(parse_endpoint(part), api_key=key or None, tls=tls) for part in parts)


def _of_width(prefix: Array, size: int | None) -> Array:
    """Prefixes `[B, T, size]`. Before anything is committed they are as wide as the env's actions,
    which the server's need not be."""
    if size is None or prefix.shape[2] == size:
        return prefix
    fitting = np.zeros((*prefix.shape[:2], size), prefix.dtype)
    width = min(size, prefix.shape[2])
    fitting[:, :, :width] = prefix[:, :, :width]
    return fitting
