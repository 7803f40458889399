"""What sites say, spoilt at random: fields of other types and sizes, too few of them, too many, cut
and changed bytes."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from typing import Any

import msgpack

import hocket
from hocket.core.specs import ActionSpec, EnvSpec, TaskInfo
from hocket.machines import protocol
from hocket.machines.leasing.entries import LeaseId
from support.desk import FILE, PROGRAM

NOBODYS = LeaseId(0, 1 << 20)
"""A lease that there is none of."""


def junk(draw: random.Random, depth: int = 0) -> Any:
    """Any value that can be packed. No whole number in it names a trial or an attempt."""
    plain: list[Any] = [
        *(None, True, False, -1, -5, 10**12, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63)),
        *(0.5, -0.0, 1e308, math.nan, math.inf, -math.inf, "", "x", "\0", "../x", "é" * 150),
        *("x" * 400, b"", b"\xff" * 9, bytes(70_000), "nonsense", "EnvError", "WireError"),
    ]
    if depth < 3 and draw.random() < 0.3:
        if draw.random() < 0.5:
            return [junk(draw, depth + 1) for _ in range(draw.randrange(4))]
        keys: list[Any] = ["files", "python", 7, None, b"key", "sha256"]
        return {draw.choice(keys): junk(draw, depth + 1) for _ in range(draw.randrange(3))}
    return draw.choice(plain)


def spoilt(draw: random.Random, value: Any) -> Any:
    """A value of which something is changed."""
    if isinstance(value, (list, tuple)) and value and draw.random() < 0.8:
        parts, at = list(value), draw.randrange(len(value))
        change = draw.random()
        if change < 0.1:
            del parts[at]
        elif change < 0.2:
            parts.insert(at, junk(draw))
        else:
            parts[at] = spoilt(draw, parts[at])
        return parts
    if isinstance(value, dict) and value and draw.random() < 0.8:
        key = draw.choice(list(value))
        return {**value, key: spoilt(draw, value[key])}
    return junk(draw)


def messages(lease: LeaseId, site: str) -> list[protocol.Message]:
    """One of each kind, about a lease of another site or of nobody."""
    action = ActionSpec(size=1, kind="box", shape=(1,), dtype="f4", low=[0.0], high=[1.0])  # type: ignore[arg-type]
    spec = EnvSpec(
        task=TaskInfo(name="count"), action=action, observations={}, cameras=(), abilities=()
    )
    digest = protocol.HASHER(b"data").digest()
    return [
        protocol.SiteHello(protocol.PROTOCOL, hocket.__version__, site, "hostile"),
        protocol.Joined(2, 1, "bitwise", PROGRAM, [lease]),
        protocol.Began([lease]),
        protocol.Returned(*lease, "Error: no", True, [FILE]),
        protocol.FilePiece(*lease, FILE, 0, b"data", digest),
        protocol.SealedEpisode(
            *lease, "failure", 9, 0.0, True, False, 1, 0.5, [FILE], b"", [], 0.5, {"a": 1}, ["b"]
        ),
        protocol.Learned("toy:count", spec.to_plain()),
        protocol.CollectedPart(*lease, b"data", is_whole=True),
        protocol.Follows(3, 2),
        protocol.Beat(1.0, [1, 1, 1, 1, 0.5, 0.5], (0, 0), "running"),
        protocol.Left("", ""),
        protocol.Settled([lease]),
        protocol.Over(goes_on=False),
    ]


def framed(*packed: bytes) -> bytes:
    """A frame of a stream with these messages, from an end to which nothing has come."""
    return bytes(8) + b"".join(struct.pack(">I", len(data)) + data for data in packed)


def spoilt_bytes(draw: random.Random, some: Sequence[protocol.Message]) -> bytes:
    """The frame of one of these messages, of which something is changed."""
    message = draw.choice(some)
    fields: Any = [protocol.MESSAGES.index(type(message)), *message]
    if draw.random() < 0.95:
        fields = spoilt(draw, fields)
    body = bytearray(framed(msgpack.packb(fields)))
    if draw.random() < 0.1:
        body[draw.randrange(len(body))] = draw.randrange(256)
    return bytes(body[: draw.randrange(len(body))] if draw.random() < 0.05 else body)
