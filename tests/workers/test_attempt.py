from __future__ import annotations

from typing import Any

import pytest

from hocket.core.data import Outcome, SuccessRule, Trial
from hocket.core.specs import TaskInfo
from hocket.core.wire import END_JUDGED, END_SUCCESS, END_TERMINATED, END_TRUNCATED, outcome_of
from hocket.workers.env.attempt import Attempt

TRIAL = Trial(suite="toy", task="count", seed=0)


def attempt(rule: SuccessRule = "first", task_limit: int | None = None, limit: int = 0) -> Attempt:
    task = TaskInfo(name="count", max_steps=task_limit, success_rule=rule)
    return Attempt(TRIAL, 0, task, max_steps=limit, final=False)


def judge(attempt: Attempt, *infos: dict[str, Any], last: bool = False) -> int:
    ends = 0
    for index, info in enumerate(infos):
        terminated = last and index == len(infos) - 1
        ends = attempt.judge(info, terminated=terminated, truncated=False)
    return ends


def test_first_success_ends_the_episode_as_terminated() -> None:
    tried = attempt("first")
    assert judge(tried, {"success": False}) == 0
    assert judge(tried, {"success": True}) == END_TERMINATED | END_JUDGED | END_SUCCESS
    assert outcome_of(tried.ends) is Outcome.SUCCESS


def test_any_success_counts_and_does_not_end_the_episode() -> None:
    tried = attempt("any")
    assert judge(tried, {"is_success": 1.0}) == 0
    ends = judge(tried, {"is_success": 0.0}, last=True)
    assert ends == END_TERMINATED | END_JUDGED | END_SUCCESS


def test_final_rule_looks_at_the_last_step_only() -> None:
    tried = attempt("final")
    judge(tried, {"success": True}, {"success": False}, last=True)
    assert outcome_of(tried.ends) is Outcome.FAILURE
    tried = attempt("final")
    judge(tried, {"success": False}, {"success": True}, last=True)
    assert outcome_of(tried.ends) is Outcome.SUCCESS


def test_final_rule_needs_the_last_step_to_say_so() -> None:
    tried = attempt("final")
    judge(tried, {"success": True}, {}, last=True)
    assert outcome_of(tried.ends) is Outcome.FAILURE


@pytest.mark.parametrize("rule", ["first", "any", "final"])
def test_env_that_never_tells_success_is_finished_and_not_judged(rule: SuccessRule) -> None:
    tried = attempt(rule)
    assert judge(tried, {}, {}, last=True) == END_TERMINATED
    assert outcome_of(tried.ends) is Outcome.FINISHED


def test_limit_truncates_exactly_there() -> None:
    tried = attempt(task_limit=3)
    assert judge(tried, {}, {}) == 0
    assert judge(tried, {}) == END_TRUNCATED


def test_limit_asked_for_wins_over_the_tasks() -> None:
    assert judge(attempt(task_limit=3, limit=2), {}, {}) == END_TRUNCATED
    assert judge(attempt(task_limit=3, limit=5), {}, {}, {}) == 0


def test_success_at_the_limit_is_no_truncation() -> None:
    ends = judge(attempt(limit=1), {"success": True})
    assert ends & END_TERMINATED
    assert not ends & END_TRUNCATED
