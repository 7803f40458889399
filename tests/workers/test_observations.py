from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.core.data import Observation
from hocket.errors import ObservationError
from hocket.workers.env.observation_buffer import ObservationBuffer


def seen(step: int) -> Observation:
    return {"observation/state": np.full(2, step, np.float32), "other": np.int64([step])}


def view(buffer: ObservationBuffer, key: str = "observation/state") -> list[float]:
    assert buffer.layout is not None
    array = buffer.layout.views(buffer.memory, 0)[key]
    found: list[float] = array[..., 0].ravel().tolist()
    return found


@given(st.integers(1, 6), st.integers(0, 12))
def test_history_is_the_last_steps_padded_with_the_first(history: int, steps: int) -> None:
    buffer = ObservationBuffer(None, history)
    buffer.restart(seen(0), bytearray)
    for step in range(1, steps + 1):
        buffer.push(seen(step), step)
    assert view(buffer) == [max(0, steps - back) for back in reversed(range(history))]
    assert buffer.lacks(steps) == 0


def test_history_is_cleared_at_the_reset() -> None:
    buffer = ObservationBuffer(None, 3)
    buffer.restart(seen(5), bytearray)
    buffer.push(seen(6), 1)
    assert not buffer.restart(seen(9), bytearray)
    assert view(buffer) == [9, 9, 9]


@given(st.integers(2, 6), st.integers(1, 10))
def test_a_gap_in_the_history_is_counted(history: int, gap: int) -> None:
    buffer = ObservationBuffer(None, history)
    buffer.restart(seen(0), bytearray)
    buffer.push(seen(1 + gap), 1 + gap)
    assert buffer.lacks(1 + gap) == history - 1
    assert buffer.lacks(2 + gap) == history


def test_only_keys_that_are_read_are_kept() -> None:
    buffer = ObservationBuffer(("observation/state", "prompt"), 1)
    buffer.restart(seen(0), bytearray)
    assert buffer.layout is not None
    assert [entry.key for entry in buffer.layout.entries] == ["observation/state"]


def test_key_that_is_read_and_missing_is_named() -> None:
    with pytest.raises(ObservationError, match="observation/image"):
        ObservationBuffer(("observation/image",), 1).restart(seen(0), bytearray)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observation/state": np.zeros(3, np.float32)}, r"observation/state.*\(3,\)"),
        ({"observation/state": np.zeros(2, np.float64)}, "observation/state.*float64"),
        ({"new": np.zeros(1)}, "new key 'new'"),
    ],
)
def test_changed_observation_is_refused_by_key(change: Observation, message: str) -> None:
    buffer = ObservationBuffer(None, 1)
    buffer.restart(seen(0), bytearray)
    with pytest.raises(ObservationError, match=message):
        buffer.push({**seen(1), **change}, 1)


def test_dropped_key_is_named() -> None:
    buffer = ObservationBuffer(None, 1)
    buffer.restart(seen(0), bytearray)
    with pytest.raises(ObservationError, match="lacks the key 'other'"):
        buffer.push({"observation/state": np.zeros(2, np.float32)}, 1)


def test_layout_changes_only_between_attempts() -> None:
    buffer = ObservationBuffer(None, 1)
    assert buffer.restart(seen(0), bytearray)
    assert not buffer.restart(seen(1), bytearray)
    assert buffer.restart({"observation/state": np.zeros(9)}, bytearray)
