"""Requests answered by a policy of this process, batched across all callers."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from hocket.adapters.policies.openpi.protocol import EXTENSION, Announcement, announce
from hocket.adapters.policies.openpi.shared import this_machine
from hocket.core.codec import pack
from hocket.core.contracts.policy import Binds, Continues, Policy, Sessions
from hocket.core.data import Observation, Row, Trial
from hocket.core.specs import ActionSpec, ArraySpec, EnvSpec, PolicySpec, TaskInfo
from hocket.engine.inferring.deadline import InferDeadline
from hocket.errors import ChunkValueError, HocketError, ObservationError, PolicyError, WireError
from hocket.serve.batching import Batcher, Served, TooLate
from hocket.serve.clients import VLLM_OMNI, Caller, Client, Clients
from hocket.serve.frames import FrameReader, frame_limits, most_bytes, unpack_map
from hocket.serve.metrics import Metrics
from hocket.serve.requests import (
    ExtendedRequest,
    Requests,
    StockRequest,
    row_inputs,
)
from hocket.serve.shared import SharedReader

MAX_SHARED_BYTES = 1 << 32
"""Bytes read from shared memory at most, where the policy does not say what it reads."""
_LOG = logging.getLogger("hocket.serve")
STOCK_SUITE = "openpi"
"""Suite of the trials that rows of stock clients stand for."""


class Backend(Protocol):
    """What answers frames. `answer` raises for the caller's own error, and the connection then
    ends; CameTwice for a numbered request that it answered before."""

    max_request_bytes: int | None
    """The longest useful frame; None where nobody can say. Valid after `start`."""

    async def start(self) -> Mapping[str, Any]:
        """Get ready, and return the metadata."""
        ...

    async def answer(self, caller: Caller, frame: bytes) -> bytes | None:
        """The reply; None where there is none."""
        ...

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
    """Numbers in an action, from -1 to 1, for policies that adapt to an env."""
    seed: int = 0
    """Seeds the noise for requests that bring no seed of their own."""
    max_queue: int = 1024
    warm_up: bool = True
    infer_timeout_s: float | None = None
    """See `hocket.engine.inferring.deadline.InferDeadline`."""


class PolicyBackend:
    def __init__(self, policy: Policy, options: PolicyOptions, metrics: Metrics) -> None:
        self._policy = policy
        self._options = options
        self._metrics = metrics
        self._is_stateful = isinstance(policy, Sessions)
        self._continuations = tuple(policy.continuations) if isinstance(policy, Continues) else ()
        self._continued: tuple[str, Mapping[str, Any]] | None = None
        """How chunks are continued, once a client has said so."""
        self._continuing: set[Client] = set()
        """The clients that have asked for that, and have not left."""
        # One at a time: the policy is told on a thread.
        self._telling = asyncio.Lock()
        self._asked = itertools.count()
        self._stand_in: EnvSpec | None = None
        if options.action_size is not None:
            self._stand_in = _stand_in_env(options.action_size)
            if isinstance(policy, Binds):
                policy.bind(self._stand_in)
        self._spec = policy.spec
        self.max_request_bytes = most_bytes(self._spec)
        self._shared = SharedReader(self.max_request_bytes or MAX_SHARED_BYTES)
        self._requests = Requests(self._spec, self._shared)
        self._frames = FrameReader(frame_limits(self._spec, options.max_queue))
        size = self._spec.action_size
        self._batcher = Batcher(
            policy,
            options.name,
            metrics,
            max_queue=options.max_queue,
            action_size=size if size is not None else options.action_size,
            deadline=InferDeadline(seconds=options.infer_timeout_s),
        )
        self._clients = Clients(self._batcher.end_session, self._forget)
        self._is_warm = not options.warm_up
        self._warming: asyncio.Future[None] | None = None

    async def start(self) -> Mapping[str, Any]:
        """Warm up where the policy says what it reads; else the first request does."""
        self._batcher.start()
        example = _example(self._spec)
        if example is not None:
            await self._warm_up(self._row(Caller("warm-up"), ""), example)
        announcement = Announcement(
            spec=self._spec,
            instance=secrets.token_hex(8),
            is_stateful=self._is_stateful,
            machine=this_machine(),
            channel=self._shared.listen(),
            continuations=self._continuations,
        )
        return {**self._options.metadata, EXTENSION: announce(announcement)}

    async def answer(self, caller: Caller, frame: bytes) -> bytes | None:
        began = time.perf_counter()
        request = await self._frames.read(frame, self._read)
        reply: Any
        if request is None:
            self.leave(caller)
            caller.asked = 0  # its next row begins an attempt
            reply = {"status": "reset successful"}
        elif isinstance(request, StockRequest):
            reply = await self._answer_stock(caller, request, began)
            if caller.dialect == VLLM_OMNI:
                told = {"type": "error", "message": reply.get("error")}
                reply = reply.get("actions", told)
        else:
            reply = await self._answer_extended(caller, request, began)
        caller.sent_at = time.perf_counter()
        return pack(reply)

    def _read(self, frame: bytes) -> StockRequest | ExtendedRequest | None:
        """A request; None where an attempt ends, which vLLM-Omni's clients say."""
        asked = unpack_map(frame)
        return None if asked.get("endpoint") == "reset" else self._requests.parse(asked)

    def leave(self, caller: Caller) -> None:
        """Drop what the caller waits for, and its sessions. Twice is safe."""
        for lane in caller.lanes:
            self._batcher.close_lane(lane)
        for session in caller.sessions:
            self._batcher.end_session(session)
            self._batcher.forget(session)
        caller.lanes, caller.sessions = [], set()
        self._clients.leave(caller)

    async def close(self) -> None:
        if self._warming is not None:
            self._warming.cancel()
        self._clients.close()
        self._shared.close()
        self._frames.close()
        self._batcher.close()
        if not self._batcher.is_stuck:
            self._policy.close()

    async def _answer_stock(
        self, caller: Caller, request: StockRequest, began: float
    ) -> dict[str, Any]:
        prompt = request.prompt
        row = self._row(caller, self._options.prompt if prompt is None else prompt)
        if self._is_stateful:
            caller.sessions.add(row.session)
        rows = [replace(row, noise_seed=seed) for seed in request.seeds] or [row]
        if len(rows) > 1 and self._is_stateful:
            raise ObservationError("A policy that keeps state takes one 'seed' at a time.")
        count = len(rows)
        views, names = [request.view] * count, [row.session] * count
        try:
            found = await self._infer(caller, names, rows, views, request.within_s)
        except TooLate as exc:  # a robot that asks in time the next time keeps its connection
            self._metrics.errors["TooLate"] += 1
            return {"error": str(exc), "expected_ms": exc.expected_ms}
        chunks = []
        for one in found:
            if one.chunk is None:
                raise one.error or AssertionError("neither chunk nor error")
            chunks.append(one.chunk.actions)
        served, chunk = found[0], found[0].chunk
        actions = np.stack(chunks) if request.is_many else chunks[0]
        if chunk is None or not np.isfinite(actions).all():
            # A robot may do anything with them; a client of hocket's knows what they mean.
            raise ChunkValueError(
                "The policy answered with NaN or infinite actions, which are not sent on. Look at "
                "the observation."
            )
        timing = {"infer_ms": 1e3 * (time.perf_counter() - began)}
        if caller.sent_at is not None:
            timing["prev_total_ms"] = 1e3 * (began - caller.sent_at)
        self._metrics.answered(count, time.perf_counter() - began)
        return {
            "actions": actions,
            "policy_timing": {"infer_ms": 1e3 * served.infer_s},
            "server_timing": timing,
            EXTENSION: {"version": chunk.version, "batch": served.batch},
        }

    async def _answer_extended(
        self, caller: Caller, request: ExtendedRequest, began: float
    ) -> dict[str, Any]:
        head: dict[str, Any] = {"id": request.number}
        try:
            if request.error is not None:
                raise request.error
            client = self._clients.of(caller, request.client)
            if request.op == "infer":
                caller.take(request.number)
                return await self._answer_rows(caller, client, request, head, began)
            if request.op == "bind":
                await self._bind(client, request)
            elif request.op == "continue":
                async with self._telling:
                    await self._continue(client, request)
            elif request.op == "reset":
                self._clients.end(client, client.session(request.session))
            elif request.op == "leave":
                self._clients.forget(client)
            else:
                raise WireError(f"There is no operation {request.op[:40]!r}.")
        except HocketError as exc:
            # The reply is numbered, so the connection stays in step and need not end.
            return self._told(head, exc)
        return {EXTENSION: head}

    def _told(self, head: dict[str, Any], exc: Exception) -> dict[str, Any]:
        kind = type(exc).__name__
        self._metrics.errors[kind] += 1
        return {EXTENSION: {**head, "error": str(exc), "kind": kind}}

    async def _answer_rows(
        self,
        caller: Caller,
        client: Client,
        request: ExtendedRequest,
        head: dict[str, Any],
        began: float,
    ) -> dict[str, Any]:
        rows = [
            replace(
                sent.row,
                session=client.session(sent.row.session),
                env=None if sent.env is None else client.env(sent.env),
            )
            for sent in request.rows
        ]
        if self._is_stateful:
            self._clients.use(client, [(row.session, row.chunk == 0) for row in rows])
        names = [client.session(row.trial.id) for row in rows]
        served = await self._infer(caller, names, rows, request.views)
        for one in served:
            if one.error is not None:
                return self._told(head, one.error)
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

    async def _bind(self, client: Client, request: ExtendedRequest) -> None:
        assert request.spec is not None
        if client.knows(request.env, request.plain):
            return
        if isinstance(self._policy, Binds):
            await asyncio.to_thread(self._policy.bind, request.spec)
        client.tell(request.env, request.plain, request.spec)

    async def _continue(self, client: Client, request: ExtendedRequest) -> None:
        """Let the policy continue the chunks of rows with committed actions. It does so in one way
        as long as any client that asked for it is there."""
        asked, known = (request.method, request.settings), self._continuations
        if self._continued == asked:
            self._continuing.add(client)
            return
        if not isinstance(self._policy, Continues) or request.method not in known:
            raise PolicyError(f"The policy cannot continue a chunk by {request.method[:40]!r}.")
        # One that comes back says again what it wants.
        if self._continued is not None and any(c.callers for c in self._continuing - {client}):
            raise PolicyError(
                f"This server continues chunks by {self._continued[0]} with the settings "
                f"{dict(self._continued[1])} already, for another client: one policy does so in "
                "one way. Ask for the same, or serve the policy once more."
            )
        try:
            await asyncio.to_thread(self._policy.continue_by, *asked)
        except Exception as exc:  # A stranger's settings must not end the connection of a policy.
            raise PolicyError(f"The policy cannot continue by {asked[0]} so: {exc}") from exc
        self._continued, self._continuing = asked, {client}

    def _forget(self, client: Client) -> None:
        self._continuing.discard(client)
        self._batcher.forget(client.session(""))

    async def _infer(
        self,
        caller: Caller,
        names: Sequence[str],
        rows: Sequence[Row],
        views: Sequence[Observation],
        within_s: float = math.inf,
    ) -> list[Served]:
        if self._warming is None:
            self._warming = asyncio.ensure_future(self._warm_up(rows[0], views[0]))
        if not self._warming.done():
            await asyncio.wait({self._warming})
        while len(caller.lanes) < len(rows):
            caller.lanes.append(self._batcher.open_lane())
        lanes = caller.lanes[: len(rows)]
        return await asyncio.gather(*self._batcher.submit(lanes, names, rows, views, within_s))

    async def _warm_up(self, row: Row, view: Observation) -> None:
        """Try every batch size, unless that was done. A policy may know only its own tasks: then
        the first request is tried, and tells its client what is wrong."""
        if not self._is_warm:
            try:
                await self._batcher.warm_up(row, view)
                self._is_warm = True
            except Exception as exc:  # noqa: BLE001 - see above
                _LOG.warning("warm-up failed: %s", exc)

    def _row(self, caller: Caller, prompt: str) -> Row:
        """The row of a stock request: a chunk of an attempt as long as its connection."""
        text = f"{self._options.seed}\0{next(self._asked)}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        row = Row(
            trial=Trial(suite=STOCK_SUITE, task=STOCK_SUITE, seed=self._options.seed),
            attempt=0,
            chunk=caller.asked,
            noise_seed=int.from_bytes(digest, "little") >> 1,
            prompt=prompt,
            session=caller.name,
            env=self._stand_in,
        )
        caller.asked += 1
        return row


def _example(spec: PolicySpec) -> Observation | None:
    """An observation of zeros, where the policy says all of what it reads."""
    inputs = row_inputs(spec)
    if not inputs or any(-1 in wanted.shape for wanted in inputs.values()):
        return None
    return {key: np.zeros(wanted.shape, wanted.dtype) for key, wanted in inputs.items()}


def _stand_in_env(action_size: int) -> EnvSpec:
    """A stand-in env for policies that must know one: stock clients tell nothing of theirs."""
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
