"""Answers requests with a policy of this process, batched across all callers."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import secrets
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hocket.adapters.policies.openpi.msgpack_numpy import pack, unpack
from hocket.adapters.policies.openpi.protocol import (
    EXTENSION,
    Announcement,
    announce,
    read_arrays,
    read_observation,
    read_row,
)
from hocket.adapters.policies.openpi.shared import SharedReader, this_machine
from hocket.core.contracts.policy import Binds, Policy, Sessions
from hocket.core.data import (
    ActionSpec,
    ArraySpec,
    EnvSpec,
    Observation,
    PolicySpec,
    Row,
    TaskInfo,
    Trial,
)
from hocket.engine.deadline import InferDeadline
from hocket.errors import HocketError, ObservationError, WireError
from hocket.serve.batching import Batcher, Served
from hocket.serve.metrics import Metrics

MAX_SHARED_BYTES = 1 << 32
"""The largest shared memory file that is mapped."""
SESSION_IDLE_S = 3600.0
"""Seconds without a row after which a session is ended. Chosen by hand; no benchmark row."""
MOST_NUMBERS = 256
"""Requests of a connection that are recognised when they come again. Chosen by hand."""
_LOG = logging.getLogger("hocket.serve")
STOCK_SUITE = "openpi"
"""Suite of the trials that rows of stock clients stand for."""


class CameTwice(Exception):
    """A request came that was answered before: nothing is to be done."""


@dataclass(slots=True, eq=False)
class Caller:
    """One connection, as a backend knows it."""

    name: str
    lanes: list[int] = field(default_factory=list)
    asked: int = 0
    sessions: set[str] = field(default_factory=set)
    sent_at: float | None = None
    """When its last reply had been made."""
    numbers: deque[int] = field(default_factory=lambda: deque(maxlen=MOST_NUMBERS))
    """Numbers of its last requests for chunks."""

    def take(self, number: int) -> None:
        """Remember a request for chunks; CameTwice where that number was taken before: to infer
        once more would move sessions on."""
        if number in self.numbers:
            raise CameTwice
        self.numbers.append(number)


class Backend(Protocol):
    """Answers frames. `answer` raises for the caller's own error; the connection then ends. It
    raises CameTwice for a numbered request that it answered before."""

    async def start(self) -> Mapping[str, Any]:
        """Get ready, and say what the metadata frame holds."""
        ...

    async def answer(self, caller: Caller, frame: bytes) -> bytes: ...

    def leave(self, caller: Caller) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    name: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Sent to clients first, beside hocket's own key."""
    prompt: str = ""
    """The prompt of requests that bring none."""
    action_size: int | None = None
    """For policies that adapt to an env: numbers a step, from -1 to 1."""
    seed: int = 0
    """Seeds the noise for requests that bring no seed of their own."""
    max_queue: int = 1024
    warm_up: bool = True
    infer_timeout_s: float | None = None
    """See `hocket.engine.deadline.InferDeadline`."""


