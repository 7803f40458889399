"""vla-eval's messages: msgpack maps with a type, a payload, a number and a time.

Arrays are maps with text keys, pictures may be PNG. The client says hello first, then of
each episode that it begins and ends; neither has a reply, unless a beginning fails.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np

from hocket.core.data import Array
from hocket.errors import WireError

PROTOCOL_VERSION = 1
HELLO, BEGIN, OBSERVATION = "hello", "episode_start", "observation"
ACTION, END, ERROR = "action", "episode_end", "error"
MAX_PICTURE = 64 << 20
"""Bytes of a picture."""
_NONSENSE = (
    *(ValueError, TypeError, LookupError, ArithmeticError, struct.error),
    *(msgpack.UnpackException, AttributeError),
)
_FORMATS = {1: "gray", 3: "rgb24", 4: "rgba"}


def pack_message(kind: str, payload: Mapping[str, Any], number: int) -> bytes:
    message = {"type": kind, "payload": payload, "seq": number, "timestamp": time.time()}
    packed: bytes = msgpack.packb(message, default=_encode)
    return packed


def unpack_message(frame: str | bytes) -> tuple[str, dict[str, Any], int]:
    """Kind, payload and number; WireError where a frame is none of theirs."""
    try:
        if isinstance(frame, str):
            raise ValueError("it is text")
        message = msgpack.unpackb(frame, object_hook=_decode)
        kind, payload, number = message["type"], message["payload"], message["seq"]
        if not isinstance(kind, str) or not isinstance(payload, dict) or type(number) is not int:
            raise ValueError("its parts have other types")
    except _NONSENSE as exc:
        raise WireError(f"{len(frame)} bytes are no message of vla-eval's: {exc}") from exc
    return kind, payload, number


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        shape = list(value.shape)
        return {
            "__ndarray__": True,
            "data": value.tobytes(),
            "dtype": value.dtype.str,
            "shape": shape,
        }
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    raise TypeError(f"{type(value).__name__} is neither plain data nor an array of numbers")


def _decode(found: dict[Any, Any]) -> Any:
    if "__image__" in found and found["format"] != "raw":
        return _picture(found["format"], found["data"], found["shape"])
    if "__ndarray__" not in found and "__image__" not in found:
        return found
    name, shape = found["dtype"], found["shape"]
    if not isinstance(name, str) or name[1:2] not in ("b", "i", "u", "f"):
        raise ValueError(f"{name!r} is no dtype of numbers")
    return np.frombuffer(found["data"], np.dtype(name)).reshape(shape)


def _picture(kind: str, data: bytes, shape: list[int]) -> Array:
    """A PNG picture; its header must say what the message does, before anything is made of it."""
    import av

    height, width, channels = shape
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height)
    if kind != "png" or not data.startswith(header) or width * height * channels > MAX_PICTURE:
        raise ValueError("a picture must be PNG, of the size that is said, or raw")
    try:
        (frame,) = av.CodecContext.create("png", "r").decode(av.Packet(data))
        return np.asarray(frame.to_ndarray(format=_FORMATS[channels])).reshape(shape)
    except av.FFmpegError as exc:
        raise ValueError(f"a picture cannot be read: {exc}") from exc
