"""What envs tell of success, subgoals and scores is read in one way, and nothing is guessed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hocket.core.data import SuccessRule
from hocket.core.outcomes import Goals, told_at_end
from hocket.core.specs import TaskInfo
from hocket.errors import OutcomeError


def task(rule: SuccessRule = "final", **scoring: Any) -> TaskInfo:
    return TaskInfo(name="open", success_rule=rule, **scoring)


def told(*values: Any, rule: SuccessRule = "final") -> list[bool | None]:
    goals = Goals()
    return [goals.outcome({"success": value}, task(rule)) for value in values]


@pytest.mark.parametrize(
    "value", [True, 1, 1.0, np.True_, np.float32(1), np.uint8(1), np.array(1), [1.0], {"drawer": 1}]
)
def test_a_truth_value_of_any_kind_is_an_outcome(value: Any) -> None:
    assert told(value) == [True]
    zero = {"drawer": False} if isinstance(value, dict) else type(value)([0] if value == [1] else 0)
    assert told(np.zeros(1) if isinstance(value, np.ndarray) else zero) == [False]


@pytest.mark.parametrize(
    "value",
    [
        *("no", "False", "1", b"1", "", float("nan"), 0.01, 2, -1, 1j, [], {}, np.zeros(0)),
        *([[True], [True, False]], np.array([1.0, np.nan]), {"a": {}}, {"a": "no"}, object()),
        *(np.ma.masked, np.datetime64("2020"), lambda: True),
    ],
)
def test_anything_else_is_refused_with_its_key_value_and_type(value: Any) -> None:
    with pytest.raises(OutcomeError) as caught:
        told(value)
    said = str(caught.value)
    assert "info['success" in said
    assert f"({type(value).__name__})" in said or isinstance(value, dict)
    assert "\n" not in said


def test_all_subgoals_must_hold_by_the_rule_of_the_task() -> None:
    steps = [True, False], [False, True]
    assert told(*steps, rule="final") == [False, False]
    assert told(*steps, rule="any") == told(*steps, rule="first") == [False, True]
    assert told([True, False, False]) == [False]
    nested = {"doors": {"left": True, "right": False}, "lamp": True}
    assert told(nested) == [False]


def test_subgoals_are_known_by_name_whatever_the_order_in_which_they_come() -> None:
    # In the order in which they are told, "b" would seem to be reached by what "a" did.
    assert told({"a": True, "b": False}, {"b": False, "a": True}, rule="any") == [False, False]


@pytest.mark.parametrize(
    "second", [{"a": True, "c": True}, [True], [True, True, True], {"a": {"b": True}, "b": True}]
)
def test_other_subgoals_than_before_are_refused(second: Any) -> None:
    first = {"a": True, "b": False} if isinstance(second, dict) else [True, False]
    goals = Goals()
    goals.outcome({"success": first}, task("any"))
    with pytest.raises(OutcomeError, match="Each step must tell all of them"):
        goals.outcome({"success": second}, task("any"))


def test_progress_is_the_share_of_subgoals_or_the_best_score() -> None:
    goals = Goals()
    assert goals.progress() is None
    goals.outcome({"success": [True, False, False, False]}, task())
    assert goals.progress() == 0.25
    for rule, best in (("final", 0.2), ("any", 0.8)):
        scored = Goals()
        for value in (0.8, 0.2):
            scored.outcome({"score": value}, task(rule, score_key="score"))
        assert scored.progress() == best


def test_a_score_decides_by_a_threshold_alone() -> None:
    assert Goals().outcome({"score": 0.9}, task(score_key="score")) is None
    judged = task(score_key="score", success_at=0.7)
    assert Goals().outcome({"score": 0.7}, judged) is True
    assert Goals().outcome({"score": 0.69}, judged) is False


def test_where_success_is_told_it_alone_decides() -> None:
    judged = task(score_key="score", success_at=0.1)
    assert Goals().outcome({"score": 0.9, "success": False}, judged) is False
    assert Goals().outcome({"success": True, "is_success": False, "count": 0}, task()) is True


@pytest.mark.parametrize("score", [float("nan"), 1.5, -0.1, "0.5", [0.1, 0.2], float("inf")])
def test_a_score_that_is_none_is_refused(score: Any) -> None:
    with pytest.raises(OutcomeError, match=r"info\['score'\].*no score"):
        Goals().outcome({"score": score}, task(score_key="score"))


def test_other_values_are_kept_with_their_kind() -> None:
    info = {"success": True, "count": 3, "ok": np.True_, "force": np.float32(0.5), "name": "x"}
    found = told_at_end({**info, "inner": {"depth": 2}}, task())
    assert found == {"count": 3, "ok": True, "force": 0.5, "inner/depth": 2}
    assert [type(value) for value in found.values()] == [int, bool, float, int]
