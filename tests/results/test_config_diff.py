from hypothesis import given
from hypothesis import strategies as st

from hocket.core.data import Trial
from hocket.results.comparing.config_diff import subject_differences, trial_differences
from support.recorded_runs import plan

SEEDS = st.sets(st.integers(0, 30), min_size=1)


def test_same_plan_in_another_order_has_no_difference() -> None:
    trials = plan(["push", "reach"], 4)
    assert trial_differences(trials, trials[::-1]) == []


@given(SEEDS, SEEDS)
def test_plans_are_told_apart_exactly_where_they_differ(a: set[int], b: set[int]) -> None:
    left = [Trial(suite="toy", task="push", seed=seed) for seed in a]
    right = [Trial(suite="toy", task="push", seed=seed) for seed in b]
    found = " ".join(trial_differences(left, right))
    assert bool(found) == (a != b)
    assert ("only a has" in found) == bool(a - b)
    assert ("only b has" in found) == bool(b - a)


def test_seeds_are_spelled_as_ranges() -> None:
    more = [Trial(suite="toy", task="push", seed=seed) for seed in (0, 1, 2, 5, 7, 8)]
    some = [Trial(suite="toy", task="push", seed=1)]
    assert trial_differences(more, some) == ["only a has seeds 0, 2, 5, 7 to 8"]


def test_task_is_named_where_only_some_lack_seeds() -> None:
    trials = plan(["push", "reach"], 3)
    fewer = [trial for trial in trials if trial.task == "reach" or trial.seed == 0]
    assert trial_differences(trials, fewer) == ["only a has seeds 1 to 2 of task push"]


def test_what_a_comparison_is_about_leaves_out_what_makes_the_trials() -> None:
    a = {"policy": "x", "replan": 4, "episodes": 5, "policy_config": {"path": "p", "same": 1}}
    b = {"policy": "y", "episodes": 9, "policy_config": {"path": "q", "same": 1}}
    assert subject_differences(a, b) == [
        ("policy", "x", "y"),
        ("replan", "4", "not set"),
        ("policy_config.path", "p", "q"),
    ]
