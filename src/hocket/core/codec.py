"""OpenPI's dialect of msgpack, byte for byte: arrays and NumPy scalars as maps with binary keys.

An array is `{b"__ndarray__": true, b"data": bytes, b"dtype": "<f4", b"shape": [..]}` in C order, a
NumPy scalar `{b"__npgeneric__": true, b"data": value, b"dtype": ..}`. `np.float64` and `np.str_`
are plain floats and strings to msgpack. Nothing is compressed, nothing is pickled; structured,
object and complex arrays are refused both ways. Decoded arrays are read-only views of bytes.
"""

from __future__ import annotations

import math
import re
import reprlib
import sys
from typing import Any

import msgpack
import numpy as np

from hocket.errors import WireError

_REFUSED_KINDS = frozenset("VOc")
_NAME = re.compile(r"[<>|=]?(?!a\d)[A-Za-z]\w*(\[\w+\])?")
"""One plain dtype: of others NumPy makes records, by ways that raise anything."""


def pack(value: Any) -> bytes:
    """A value of dicts, lists, text, numbers and arrays as one frame."""
    try:
        packed: bytes = msgpack.packb(value, default=_encode)
    except (TypeError, ValueError, OverflowError) as exc:
        raise WireError(f"A {type(value).__name__} cannot be sent: {exc}") from exc
    return packed


def unpack(frame: bytes) -> Any:
    """What one frame says. Raises WireError for anything that is not a whole, valid frame."""
    try:
        return msgpack.unpackb(frame, object_hook=_decode)
    except (ValueError, TypeError, KeyError, ArithmeticError, msgpack.UnpackException) as exc:
        raise WireError(f"A frame of {len(frame)} bytes cannot be read: {exc}") from exc


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
        if dtype.kind == "U":  # NumPy would raise SystemError where the text is read
            letters = np.frombuffer(data, f"{dtype.byteorder}u4")
            if letters.max(initial=0) > sys.maxunicode:
                raise ValueError("a text has numbers that are no letters")
        return np.ndarray(shape, dtype, data)
    if b"__npgeneric__" in found:
        with np.errstate(over="raise", invalid="raise"):
            return _dtype(found).type(found[b"data"])
    return found


def _dtype(found: dict[Any, Any]) -> np.dtype[Any]:
    name = found[b"dtype"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no dtype")
    dtype = np.dtype(name)
    _check_kind(dtype)
    return dtype


def _check_kind(dtype: np.dtype[Any]) -> None:
    if dtype.kind in _REFUSED_KINDS:
        raise ValueError(f"Unsupported dtype: {dtype}")
