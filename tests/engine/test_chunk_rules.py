"""Rules of chunk use against their definitions."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.engine.chunk_rules import ReplayFirst, TemporalEnsemble, make_rule
from hocket.errors import ChunkShapeError, ConfigError


def chunk(length: int, size: int, seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(length, size))


def ensemble_by_definition(history: list[tuple[int, Any]], step: int, coefficient: float) -> Any:
    """ACT: the chunks that predict a step, oldest first, weigh exp(-m * i)."""
    predictions = [made[step - at] for at, made in history if at <= step < at + len(made)]
    weights = [math.exp(-coefficient * i) for i in range(len(predictions))]
    total, weighed = np.zeros_like(predictions[0]), 0.0
    for weight, prediction in zip(weights, predictions, strict=True):
        total = total + weight * prediction
        weighed += weight  # sum() rounds otherwise since Python 3.12
    return total / weighed


@pytest.mark.parametrize("count", [1, 3, 5])
def test_replay_first_executes_the_first_actions_in_order(count: int) -> None:
    made = chunk(5, 2, 0).astype(np.float32)
    taken = ReplayFirst(count).take(made, 0)
    np.testing.assert_array_equal(taken, made[:count].astype(np.float64))
    assert taken.dtype == np.float64
    assert taken.flags.c_contiguous


def test_replay_first_without_a_count_executes_all() -> None:
    made = chunk(5, 2, 0)
    np.testing.assert_array_equal(ReplayFirst(None).take(made, 10), made)


def test_taken_actions_outlive_a_buffer_that_the_policy_reuses() -> None:
    made = chunk(4, 2, 0)
    taken = ReplayFirst(None).take(made, 0)
    before = taken.copy()
    made[:] = 0
    np.testing.assert_array_equal(taken, before)


@pytest.mark.parametrize("rule", [ReplayFirst(9), TemporalEnsemble(0.01, 9)])
def test_replan_longer_than_the_chunk_names_both_numbers(rule: Any) -> None:
    with pytest.raises(ChunkShapeError, match=r"execute 9 actions.*chunk has 4"):
        rule.take(chunk(4, 2, 0), 0)


@given(
    coefficient=st.floats(-2, 2),
    lengths=st.lists(st.integers(3, 9), min_size=1, max_size=12),
    size=st.integers(1, 4),
    count=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_ensemble_equals_its_definition_to_the_bit(
    coefficient: float, lengths: list[int], size: int, count: int, seed: int
) -> None:
    rule = TemporalEnsemble(coefficient, count)
    history: list[tuple[int, Any]] = []
    for number, length in enumerate(lengths):
        executed = number * count
        made = chunk(length, size, seed + number)
        history.append((executed, made))
        taken = rule.take(made, executed)
        expected = [
            ensemble_by_definition(history, executed + step, coefficient) for step in range(count)
        ]
        np.testing.assert_array_equal(taken, np.array(expected))
        assert taken.dtype == np.float64
        assert taken.flags.c_contiguous


def test_ensemble_weighs_the_oldest_prediction_most_at_a_positive_coefficient() -> None:
    rule = TemporalEnsemble(math.log(2.0))
    rule.take(np.array([[0.0], [6.0]]), 0)
    taken = rule.take(np.array([[0.0], [0.0]]), 1)
    assert taken[0, 0] == pytest.approx(4.0)  # weights 1 for the old 6, 1/2 for the new 0


def test_a_copied_rule_goes_on_alone() -> None:
    rule = TemporalEnsemble(0.1)
    rule.take(chunk(4, 2, 0), 0)
    twin = copy.copy(rule)
    expected = twin.take(chunk(4, 2, 1), 1)
    twin.take(chunk(4, 2, 2), 2)
    np.testing.assert_array_equal(rule.take(chunk(4, 2, 1), 1), expected)


def test_made_rules_share_nothing() -> None:
    make = make_rule(None, 0.01)
    first, second = make(), make()
    first.take(chunk(4, 2, 0), 0)
    made = chunk(4, 2, 1)
    np.testing.assert_allclose(second.take(made, 0), made[:1], rtol=1e-15)


@pytest.mark.parametrize(
    ("replan", "ensemble"),
    [(0, None), (-1, None), (True, None), (1.5, None), (None, math.nan), (None, math.inf),
     (0, 0.01), (None, "much"), (None, True)],
)  # fmt: skip
def test_bad_values_are_refused_when_the_rule_is_chosen(replan: Any, ensemble: Any) -> None:
    with pytest.raises(ConfigError):
        make_rule(replan, ensemble)


def test_a_coefficient_that_overflows_is_refused_with_what_would_work() -> None:
    with pytest.raises(ConfigError, match="Use a coefficient above"):
        TemporalEnsemble(-10.0).take(chunk(100, 2, 0), 0)


@given(st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_many_chunks_are_taken_as_each_alone(count: int, rows: int, single: bool) -> None:
    rule = make_rule(count, None)()
    made = np.stack([chunk(5, 2, seed) for seed in range(rows)])
    made = made.astype(np.float32) if single else made
    taken = rule.take_all(made)
    assert taken is not None
    np.testing.assert_array_equal(taken, np.stack([rule.take(one, 0) for one in made]))
    assert taken.dtype == np.float64


def test_a_rule_that_remembers_is_not_shared() -> None:
    assert make_rule(None, 0.01)().take_all(np.zeros((2, 5, 2))) is None
    with pytest.raises(ChunkShapeError):
        ReplayFirst(6).take_all(np.zeros((2, 5, 2)))
