"""Frames of strangers: read within limits, and off the event loop where that takes long.

A frame is measured before anything is made of it, since a byte of it can become a hundred of
Python's objects. The served policy says what it can need at most. A large frame is read on another
thread: nobody else waits for it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from hocket.core.codec import unpack
from hocket.core.specs import PolicySpec
from hocket.errors import WireError

SMALL_BYTES = 1 << 14
"""Bytes of a frame that needs no measuring: each makes one value at most, and all are made in a few
milliseconds."""
READERS = 2
"""Threads that read large frames."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """Upper bounds of a stranger's frame."""

    items: int
    """Values and keys, in all of its maps and lists together."""
    depth: int
    """Maps and lists inside each other."""
    text: int
    """Bytes of text, keys included."""


PLAIN_BYTES = 4 << 20
PLAIN = FrameLimits(items=256, depth=4, text=1 << 14)
"""What a frame of a few pictures, states and a prompt does not exceed. To hand it to another thread
takes longer than to read it."""


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


def unpack_map(frame: bytes) -> Mapping[str, Any]:
    """The map that one frame is."""
    request = unpack(frame)
    if not isinstance(request, Mapping):
        raise WireError(f"A request must be a map, not {type(request).__name__}.")
    return request


class FrameReader:
    """A reader of frames within limits. Close it."""

    def __init__(self, limits: FrameLimits) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="hocket-frames")

    async def read(self, frame: bytes, parse: Callable[[bytes], Read]) -> Read:
        """Parse a frame, on another thread if that takes long."""
        if len(frame) <= SMALL_BYTES or (len(frame) <= PLAIN_BYTES and _is_plain(frame)):
            return parse(frame)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._read, frame, parse)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self, frame: bytes, parse: Callable[[bytes], Read]) -> Read:
        measure(frame, self._limits)
        return parse(frame)


def _is_plain(frame: bytes) -> bool:
    """True where a frame is a few values, such as arrays, which are read in no time."""
    try:
        measure(frame, PLAIN)
    except WireError:
        return False
    return True


def measure(frame: bytes, limits: FrameLimits) -> None:
    """Read the headers of a frame without making anything of it. Raises WireError where it is cut
    short or exceeds the limits."""
    at, items, text = 0, 1, 0
    left, outer = 1, [0]  # values that are still to come: here, and in all that is open around it
    try:
        while outer:
            if not left:
                left = outer.pop()
                continue
            left -= 1
            kind, width, size = _HEADERS[frame[at]]
            at += 1
            if width:
                at += width
                size = int.from_bytes(frame[at - width : at], "big")
            if kind == _PLAIN:
                at += size
                continue
            if kind == _TEXT:
                at += size
                text += size
            elif kind == _REFUSED:
                raise ValueError("it has a type that requests have not")
            else:
                outer.append(left)
                left = size * kind
                items += left
            if items > limits.items or text > limits.text or len(outer) > limits.depth + 1:
                raise ValueError(
                    f"this server takes at most {limits.items} values, {limits.depth} levels and "
                    f"{limits.text} bytes of text in one"
                )
    except IndexError as exc:
        raise WireError(f"A frame of {len(frame)} bytes cannot be read: it is cut short.") from exc
    except ValueError as exc:
        raise WireError(f"A frame of {len(frame)} bytes is refused: {exc}.") from exc


_REFUSED, _LIST, _MAP, _TEXT, _PLAIN = range(5)
"""Kinds of headers. The numbers of a list and a map are the values that each of their items has."""


def _header(code: int) -> tuple[int, int, int]:
    """For the first byte of a value: its kind, the width of its size in bytes, and its size where
    the byte itself says it."""
    if code <= 0x7F or code >= 0xE0 or code in (0xC0, 0xC2, 0xC3):
        return _PLAIN, 0, 0
    if code <= 0x8F:
        return _MAP, 0, code & 0x0F
    if code <= 0x9F:
        return _LIST, 0, code & 0x0F
    if code <= 0xBF:
        return _TEXT, 0, code & 0x1F
    if 0xC4 <= code <= 0xC6:
        return _PLAIN, 1 << code - 0xC4, 0
    if 0xCA <= code <= 0xD3:
        return _PLAIN, 0, (4, 8, 1, 2, 4, 8, 1, 2, 4, 8)[code - 0xCA]
    if 0xD9 <= code <= 0xDB:
        return _TEXT, 1 << code - 0xD9, 0
    if 0xDC <= code <= 0xDF:
        return (_LIST if code <= 0xDD else _MAP), (2, 4)[code & 1], 0
    return _REFUSED, 0, 0


_HEADERS = [_header(code) for code in range(256)]
