"""OpenPI's dialect of msgpack, byte for byte: arrays and NumPy scalars as maps with binary keys.

An array is `{b"__ndarray__": true, b"data": bytes, b"dtype": "<f4", b"shape": [..]}` in C order, a
NumPy scalar `{b"__npgeneric__": true, b"data": value, b"dtype": ..}`. `np.float64` and `np.str_`
are plain floats and strings to msgpack. Nothing is compressed, nothing is pickled; structured,
object and complex arrays are refused both ways. Decoded arrays are read-only views of bytes.

What a stranger sent is measured before anything is made of it: a byte of a frame can become a
hundred of Python's objects.
"""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from hocket.errors import WireError

_REFUSED_KINDS = frozenset("VOc")
SMALL_BYTES = 1 << 14
"""Bytes of a frame that needs no measuring: each makes one value at most, and all are made in a few
milliseconds."""


def pack(value: Any) -> bytes:
    """A value of dicts, lists, text, numbers and arrays as one frame."""
    try:
        packed: bytes = msgpack.packb(value, default=_encode)
    except (TypeError, ValueError, OverflowError) as exc:
        raise WireError(f"A {type(value).__name__} cannot be sent: {exc}") from exc
    return packed


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """The most that a frame of a stranger's may hold."""

    items: int
    """Values and keys, in all of its maps and lists together."""
    depth: int
    """Maps and lists inside each other."""
    text: int
    """Bytes of text, keys included."""


def unpack(frame: bytes, limits: FrameLimits | None = None) -> Any:
    """What one frame says. Raises WireError for anything that is not a whole, valid frame, and for
    one that exceeds the limits: a small one cannot hold much."""
    if limits is not None and len(frame) > SMALL_BYTES:
        measure(frame, limits)
    try:
        return msgpack.unpackb(frame, object_hook=_decode)
    except (ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException) as exc:
        raise WireError(f"A frame of {len(frame)} bytes cannot be read: {exc}") from exc


def measure(frame: bytes, limits: FrameLimits) -> None:
    """Read the headers of a frame, and make nothing of them; WireError where it is cut or exceeds
    the limits."""
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
"""What a header says: a list's and a map's number is how many values each of their items has."""


def _header(code: int) -> tuple[int, int, int]:
    """What a value that begins with this byte is, how many bytes its size is written in, and its
    size where the byte itself says it."""
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


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        _check_kind(value.dtype)
        # The buffer itself, so that the only copy is the one into the frame. Dates have no buffer.
        plain = value.dtype.kind not in "mM" and value.flags.c_contiguous
        return {
            b"__ndarray__": True,
            b"data": value.data if plain else value.tobytes(),
            b"dtype": value.dtype.str,
            b"shape": value.shape,
        }
    if isinstance(value, np.generic):
        _check_kind(value.dtype)
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"{type(value).__name__} is neither plain data nor an array")


def _decode(found: dict[Any, Any]) -> Any:
    if b"__ndarray__" in found:
        dtype = _dtype(found)
        data, shape = found[b"data"], found[b"shape"]
        if not isinstance(data, bytes) or not isinstance(shape, list):
            raise ValueError("an array's data must be bytes and its shape a list")
        if not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"{reprlib.repr(shape)} is no shape")
        if math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(
                f"{len(data)} bytes do not make {dtype.str} of shape {reprlib.repr(shape)}"
            )
        return np.ndarray(shape, dtype, data)
    if b"__npgeneric__" in found:
        return _dtype(found).type(found[b"data"])
    return found


def _dtype(found: dict[Any, Any]) -> np.dtype[Any]:
    name = found[b"dtype"]
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is no dtype")
    dtype = np.dtype(name)
    _check_kind(dtype)
    return dtype


def _check_kind(dtype: np.dtype[Any]) -> None:
    if dtype.kind in _REFUSED_KINDS:
        raise ValueError(f"Unsupported dtype: {dtype}")
