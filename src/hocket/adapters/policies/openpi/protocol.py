"""What travels between an OpenPI client and server, stock and with hocket's extensions.

Stock: the server's first frame is its metadata. Then each binary request has one binary reply, in
order; a text frame is an error and ends the connection.

Extended: hocket's server adds a map `hocket` to the metadata, and its clients send requests with a
map `hocket`. `op` says what for: `infer` has several observations, with the noise seed, session and
env of each, and with committed actions where the policy continues chunks; `bind` tells of an env,
`continue` of how chunks are continued, `reset` of a session's end, `leave` of a client's. Each
request has a number, which its reply repeats, and a name that its client drew: sessions and envs
belong to that client, on all of its connections.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from hocket.core.codec import unpack
from hocket.core.data import Array, Batch, Observation
from hocket.core.specs import ArraySpec, EnvSpec, PolicySpec
from hocket.errors import (
    ChunkShapeError,
    HocketError,
    ObservationError,
    PolicyError,
    PolicyUnavailableError,
    SessionLostError,
    StateMovedError,
    WireError,
)

EXTENSION = "hocket"
EXTENSION_VERSION = 2
REPLY_KEYS = ("actions", "action")


class WrongNumberError(WireError):
    """A reply does not carry the number of the request that it came for."""


class SharedArraysError(WireError):
    """Shared arrays cannot be read; the same request with its arrays inside can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What a hocket server says of itself in its metadata."""

    spec: PolicySpec
    instance: str
    """New with every start of the server: no session outlives it."""
    is_stateful: bool
    machine: str | None = None
    """The machine and user it runs as: clients of the same share memory with it ..."""
    channel: str | None = None
    """... over this local socket, which takes memory files."""
    continuations: tuple[str, ...] = ()
    """The methods by which its policy can continue chunks."""


def announce(announcement: Announcement) -> dict[str, Any]:
    spec = {f.name: getattr(announcement.spec, f.name) for f in fields(PolicySpec)}
    if spec["inputs"]:
        spec["inputs"] = {k: [v.shape, v.dtype] for k, v in spec["inputs"].items()}
    return {
        "version": EXTENSION_VERSION,
        "instance": announcement.instance,
        "stateful": announcement.is_stateful,
        "machine": announcement.machine,
        "channel": announcement.channel,
        "continuations": announcement.continuations,
        "spec": spec,
    }


def find_announcement(metadata: Any) -> Announcement | None:
    """What a server's metadata announces; None for a stock server."""
    found = metadata.get(EXTENSION) if isinstance(metadata, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    if found.get("version") != EXTENSION_VERSION:
        raise PolicyUnavailableError(
            f"The server speaks version {found.get('version')!r} of hocket's protocol, this client "
            f"version {EXTENSION_VERSION}. Use the same hocket on both sides."
        )
    try:
        plain = dict(found["spec"])
        inputs = plain.pop("inputs")
        cameras = plain.pop("cameras")
        sizes, noise = plain.pop("batch_sizes"), plain.pop("noise", ())
        origin = {str(k): str(v) for k, v in dict(plain.pop("origin")).items()}
        spec = PolicySpec(
            **plain,
            inputs=inputs
            and {k: ArraySpec(shape=tuple(v[0]), dtype=v[1]) for k, v in inputs.items()},
            cameras=None if cameras is None else tuple(cameras),
            batch_sizes=tuple(sizes),
            noise=tuple(noise),
            origin=origin,
        )
        return Announcement(
            spec=spec,
            instance=str(found["instance"]),
            is_stateful=bool(found["stateful"]),
            machine=found["machine"],
            channel=found["channel"],
            continuations=tuple(map(str, found["continuations"])),
        )
    except (KeyError, TypeError, ValueError, IndexError) as exc:
        raise WireError(f"The server's metadata cannot be read: {exc!r}") from exc


def batch_rows(batch: Batch, envs: Mapping[EnvSpec, int]) -> list[list[Any]]:
    """The rows of a batch as they travel. `envs`: the number of each env that the server knows."""
    return [
        [
            [*row.trial],
            row.attempt,
            row.chunk,
            row.noise_seed,
            row.prompt,
            row.session,
            None if row.env is None else envs.get(row.env),
        ]
        for row in batch.rows
    ]


def bind_key(client: str, number: int) -> bytes:
    """The key of all messages about one env of one client."""
    return f"{client}/{number}".encode()


def continue_key(client: str) -> bytes:
    """The key of all messages about how one client's chunks are continued."""
    return f"{client}/continue".encode()


def read_observation(
    request: Mapping[str, Any], wanted: Container[str] | None = None
) -> tuple[Observation, str | None]:
    """A stock request as a flat observation and its prompt; nested maps get slash keys. Only the
    keys in `wanted` are read, where that is given."""
    observation: Observation = {}
    prompt: str | None = None
    left: list[tuple[Any, Any]] = list(request.items())
    while left:
        key, value = left.pop()
        if not isinstance(key, str):
            raise ObservationError(f"The key {key!r} of an observation is no text.")
        if isinstance(value, Mapping):
            left += [
                (f"{key}/{name}" if isinstance(name, str) else name, value[name]) for name in value
            ]
        elif key == "prompt":
            prompt = _text(value)
        elif wanted is None or key in wanted:
            observation[key] = _numbers(key, value)
    return observation, prompt


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise ObservationError(f"'prompt' must be text, not {type(value).__name__}.")
    return value


def _numbers(key: str, value: Any) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as exc:
        raise ObservationError(f"{key!r} is no array: {exc}") from exc
    if array.dtype.kind not in "biuf":
        raise ObservationError(
            f"{key!r} has dtype {array.dtype}; an observation holds numbers, and text only as "
            f"'prompt'."
        )
    return array


def read_chunk(frame: bytes, reply_key: str = "") -> Array:
    """The actions `[T, A]` in a stock reply."""
    value = reply = unpack(frame)
    if isinstance(reply, Mapping):
        keys = reply_key.split(",") if reply_key else REPLY_KEYS
        present = [key for key in keys if key in reply]
        # SGLang's errors, and vLLM-Omni's.
        told = reply.get("message") if reply.get("type") == "error" else reply.get("error")
        if told and not present:
            raise PolicyError(f"The server answered with an error:\n{told}")
        if not present or (reply_key and len(present) < len(keys)):
            raise PolicyError(
                f"The server answered without {' or '.join(map(repr, keys))}; it sent: "
                f"{', '.join(map(repr, reply)) or 'nothing'}. Set --policy.reply-key."
            )
        value = reply[present[0]]
    try:
        if reply_key and isinstance(reply, Mapping):
            value = np.concatenate([np.asarray(reply[key]) for key in present], axis=-1)
        chunk = np.asarray(value)
    except ValueError as exc:
        raise ChunkShapeError(f"The server answered with actions that are no array: {exc}") from exc
    if chunk.ndim == 3 and len(chunk) == 1:
        chunk = chunk[0]
    if chunk.ndim == 1:
        chunk = chunk[None]
    if chunk.ndim != 2 or 0 in chunk.shape or chunk.dtype.kind not in "fiu":
        raise ChunkShapeError(
            f"The server answered with actions {chunk.shape} of {chunk.dtype}; needed (T, A)."
        )
    return chunk


def read_extended(frame: bytes, number: int) -> Mapping[str, Any]:
    """An extended reply; WrongNumberError unless it answers request `number`."""
    reply = unpack(frame)
    if isinstance(reply, Mapping):
        found = reply.get(EXTENSION)
        asked = found.get("id") if isinstance(found, Mapping) else None
        if type(asked) is int and asked == number:
            return reply
    raise WrongNumberError(f"The server answered something else than request {number}.")


def check_extended(reply: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """The head of an extended reply. Raises the error that it carries."""
    found: Mapping[str, Any] = reply[EXTENSION]
    error = found.get("error")
    if error is not None:
        kind = _KINDS.get(str(found.get("kind")), PolicyError)
        raise kind(f"{source}: {error}")
    return found


_KINDS: Mapping[str, type[HocketError]] = {
    "SessionLostError": SessionLostError,
    "StateMovedError": StateMovedError,
    "SharedArraysError": SharedArraysError,
}
"""Errors of a server that its client knows by name; any other is a PolicyError."""