class PolicyBackend:
    def __init__(self, policy: Policy, options: PolicyOptions, metrics: Metrics) -> None:
        self._policy = policy
        self._options = options
        self._metrics = metrics
        self._is_stateful = isinstance(policy, Sessions)
        self._requests = itertools.count()
        self._sessions: dict[str, float] = {}
        """Sessions of extended requests, the one used longest ago first, and when that was."""
        self._shared = SharedReader(MAX_SHARED_BYTES)
        if isinstance(policy, Binds) and options.action_size is not None:
            policy.bind(_stand_in_env(options.action_size))
        self._spec = policy.spec
        size = self._spec.action_size
        self._batcher = Batcher(
            policy,
            options.name,
            metrics,
            max_queue=options.max_queue,
            action_size=size if size is not None else options.action_size,
            deadline=InferDeadline(seconds=options.infer_timeout_s),
        )
        self._is_warm = not options.warm_up
        self._warming: asyncio.Future[None] | None = None

    async def start(self) -> Mapping[str, Any]:
        """Warm up where the policy says what it reads; else the first request does."""
        self._batcher.start()
        example = _example(self._spec)
        if example is not None and not self._is_warm:
            try:
                await self._batcher.warm_up(self._row(Caller("warm-up"), ""), example)
                self._is_warm = True
            except Exception as exc:  # noqa: BLE001 - a policy may know only its own tasks
                _LOG.warning("warm-up waits for the first request: %s", exc)
        announcement = Announcement(
            spec=self._spec,
            instance=secrets.token_hex(8),
            is_stateful=self._is_stateful,
            machine=this_machine(),
        )
        return {**self._options.metadata, EXTENSION: announce(announcement)}

    async def answer(self, caller: Caller, frame: bytes) -> bytes:
        began = time.perf_counter()
        request = unpack(frame)
        if not isinstance(request, Mapping):
            raise WireError(f"A request must be a map, not {type(request).__name__}.")
        if EXTENSION in request:
            reply = await self._answer_extended(caller, request, began)
        else:
            reply = await self._answer_stock(caller, request, began)
        caller.sent_at = time.perf_counter()
        return pack(reply)

    def leave(self, caller: Caller) -> None:
        """Drop what the caller waits for, and its sessions."""
        for lane in caller.lanes:
            self._batcher.close_lane(lane)
        for session in caller.sessions:
            self._batcher.end_session(session)

    async def close(self) -> None:
        if self._warming is not None:
            self._warming.cancel()
        self._batcher.close()
        if not self._batcher.is_stuck:
            self._policy.close()

    async def _answer_stock(
        self, caller: Caller, request: Mapping[str, Any], began: float
    ) -> dict[str, Any]:
        found, prompt = read_observation(request, self._spec.inputs)
        row = self._row(caller, self._options.prompt if prompt is None else prompt)
        if self._is_stateful:
            caller.sessions.add(row.session)
        (served,) = await self._infer(caller, [row], [self._fit(found)])
        if served.chunk is None:
            raise served.error or AssertionError("neither chunk nor error")
        timing = {"infer_ms": 1e3 * (time.perf_counter() - began)}
        if caller.sent_at is not None:
            timing["prev_total_ms"] = 1e3 * (began - caller.sent_at)
        self._metrics.answered(1, time.perf_counter() - began)
        return {
            "actions": served.chunk.actions,
            "policy_timing": {"infer_ms": 1e3 * served.infer_s},
            "server_timing": timing,
            EXTENSION: {"version": served.chunk.version, "batch": served.batch},
        }

    async def _answer_extended(
        self, caller: Caller, request: Mapping[str, Any], began: float
    ) -> dict[str, Any]:
        asked = request[EXTENSION]
        if not isinstance(asked, Mapping) or not isinstance(asked.get("id"), int):
            raise WireError("An extended request needs a number.")
        head: dict[str, Any] = {"id": asked["id"]}
        try:
            op = asked.get("op")
            if op == "infer":
                caller.take(asked["id"])
                return await self._answer_rows(caller, request, head, began)
            if op == "bind":
                await self._bind(asked)
            elif op == "reset":
                session = str(asked.get("session"))
                if self._sessions.pop(session, None) is not None:
                    self._batcher.end_session(session)
            else:
                raise WireError(f"There is no operation {op!r}.")
        except HocketError as exc:
            # The reply is numbered, so the connection stays in step and need not end.
            self._metrics.errors[type(exc).__name__] += 1
            return {EXTENSION: {**head, "error": str(exc), "kind": type(exc).__name__}}
        return {EXTENSION: head}

    async def _answer_rows(
        self, caller: Caller, request: Mapping[str, Any], head: dict[str, Any], began: float
    ) -> dict[str, Any]:
        asked, arrays = request[EXTENSION], request.get("arrays")
        plain = asked.get("rows")
        if not isinstance(plain, list) or not plain:
            raise WireError("An extended request needs rows.")
        rows = [read_row(one) for one in plain]
        if "shared" in asked:
            arrays = self._shared.read(asked["shared"])
        views = [self._fit(view) for view in read_arrays(arrays, len(rows))]
        if self._is_stateful:
            self._touch(rows)
        served = await self._infer(caller, rows, views)
        for one in served:
            if one.error is not None:
                kind = type(one.error).__name__
                self._metrics.errors[kind] += 1
                return {EXTENSION: {**head, "error": str(one.error), "kind": kind}}
        chunks = [one.chunk for one in served if one.chunk is not None]
        if len({chunk.actions.shape for chunk in chunks}) > 1:
            raise ObservationError("Rows of one request were answered with different shapes.")
        self._metrics.answered(len(rows), time.perf_counter() - began)
        extras = {k: np.stack([chunk.extras[k] for chunk in chunks]) for k in chunks[0].extras}
        head["version"] = min(chunk.version for chunk in chunks)
        head["source"] = ",".join(sorted({one.source for one in chunks if one.source})) or None
        return {
            "actions": np.stack([chunk.actions for chunk in chunks]),
            "extras": extras,
            EXTENSION: head,
        }

    def _touch(self, rows: list[Row]) -> None:
        """Keep the sessions of these rows, and end those whose client has sent nothing for long:
        a client that died cannot end them itself."""
        now = time.monotonic()
        for row in rows:
            self._sessions.pop(row.session, None)
            self._sessions[row.session] = now
        while now - next(iter(self._sessions.values())) > SESSION_IDLE_S:
            session = next(iter(self._sessions))
            del self._sessions[session]
            self._batcher.end_session(session)

    async def _bind(self, asked: Mapping[str, Any]) -> None:
        try:
            spec = EnvSpec.from_plain(asked["env"])
        except (KeyError, TypeError, ValueError, IndexError) as exc:
            raise WireError(f"That describes no env: {exc!r}") from exc
        if isinstance(self._policy, Binds):
            await asyncio.to_thread(self._policy.bind, spec)

    async def _infer(
        self, caller: Caller, rows: list[Row], views: list[Observation]
    ) -> list[Served]:
        if self._warming is None:
            self._warming = asyncio.ensure_future(self._warm_up(rows[0], views[0]))
        if not self._warming.done():
            await asyncio.wait({self._warming})
        while len(caller.lanes) < len(rows):
            caller.lanes.append(self._batcher.open_lane())
        lanes = caller.lanes[: len(rows)]
        return await asyncio.gather(*self._batcher.submit(lanes, rows, views))

    async def _warm_up(self, row: Row, view: Observation) -> None:
        """Warm up with the first request, where the policy does not say what it reads."""
        if self._is_warm:
            return
        try:
            await self._batcher.warm_up(row, view)
        except Exception as exc:  # noqa: BLE001 - the request itself then tells its client
            _LOG.warning("warm-up failed: %s", exc)
        self._is_warm = True

    def _row(self, caller: Caller, prompt: str) -> Row:
        """What a stock request stands for: a chunk of an attempt as long as its connection."""
        text = f"{self._options.seed}\0{next(self._requests)}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        row = Row(
            trial=Trial(suite=STOCK_SUITE, task=STOCK_SUITE, seed=self._options.seed),
            attempt=0,
            chunk=caller.asked,
            noise_seed=int.from_bytes(digest, "little") >> 1,
            prompt=prompt,
            session=caller.name,
        )
        caller.asked += 1
        return row

    def _fit(self, found: Observation) -> Observation:
        """The keys that the policy reads, in its dtypes; all keys where it does not say."""
        inputs = self._spec.inputs
        if inputs is None:
            if not found:
                raise ObservationError("The observation is empty.")
            return found
        fitted = {}
        for key, wanted in inputs.items():
            value = found.get(key)
            if value is None:
                raise ObservationError(
                    f"The observation lacks {key!r}; it has: "
                    f"{', '.join(sorted(found)) or 'nothing'}."
                )
            sizes = zip(value.shape, wanted.shape, strict=False)
            if value.ndim != len(wanted.shape) or any(w not in (-1, n) for n, w in sizes):
                raise ObservationError(
                    f"{key!r} has shape {value.shape}; the policy takes {wanted.shape}."
                )
            if not np.can_cast(value.dtype, wanted.dtype, "same_kind"):
                raise ObservationError(
                    f"{key!r} has dtype {value.dtype}; the policy takes {wanted.dtype}."
                )
            fitted[key] = value.astype(wanted.dtype, copy=False)
        return fitted


def _example(spec: PolicySpec) -> Observation | None:
    """An observation of zeros, where the policy says all of what it reads."""
    if not spec.inputs or any(-1 in wanted.shape for wanted in spec.inputs.values()):
        return None
    return {key: np.zeros(wanted.shape, wanted.dtype) for key, wanted in spec.inputs.items()}


def _stand_in_env(action_size: int) -> EnvSpec:
    """An env for policies that want to know one, where stock clients tell nothing of theirs."""
    bound = np.ones(action_size)
    return EnvSpec(
        task=TaskInfo(name=STOCK_SUITE),
        action=ActionSpec(
            size=action_size, kind="box", shape=(action_size,), dtype="<f4", low=-bound, high=bound
        ),
        observations={"observation/state": ArraySpec(shape=(-1,), dtype="<f4")},
        cameras=(),
        abilities=(),
    )
