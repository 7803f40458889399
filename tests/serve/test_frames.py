"""How much a frame may hold, and who waits while it is read."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.core.codec import pack, unpack
from hocket.core.specs import ArraySpec, PolicySpec
from hocket.errors import WireError
from hocket.serve.frames import (
    PLAIN_BYTES,
    SMALL_BYTES,
    SPARE_BYTES,
    FrameLimits,
    FrameReader,
    frame_limits,
    measure,
    most_bytes,
)
from support.running_server import WAIT_S

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=40), inner, max_size=4)
    ),
    max_leaves=25,
)


def size_of(value: Any) -> tuple[int, int, int]:
    """Values and keys, levels, and bytes of text."""
    if isinstance(value, str):
        return 1, 0, len(value.encode())
    if not isinstance(value, (dict, list)):
        return 1, 0, 0
    inside = [*value, *value.values()] if isinstance(value, dict) else value
    sizes = [size_of(one) for one in inside]
    return (
        1 + sum(items for items, _, _ in sizes),
        1 + max((depth for _, depth, _ in sizes), default=0),
        sum(text for _, _, text in sizes),
    )


@given(value=plain)
def test_a_frame_is_measured_exactly(value: Any) -> None:
    frame = msgpack.packb(value)
    items, depth, text = size_of(value)
    measure(frame, FrameLimits(items=items, depth=depth, text=text))
    for tighter in (
        FrameLimits(items=items - 1, depth=depth, text=text),
        FrameLimits(items=items, depth=depth - 1, text=text),
        FrameLimits(items=items, depth=depth, text=text - 1),
    ):
        if min(tighter.items, tighter.depth, tighter.text) >= 0 and items > 1:
            with pytest.raises(WireError, match="at most"):
                measure(frame, tighter)


@given(value=plain, cut=st.integers(1, 50))
def test_a_frame_that_is_cut_is_never_whole(value: Any, cut: int) -> None:
    def read(frame: bytes) -> None:
        measure(frame, FrameLimits(items=1 << 20, depth=99, text=1 << 20))
        unpack(frame)

    whole = msgpack.packb([value, "the end"])
    read(whole)
    with pytest.raises(WireError):
        read(whole[:-cut])


def test_types_that_requests_have_not_are_refused() -> None:
    limits = FrameLimits(items=100, depth=9, text=100)
    for value in (msgpack.ExtType(3, b"x" * 70), msgpack.Timestamp(7)):
        with pytest.raises(WireError, match="type"):
            measure(msgpack.packb([value]), limits)
    with pytest.raises(WireError, match="type"):
        measure(b"\x91\xc1", limits)


def read_within(frame: bytes, limits: FrameLimits) -> Any:
    measure(frame, limits)
    return unpack(frame)


def numbers(count: int) -> bytes:
    return pack({"observation/state": [0.5] * count})


def test_limits_follow_what_the_policy_reads() -> None:
    inputs = {"observation/state": ArraySpec(shape=(30_000,), dtype="<f4")}
    says = frame_limits(PolicySpec(chunk_length=1, inputs=inputs), max_queue=16)
    read_within(numbers(30_000), says)
    with pytest.raises(WireError, match="at most"):
        read_within(numbers(60_000), says)
    for inputs_unsaid in (None, {"observation/state": ArraySpec(shape=(-1,), dtype="<f4")}):
        silent = PolicySpec(chunk_length=1, inputs=inputs_unsaid)
        read_within(numbers(60_000), frame_limits(silent, max_queue=16))
        assert most_bytes(silent) is None
    large = PolicySpec(chunk_length=1, inputs=inputs, max_batch=4)
    assert most_bytes(large) == SPARE_BYTES + 4 * 8 * 30_000


def test_nobody_waits_while_a_large_frame_is_read() -> None:
    """The loop itself lets the reading go on: read there, it would wait for ever."""
    gate = threading.Event()

    def parse(_: Any) -> bool:
        return gate.wait(WAIT_S)

    async def both() -> bool:
        frames = FrameReader(frame_limits(None, 16))
        reading = asyncio.ensure_future(frames.read(pack({"x": [0] * SMALL_BYTES}), parse))
        await asyncio.sleep(0)
        gate.set()
        try:
            return await reading
        finally:
            frames.close()

    assert asyncio.run(both())


def test_a_few_arrays_are_read_at_once_and_many_values_on_another_thread() -> None:
    async def threads(value: Any) -> bool:
        frames = FrameReader(frame_limits(None, 1 << 14))
        try:
            reader = await frames.read(pack({"x": value}), lambda _: threading.current_thread())
        finally:
            frames.close()
        return reader is threading.current_thread()

    assert asyncio.run(threads([bytes(1 << 18)] * 3))
    assert not asyncio.run(threads([0] * SMALL_BYTES))
    assert not asyncio.run(threads("x" * SMALL_BYTES * 2))
    assert not asyncio.run(threads(bytes(PLAIN_BYTES)))


def test_arrays_need_no_measure_of_their_numbers() -> None:
    image = np.frombuffer(random.Random(0).randbytes(224 * 224 * 3), np.uint8)
    limits = FrameLimits(items=20, depth=3, text=100)
    found = read_within(pack({"observation/image": image.reshape(224, 224, 3)}), limits)
    assert np.array_equal(found["observation/image"].ravel(), image)
