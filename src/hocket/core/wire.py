"""The messages between the engine's process and its workers, and how they become bytes.

A message is a NamedTuple: it packs as a msgpack array behind its place in `MESSAGES`; nothing is
ever pickled. A frame is four bytes of length (little-endian) and then the packed message. Messages
name lanes by their place in the worker, from 0; lists run in parallel.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Union

import msgpack

from hocket.core.data import Array
from hocket.errors import WireError

MAX_FRAME = 1 << 30
_LENGTH = struct.Struct("<I")


# -- To a worker ---------------------------------------------------------------------------------


class Open(NamedTuple):
    """First message: what the worker is for (WorkerSpec, plain)."""

    spec: Mapping[str, Any]


class Describe(NamedTuple):
    """Ask a suite for its tasks; answered by Described."""

    suite: str


class Begin(NamedTuple):
    """Reset lanes for new attempts; answered by Ready, or Failed."""

    lanes: Sequence[int]
    attempts: Sequence[int]
    trials: Sequence[tuple[str, str, int, int]]
    """Suite, task, seed, repeat."""
    max_steps: Sequence[int]
    """0 leaves the limit to the task."""
    final_observation: bool
    """Observe at the end of the episode too."""
    record: Sequence[Mapping[str, Any]]
    """Asked of the sinks for each attempt."""


class Execute(NamedTuple):
    """Run one chunk in each lane; answered by Executed, or Failed."""

    lanes: Sequence[int]
    attempts: Sequence[int]
    chunks: Sequence[int]
    counts: Sequence[int]
    """Actions for each lane."""
    actions: bytes | Array
    """float64, little-endian: each lane's `[count, A]`, one after the other. To a worker in this
    process that gathers, an array `[B, k, A]`, which it reads at once."""
    observe_at: Sequence[int]
    """Offsets inside the chunk to observe at, besides its end."""


class Discard(NamedTuple):
    """Forget these attempts and what was recorded of them."""

    lanes: Sequence[int]
    attempts: Sequence[int]


class Render(NamedTuple):
    """Show an ended attempt again, state by state, to the sinks; answered by Sealed, or Failed.
    For workers that run no attempts beside."""

    lane: int
    attempt: int
    trial: tuple[str, str, int, int]
    outcome: str
    length: int
    states: bytes
    """float64, little-endian: `[length, S]`, the first one at the reset."""
    record: Mapping[str, Any]
    """Asked of the sinks."""


class Close(NamedTuple):
    """Seal what is open, close the env, exit."""


# -- From a worker -------------------------------------------------------------------------------


class Hello(NamedTuple):
    """First message: who this is, and how arrays will travel."""

    pid: int
    python: str
    version: str
    transport: str


class Described(NamedTuple):
    """The tasks of a suite, as plain TaskInfo fields."""

    suite: str
    tasks: Sequence[Mapping[str, Any]]


class Ready(NamedTuple):
    """Lanes were reset and wait for their first chunk."""

    lanes: Sequence[int]
    attempts: Sequence[int]
    prompts: Sequence[str]
    spec: Mapping[str, Any] | None
    """EnvSpec, plain, where it is new to this worker."""
    layout: Sequence[tuple[str, Sequence[int], str, int]] | None
    """Key, shape, dtype and offset of each array, where that is new; with shared memory its file
    descriptor rides on this message."""
    arrays: bytes | None
    """With the inline transport, what shared memory would hold."""
    build_s: float
    reset_s: float


class Executed(NamedTuple):
    """Lanes ran a chunk, up to its end or the episode's."""

    lanes: list[int]
    attempts: list[int]
    chunks: list[int]
    steps: list[int]
    rewards: bytes
    """float64, little-endian: each lane's `[steps]`, one after the other."""
    ends: list[int]
    """0 while the episode goes on, else flags of `END_*`."""
    busy_s: list[float]
    observe_s: list[float]
    arrays: bytes | None


class Sealed(NamedTuple):
    """Files of an attempt that are durable now, relative to the run folder."""

    lane: int
    attempt: int
    files: Sequence[str]


class Failed(NamedTuple):
    """An attempt that an error of env or sink ended; lane -1 speaks for the whole worker."""

    lane: int
    attempt: int
    kind: str
    """Name of the exception."""
    message: str
    traceback: str


class Progress(NamedTuple):
    """Steps executed so far in each lane, where no shared memory tells."""

    steps: Sequence[int]


END_TERMINATED = 1
END_TRUNCATED = 2
END_SUCCESS = 4
END_JUDGED = 8
"""The env said whether it succeeded; without it the outcome is FINISHED."""
END_OBSERVED = 16
"""A final observation is there."""

Message = Union[
    Open,
    Describe,
    Begin,
    Execute,
    Discard,
    Close,
    Hello,
    Described,
    Ready,
    Executed,
    Sealed,
    Failed,
    Progress,
    Render,
]
MESSAGES: tuple[type[Any], ...] = (
    Open,
    Describe,
    Begin,
    Execute,
    Discard,
    Close,
    Hello,
    Described,
    Ready,
    Executed,
    Sealed,
    Failed,
    Progress,
    Render,
)
_CODES = {kind: code for code, kind in enumerate(MESSAGES)}


def pack(message: Message) -> bytes:
    """A message as one frame."""
    body: bytes = msgpack.packb((_CODES[type(message)], *message))
    if len(body) > MAX_FRAME:
        raise WireError(f"A {type(message).__name__} message of {len(body)} bytes is too long.")
    return _LENGTH.pack(len(body)) + body


def unpack(body: bytes | memoryview) -> Message:
    """The message in one frame's body."""
    try:
        code, *fields = msgpack.unpackb(body, strict_map_key=False)
        message: Message = MESSAGES[code](*fields)
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as exc:
        raise WireError(f"A frame of {len(body)} bytes is no message of hocket's: {exc}") from exc
    return message


class Frames:
    """Cuts a byte stream into messages: feed it what was read, take what is whole."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Every message that is whole now, in order."""
        buffer = self._buffer
        if not buffer and len(data) >= 4 and _LENGTH.unpack_from(data)[0] == len(data) - 4:
            return [unpack(memoryview(data)[4:])]  # One whole frame, as nearly always.
        buffer += data
        messages: list[Message] = []
        at = 0
        while len(buffer) - at >= 4:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if length > MAX_FRAME:
                raise WireError(f"A frame claims {length} bytes; the stream is not hocket's.")
            if len(buffer) - at - 4 < length:
                break
            messages.append(unpack(bytes(buffer[at + 4 : at + 4 + length])))
            at += 4 + length
        if at:
            del buffer[:at]
        return messages
