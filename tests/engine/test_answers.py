"""What a policy may answer, and what the errors say when it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hocket.core.data import Actions
from hocket.engine.chunk_rules import check_answer, finite_rows
from hocket.errors import ChunkShapeError, ChunkValueError


def check(answer: Any, **changes: Any) -> Actions:
    asked: dict[str, Any] = dict(rows=2, size=2, action_size=3, chunk_length=4, name="p")
    return check_answer(answer, **{**asked, **changes})


def test_a_good_array_comes_back_as_actions() -> None:
    values = np.zeros((2, 4, 3), np.float32)
    assert check(values).values is values


def test_padded_rows_are_dropped_from_values_and_extras() -> None:
    values = np.arange(36.0).reshape(3, 4, 3)
    given = Actions(values, {"value": np.arange(3)}, version=7, source="gpu1")
    answer = check(given, size=3)
    np.testing.assert_array_equal(answer.values, values[:2])
    np.testing.assert_array_equal(answer.extras["value"], [0, 1])
    assert (answer.version, answer.source) == (7, "gpu1")


def test_chunk_length_zero_and_no_action_size_leave_both_to_the_answer() -> None:
    assert check(np.zeros((2, 9, 5)), chunk_length=0, action_size=None).values.shape == (2, 9, 5)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((3, 4, 3), "one chunk"),
        ((2, 4), "one chunk"),
        ((2, 5, 3), "chunk_length"),
        ((2, 4, 7), "action head"),
        ((2, 0, 3), "chunk_length"),
    ],
)
def test_wrong_shape_says_what_came_and_what_was_needed(shape: Any, says: str) -> None:
    with pytest.raises(ChunkShapeError, match=says) as caught:
        check(np.zeros(shape))
    assert str(shape) in str(caught.value)
    assert "(2, 4, 3)" in str(caught.value)


def test_an_empty_chunk_is_refused_where_the_length_is_free() -> None:
    with pytest.raises(ChunkShapeError, match="at least 1"):
        check(np.zeros((2, 0, 3)), chunk_length=0)


@pytest.mark.parametrize("dtype", [object, complex, bool, "U3"])
def test_a_dtype_that_is_no_real_number_is_refused(dtype: Any) -> None:
    with pytest.raises(ChunkValueError, match="real numbers"):
        check(np.zeros((2, 4, 3)).astype(dtype))


@pytest.mark.parametrize("answer", [None, {"actions": np.zeros((2, 4, 3))}, [[1.0]]])
def test_what_is_no_array_is_refused(answer: Any) -> None:
    with pytest.raises(ChunkShapeError, match="infer must return Actions"):
        check(answer)


@pytest.mark.parametrize("extra", [np.zeros(5), np.float64(1.0), "x"])
def test_an_extra_needs_one_row_for_each_of_the_batch(extra: Any) -> None:
    with pytest.raises(ChunkShapeError, match="extra 'value'"):
        check(Actions(np.zeros((2, 4, 3)), {"value": extra}))


def test_only_rows_with_nan_or_infinity_are_not_finite() -> None:
    values = np.zeros((4, 2, 3), np.float32)
    values[1, 1, 2] = np.nan
    values[3, 0, 0] = -np.inf
    assert finite_rows(values).tolist() == [True, False, True, False]
    assert finite_rows(np.zeros((2, 1, 1), np.int64)).tolist() == [True, True]


def test_large_finite_values_are_finite() -> None:
    assert finite_rows(np.full((2, 4, 3), 1e308)).all()


@pytest.mark.heavy
def test_tensors_are_answers_too() -> None:
    torch = pytest.importorskip("torch")
    values = torch.ones(2, 4, 3, dtype=torch.bfloat16, requires_grad=True)
    np.testing.assert_array_equal(check(values).values, np.ones((2, 4, 3)))
