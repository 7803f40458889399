"""Requests and replies of OpenPI's protocol that are wrong somewhere, drawn without end."""

from __future__ import annotations

import copy
import random
from typing import Any

import msgpack

from support.wire_clients import env_spec


def array(data: bytes, dtype: Any, shape: Any) -> dict[bytes, Any]:
    return {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}


STATE = array(b"\0\0@@", "<f4", [1])
ROW = [["s", "t", 0, 0], 0, 0, 7, "go", "a", 1]
ASKED = {"id": 2, "client": "c"}
SOUND: list[Any] = [
    {"observation/state": STATE, "prompt": "x"},
    {"observation/state": STATE, "seed": [3, 4]},
    {"observation": {"state": STATE, "image": array(bytes(48), "|u1", [4, 4, 3])}, "prompt": b"x"},
    {"observation/state": [3.0], "prompt": array(b"g\0\0\0", "<U1", [1])},
    {
        "hocket": {"op": "infer", "id": 1, "client": "c", "rows": [ROW, ROW]},
        "arrays": {"observation/state": array(bytes(8), "<f4", [2, 1])},
    },
    {
        "hocket": {
            "op": "infer",
            "id": 2,
            "client": "c",
            "rows": [ROW],
            "shared": {"file": 1, "layout": []},
        }
    },
    {"hocket": {"op": "bind", "id": 3, "client": "c", "number": 1, "env": env_spec(2).to_plain()}},
    {
        "hocket": {
            "op": "continue",
            "id": 4,
            "client": "c",
            "method": "rtc",
            "settings": {"beta": 1.5},
        }
    },
    {"hocket": {"op": "reset", "id": 5, "client": "c", "session": "a"}},
    {"hocket": {"op": "leave", "id": 6, "client": "c"}},
    {"actions": array(bytes(16), "<f4", [2, 2]), "policy_timing": {"infer_ms": 1.0}},
]
FOUR = bytes(4)
ODD: list[Any] = [
    None, True, 0, -1, 2**63 - 1, -(2**63), 2**64 - 1, 1e308, float("nan"), float("inf"), "",
    "x" * 300, "\0", "hocket", "a/b", b"", b"\xff" * 9, [], {}, [[]], [None], {"": {}}, {None: 1},
    {1: 2}, {b"": 1},
    array(b"", "<f4", [0]), array(b"", "<f4", [2**62, 0]), array(bytes(4), "<f4", [-1]),
    array(bytes(4), "<f4", [2**40, 2**40]), array(bytes(8), "O", [1]), array(bytes(8), "V8", [1]),
    array(bytes(8), "<M8[s]", [1]), array(bytes(16), "<c16", [1]), array(FOUR, "f4,f4", [1]),
    array(FOUR, "<f4", 1), array(FOUR, 4, [1]), array(FOUR, "no", [1]), array("no", "<f4", [1]),
    array(FOUR, "<f4", [1] * 40), array(FOUR, "<f4", [1] * 33),
    array(b"\0\0\xc0\x7f", "<f4", [1]), array(b"\xff" * 4, "<U1", [1]),
    {b"__npgeneric__": True, b"data": 1, b"dtype": "<f4"},
    {b"__npgeneric__": True, b"data": "no", b"dtype": "<f4"},
    {b"__npgeneric__": True, b"data": 2**64 - 1, b"dtype": "|i1"},
    {b"__npgeneric__": True}, {b"__ndarray__": True},
    [[[[[[[[]]]]]]]], list(range(100)),
]  # fmt: skip


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in maps and lists, as the container and its key."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        one = left.pop()
        keys = (
            list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        )
        for key in keys:
            found.append((one, key))
            left.append(one[key])
    return found


def wrong(rng: random.Random) -> bytes:
    """A frame that is wrong in one or a few places, which may make another sound one of it."""
    how = rng.random()
    if how < 0.02:
        return rng.randbytes(rng.randrange(200))
    value = copy.deepcopy(rng.choice(SOUND))
    for _ in range(rng.choice((1, 1, 1, 2, 3)) if how < 0.8 else 0):
        places = _places(value)
        if not places:
            break
        inside, key = rng.choice(places)
        what = rng.random()
        if what < 0.6:
            inside[key] = copy.deepcopy(rng.choice(ODD))
        elif what < 0.8:
            del inside[key]
        elif isinstance(inside, dict):
            odd = rng.choice(("", "x", b"x", 3, None, "hocket", "prompt", b"__ndarray__", "id"))
            inside[odd] = inside.pop(key)
        else:
            inside.insert(key, inside[key])
    frame: bytes = msgpack.packb(value)
    if how > 0.75:
        cut = bytearray(frame)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(cut)) if cut else 0
            way = rng.random()
            if way < 0.6 and cut:
                cut[at] = rng.randrange(256)
            elif way < 0.8:
                del cut[at:]
            else:
                cut[at:at] = rng.randbytes(rng.randrange(1, 9))
        frame = bytes(cut)
    return frame
