"""What clients ask, read from frames: within limits, and off the event loop where it takes long.

A frame is a stranger's. It is measured before it is read, by what the served policy can need at
most, and a large one is read on another thread: nobody else waits for it. Each connection has one
frame in hand at a time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from hocket.adapters.policies.openpi.msgpack_numpy import SMALL_BYTES, FrameLimits, pack, unpack
from hocket.adapters.policies.openpi.protocol import (
    EXTENSION,
    SentRow,
    read_arrays,
    read_observation,
    read_row,
)
from hocket.adapters.policies.openpi.shared import SharedReader
from hocket.adapters.policies.rtc import KEYS
from hocket.core.contracts.policy import PREFIX
from hocket.core.data import Array, ArraySpec, EnvSpec, Observation, PolicySpec
from hocket.errors import HocketError, ObservationError, WireError

READERS = 2
"""Threads that read large frames. Chosen by hand; no benchmark row."""
SPARE_BYTES = 16 << 20
"""Bytes that a request may have beside what the policy reads: cameras for others, say."""
SPARE_ITEMS = 4096
ROW_ITEMS = 32
"""Values in a frame beside its numbers, and for each row that may wait."""
UNSAID_ITEMS = 1 << 20
"""Numbers that a request may hold outside of arrays where the policy does not say what it reads."""
MAX_DEPTH = 32
SPARE_TEXT = 1 << 20
ROW_TEXT = 1024
"""Bytes of text in a frame, and for each row that may wait."""

Read = TypeVar("Read")


def frame_limits(spec: PolicySpec | None, max_queue: int) -> FrameLimits:
    """What a frame may hold for this policy, None where it says nothing of itself."""
    numbers = _numbers(spec)
    return FrameLimits(
        items=SPARE_ITEMS + ROW_ITEMS * max_queue + (UNSAID_ITEMS if numbers is None else numbers),
        depth=MAX_DEPTH,
        text=SPARE_TEXT + ROW_TEXT * max_queue,
    )


def most_bytes(spec: PolicySpec) -> int | None:
    """The bytes that a request for this policy can need at most; None where it does not say."""
    numbers = _numbers(spec)
    return None if numbers is None else SPARE_BYTES + 8 * numbers * spec.max_batch


def _numbers(spec: PolicySpec | None) -> int | None:
    """Numbers in one row, where the policy says all of what it reads."""
    if spec is None or spec.inputs is None:
        return None
    shapes = [wanted.shape for wanted in spec.inputs.values()]
    if any(-1 in shape for shape in shapes):
        return None
    return spec.history * sum(math.prod(shape) for shape in shapes)


def row_inputs(spec: PolicySpec) -> Mapping[str, ArraySpec] | None:
    """What the policy reads of one row, all steps of its history together."""
    if spec.inputs is None or spec.history == 1:
        return spec.inputs
    return {
        key: replace(wanted, shape=(spec.history, *wanted.shape))
        for key, wanted in spec.inputs.items()
    }


class Frames:
    """Reads frames within limits. To be closed."""

    def __init__(self, limits: FrameLimits) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="hocket-frames")

    async def read(self, frame: bytes, parse: Callable[[Mapping[str, Any]], Read]) -> Read:
        """What `parse` makes of the map in a frame; it runs on another thread for a large one."""
        if len(frame) <= SMALL_BYTES:
            return self._read(frame, parse)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._read, frame, parse)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self, frame: bytes, parse: Callable[[Mapping[str, Any]], Read]) -> Read:
        request = unpack(frame, self._limits)
        if not isinstance(request, Mapping):
            raise WireError(f"A request must be a map, not {type(request).__name__}.")
        return parse(request)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StockRequest:
    """One observation, as any OpenPI client sends it."""

    view: Observation
    prompt: str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExtendedRequest:
    """What a client of hocket's asks. What is wrong with it is told in the reply, which repeats its
    number, so that the connection stays in step."""

    number: int
    op: str
    client: object
    error: HocketError | None = None
    rows: tuple[SentRow, ...] = ()
    views: tuple[Observation, ...] = ()
    env: int = 0
    """Number of the env that it tells of, ..."""
    plain: bytes = b""
    """... the env as it came, ..."""
    spec: EnvSpec | None = None
    """... and as it is."""
    session: str = ""
    method: str = ""
    """How chunks are to be continued, ..."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """... with which settings."""


class Requests:
    """Makes requests for one policy of what frames hold. Its methods run on any thread."""

    def __init__(self, spec: PolicySpec, shared: SharedReader) -> None:
        self._inputs = row_inputs(spec)
        self._shared = shared

    def parse(self, request: Mapping[str, Any]) -> StockRequest | ExtendedRequest:
        if EXTENSION not in request:
            found, prompt = read_observation(request, self._inputs)
            return StockRequest(view=self._fit(found, request), prompt=prompt)
        asked = request[EXTENSION]
        if not isinstance(asked, Mapping) or type(asked.get("id")) is not int:
            raise WireError("An extended request needs a number.")
        op = str(asked.get("op"))
        head: dict[str, Any] = {"number": asked["id"], "op": op, "client": asked.get("client")}
        try:
            if op == "infer":
                return self._parse_rows(head, asked, request.get("arrays"))
            if op == "bind":
                return parse_env(head, asked)
            if op == "continue":
                return parse_continuation(head, asked)
        except HocketError as exc:
            return ExtendedRequest(**head, error=exc)
        return ExtendedRequest(**head, session=str(asked.get("session")))

    def _parse_rows(
        self, head: dict[str, Any], asked: Mapping[str, Any], arrays: Any
    ) -> ExtendedRequest:
        plain = asked.get("rows")
        if not isinstance(plain, list) or not plain:
            raise WireError("An extended request needs rows.")
        rows = tuple(read_row(one) for one in plain)
        if "shared" in asked:
            arrays = self._shared.read(str(head["client"]), asked["shared"])
        views = tuple(self._fit(view) for view in read_arrays(arrays, len(rows)))
        return ExtendedRequest(**head, rows=rows, views=views)

    def _fit(self, found: Observation, sent: Mapping[str, Any] | None = None) -> Observation:
        """The keys that the policy reads, in its dtypes; all keys where it does not say. `sent` is
        what came, where more came than was read."""
        if self._inputs is None:
            if not found:
                raise ObservationError("The observation is empty.")
            return found
        lacks = [key for key in self._inputs if key not in found]
        if lacks:
            came = sorted(map(str, found if sent is None else sent))
            wanted = (f"{key} {list(spec.shape)}" for key, spec in self._inputs.items())
            raise ObservationError(
                f"The observation lacks {lacks[0]!r}; it has: {', '.join(came) or 'nothing'}. The "
                f"policy reads: {', '.join(wanted)}."
            )
        fits = {key: _fitting(key, found[key], wanted) for key, wanted in self._inputs.items()}
        return {**fits, **{key: _committed(key, found[key]) for key in KEYS if key in found}}


def parse_env(head: dict[str, Any], asked: Mapping[str, Any]) -> ExtendedRequest:
    """What a client tells of an env; WireError where it describes none."""
    number = asked.get("number")
    if type(number) is not int:
        raise WireError("An env that is told of needs a number.")
    try:
        spec, plain = EnvSpec.from_plain(asked["env"]), pack(asked["env"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as exc:
        raise WireError(f"That describes no env: {exc!r}") from exc
    return ExtendedRequest(**head, env=number, plain=plain, spec=spec)


def parse_continuation(head: dict[str, Any], asked: Mapping[str, Any]) -> ExtendedRequest:
    """How a client wants its chunks continued; WireError where it does not say."""
    method, settings = asked.get("method"), asked.get("settings")
    if not isinstance(method, str) or not isinstance(settings, Mapping):
        raise WireError("To continue chunks takes a method and settings.")
    if not all(isinstance(value, (str, int, float)) for value in settings.values()):
        raise WireError("Settings of how to continue chunks are texts and numbers.")
    plain = {str(key): value for key, value in settings.items()}
    return ExtendedRequest(**head, method=method, settings=plain)


def _committed(key: str, value: Array) -> Array:
    """What a row says of the actions that are committed."""
    if value.ndim != (2 if key == PREFIX else 0) or value.dtype.kind not in "fiu":
        raise ObservationError(f"{key!r} cannot have shape {value.shape} and dtype {value.dtype}.")
    return value


def _fitting(key: str, value: Array, wanted: ArraySpec) -> Array:
    sizes = zip(value.shape, wanted.shape, strict=False)
    if value.ndim != len(wanted.shape) or any(w not in (-1, n) for n, w in sizes):
        raise ObservationError(f"{key!r} has shape {value.shape}; the policy takes {wanted.shape}.")
    if not np.can_cast(value.dtype, wanted.dtype, "same_kind"):
        raise ObservationError(f"{key!r} has dtype {value.dtype}; the policy takes {wanted.dtype}.")
    return value.astype(wanted.dtype, copy=False)
