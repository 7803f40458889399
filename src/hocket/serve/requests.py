"""What clients ask: the maps of their frames, checked against what the served policy reads."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hocket.adapters.policies.openpi.protocol import (
    EXTENSION,
    read_observation,
)
from hocket.adapters.policies.rtc import KEYS
from hocket.core.codec import pack
from hocket.core.contracts.policy import NOISE, PREFIX
from hocket.core.data import Array, Observation, Row, Trial
from hocket.core.specs import ArraySpec, EnvSpec, PolicySpec
from hocket.errors import HocketError, ObservationError, WireError
from hocket.serve.shared import SharedReader

_BESIDE = ("endpoint", "session_id")
"""Texts of vLLM-Omni's clients that are no part of an observation."""
MAX_SEEDS = 64
"""Answers that a stock request may ask for."""


def row_inputs(spec: PolicySpec) -> Mapping[str, ArraySpec] | None:
    """What the policy reads of one row, all steps of its history together."""
    if spec.inputs is None or spec.history == 1:
        return spec.inputs
    return {
        key: replace(wanted, shape=(spec.history, *wanted.shape))
        for key, wanted in spec.inputs.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRow:
    """A row as it came: only its client says which session and env it names."""

    row: Row
    env: int | None
    """The client's number for the env; None where the client told of none."""


def read_row(plain: Any) -> SentRow:
    """A row as it came; WireError where it is none."""
    try:
        (suite, task, seed, repeat), attempt, chunk, noise_seed, prompt, session, env = plain
        numbers = (seed, repeat, attempt, chunk, noise_seed, 0 if env is None else env)
        if not all(type(number) is int for number in numbers):
            raise TypeError("a number is none")
        if not all(isinstance(text, str) for text in (suite, task, prompt, session)):
            raise TypeError("a text is none")
    except (TypeError, ValueError) as exc:
        raise WireError(f"{reprlib.repr(plain)} does not describe a row.") from exc
    row = Row(
        trial=Trial(suite=suite, task=task, seed=seed, repeat=repeat),
        attempt=attempt,
        chunk=chunk,
        noise_seed=noise_seed,
        prompt=prompt,
        session=session,
    )
    return SentRow(row=row, env=env)


def read_arrays(found: Any, count: int) -> list[Observation]:
    """The observations of an extended request, one for each of its rows."""
    if not isinstance(found, Mapping):
        raise WireError("An extended request needs `arrays`.")
    for key, value in found.items():
        if not isinstance(value, np.ndarray) or value.ndim < 1 or len(value) != count:
            raise ObservationError(f"{key!r} must be an array with one row for each of {count}.")
    return [{key: value[i] for key, value in found.items()} for i in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StockRequest:
    """One observation, as any OpenPI client sends it."""

    view: Observation
    prompt: str | None
    seeds: tuple[int, ...] = ()
    """What its noise follows from: an answer for each; none where the server chooses."""
    is_many: bool = False
    """It asked for several answers, also where that is one."""
    within_s: float = math.inf
    """Seconds until its chunk is needed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExtendedRequest:
    """A request of hocket's own client. Its reply repeats the number and says what is wrong with
    it, so that the connection stays in step."""

    number: int
    op: str
    client: object
    error: HocketError | None = None
    rows: tuple[SentRow, ...] = ()
    views: tuple[Observation, ...] = ()
    env: int = 0
    """The client's number for the env that it announces."""
    plain: bytes = b""
    """That env as packed bytes."""
    spec: EnvSpec | None = None
    """... and as it is."""
    session: str = ""
    method: str = ""
    """How chunks are to be continued, ..."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """... with which settings."""


class Requests:
    """Turns frames' maps into requests for one policy. Its methods run on any thread."""

    def __init__(self, spec: PolicySpec, shared: SharedReader) -> None:
        self._inputs = row_inputs(spec)
        self._is_keyed, self._noise = spec.keyed_noise, spec.noise
        self._shared = shared

    def parse(self, request: Mapping[str, Any]) -> StockRequest | ExtendedRequest:
        if EXTENSION not in request:
            return self._parse_stock(request)
        asked = parse_extended(request[EXTENSION])
        if asked.op != "infer" or asked.error is not None:
            return asked
        try:
            return replace(asked, views=self._views(asked, request))
        except HocketError as exc:
            return replace(asked, error=exc)

    def _parse_stock(self, request: Mapping[str, Any]) -> StockRequest:
        left, inputs = dict(request), self._inputs or ()
        for key in _BESIDE:
            if isinstance(left.get(key), str):
                del left[key]
        wanted = left.pop("seed", None) if "seed" not in inputs else None
        seeds = wanted if isinstance(wanted, list) else [] if wanted is None else [wanted]
        sound = all(type(seed) is int and 0 <= seed < 1 << 63 for seed in seeds)
        if not sound or wanted == [] or len(seeds) > MAX_SEEDS:
            raise ObservationError(
                f"'seed' must be a whole number of at most 63 bits, or a list of up to {MAX_SEEDS}."
            )
        if seeds and not self._is_keyed:
            raise ObservationError("The policy draws noise of its own, so that no 'seed' counts.")
        if NOISE in left and NOISE not in inputs and not self._noise:
            raise ObservationError("The policy takes no 'noise'. Choose it by a 'seed'.")
        within_ms = left.pop("deadline_ms", math.inf)
        if type(within_ms) not in (int, float) or not within_ms > 0:
            raise ObservationError("'deadline_ms' must be milliseconds, above 0.")
        keys = None if self._inputs is None else {*self._inputs, NOISE}
        found, prompt = read_observation(left, keys)
        return StockRequest(
            view=self.fit(found, request),
            prompt=prompt,
            seeds=tuple(seeds),
            is_many=isinstance(wanted, list),
            within_s=within_ms / 1e3,
        )

    def _views(self, asked: ExtendedRequest, request: Mapping[str, Any]) -> tuple[Observation, ...]:
        arrays = request.get("arrays")
        if "shared" in request[EXTENSION]:
            arrays = self._shared.read(str(asked.client), request[EXTENSION]["shared"])
        return tuple(self.fit(view) for view in read_arrays(arrays, len(asked.rows)))

    def fit(self, found: Observation, sent: Mapping[str, Any] | None = None) -> Observation:
        """The keys that the policy reads, in its dtypes; all keys where it does not say. `sent` is
        the whole request, for the error."""
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
        if self._noise and NOISE in found:
            wanted_noise = ArraySpec(shape=self._noise, dtype="float32")
            fits[NOISE] = _fitting(NOISE, found[NOISE], wanted_noise)
        return {**fits, **{key: _committed(key, found[key]) for key in KEYS if key in found}}


def parse_extended(asked: Any) -> ExtendedRequest:
    """What a client of hocket's asks, less its arrays."""
    if not isinstance(asked, Mapping) or type(asked.get("id")) is not int:
        raise WireError("An extended request needs a number.")
    op = str(asked.get("op"))
    request = ExtendedRequest(number=asked["id"], op=op, client=asked.get("client"))
    try:
        if op == "infer":
            return replace(request, rows=_rows(asked.get("rows")))
        if op == "bind":
            return _with_env(request, asked)
        if op == "continue":
            return _with_continuation(request, asked)
    except HocketError as exc:
        return replace(request, error=exc)
    return replace(request, session=str(asked.get("session")))


def _rows(plain: Any) -> tuple[SentRow, ...]:
    if not isinstance(plain, list) or not plain:
        raise WireError("An extended request needs rows.")
    return tuple(map(read_row, plain))


def _with_env(request: ExtendedRequest, asked: Mapping[str, Any]) -> ExtendedRequest:
    number = asked.get("number")
    if type(number) is not int:
        raise WireError("An env that is told of needs a number.")
    try:
        spec, plain = EnvSpec.from_plain(asked["env"]), pack(asked["env"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as exc:
        raise WireError(f"That describes no env: {exc!r}") from exc
    return replace(request, env=number, plain=plain, spec=spec)


def _with_continuation(request: ExtendedRequest, asked: Mapping[str, Any]) -> ExtendedRequest:
    method, settings = asked.get("method"), asked.get("settings")
    if not isinstance(method, str) or not isinstance(settings, Mapping):
        raise WireError("To continue chunks takes a method and settings.")
    if not all(isinstance(value, (str, int, float)) for value in settings.values()):
        raise WireError("Settings of how to continue chunks are texts and numbers.")
    plain = {str(key): value for key, value in settings.items()}
    return replace(request, method=method, settings=plain)


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
    try:
        with np.errstate(over="raise"):
            return value.astype(wanted.dtype, copy=False)
    except FloatingPointError as exc:
        raise ObservationError(f"{key!r} has numbers too large for {wanted.dtype}.") from exc
