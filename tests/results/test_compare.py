"""Runs paired by trial, from folders that the real ledger wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hocket.core.data import Trial
from hocket.errors import RunFolderError, UsageError
from hocket.results.comparing.compare import RunComparison, compare_runs
from hocket.results.comparing.sequential import PairedSequentialTest
from hocket.results.comparing.side import Side
from hocket.results.comparing.tango import p_value
from support.recorded_runs import ERROR, FAILURE, FINISHED, SUCCESS, Choice, plan, record_run

TASKS = ["push", "reach"]


def good(trial: Trial) -> Any:
    return SUCCESS


def half(trial: Trial) -> Any:
    return SUCCESS if trial.seed % 2 else FAILURE


class Two:
    """Two run folders, made on demand."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def side(
        self, name: str, choice: Choice, trials: Sequence[Trial] | None = None, **more: Any
    ) -> Side:
        planned = plan(TASKS, 10) if trials is None else trials
        return Side.open(record_run(self._root / name, planned, choice, chunks=1, **more))


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


def test_difference_is_of_a_less_b_over_pairs(two: Two) -> None:
    found = compare_runs(two.side("a", good), two.side("b", half))
    overall = found.comparison.overall
    assert (overall.n, overall.a, overall.b, overall.value) == (20, 1.0, 0.5, 0.5)
    # Both tasks win at the same seeds: ten pairs of them say no more than five do.
    assert overall.p_value == pytest.approx(p_value(5, 0, 10))
    assert overall.test == "Tango's score test by seed"
    assert found.pairs is not None
    assert (found.pairs.both, found.pairs.only_a, found.pairs.only_b) == (10, 10, 0)
    assert found.comparison.verdict == "undecided"
    apart = [replace(side, independent_starts=True) for side in (found.a, found.b)]
    assert compare_runs(*apart).comparison.verdict == "a better"
    assert [task.task for task in found.comparison.tasks] == TASKS
    assert all(task.n == 10 and task.value == 0.5 for task in found.comparison.tasks)


def test_same_run_twice_shows_no_difference_and_no_need_of_more(two: Two) -> None:
    side = two.side("a", half)
    found = compare_runs(side, side)
    assert found.comparison.overall.value == 0
    assert "Undecided at n = 20 pairs" in found.sentence
    assert "would take" not in found.sentence


def test_small_difference_is_undecided_and_says_how_many_pairs_it_takes(two: Two) -> None:
    rare = two.side("a", lambda trial: FAILURE if trial.seed == 3 else SUCCESS)
    found = compare_runs(two.side("b", good), rare)
    assert found.comparison.verdict == "undecided"
    assert "Undecided at n = 20 pairs" in found.sentence
    assert f"would take about n = {found.comparison.needed}" in found.sentence


def test_different_step_limits_are_refused_even_for_common_trials(two: Two) -> None:
    a = two.side("a", good, config={"max_steps": 100})
    b = two.side("b", good, config={"max_steps": None})
    for common in (False, True):
        with pytest.raises(UsageError, match="max_steps is 100 in a, not set in b"):
            compare_runs(a, b, common=common)


def test_env_settings_that_differ_are_refused_by_name(two: Two) -> None:
    a = two.side("a", good, config={"env": ["m:x"], "env_config": {"size": 3, "same": 1}})
    b = two.side("b", good, config={"env": ["m:x"], "env_config": {"same": 1}})
    with pytest.raises(UsageError, match="env setting size is 3 in a, not set in b") as caught:
        compare_runs(a, b)
    assert "same" not in str(caught.value).split("since")[1]


def test_setting_spelled_out_is_the_same_as_its_default(two: Two) -> None:
    a = two.side("a", good, config={"env": ["toy:image"], "env_config": {"image_size": 32}})
    b = two.side("b", good, config={"env": ["toy:image"]})
    assert compare_runs(a, b).comparison.overall.n == 20
    c = two.side("c", good, config={"env": ["toy:image"], "env_config": {"image_size": 64}})
    with pytest.raises(UsageError, match="env setting image_size is 64 in a, 32 in b"):
        compare_runs(c, b)


def test_settings_of_the_policy_may_differ(two: Two) -> None:
    a = two.side("a", good, config={"replan": 4, "policy_config": {"path": "x"}})
    b = two.side("b", good, config={"lanes": 3, "policy": "other"})
    assert compare_runs(a, b).comparison.overall.n == 20


def test_other_seeds_are_refused_and_common_ones_compared_on_request(two: Two) -> None:
    a, b = two.side("a", good), two.side("b", half, plan(TASKS, 6))
    with pytest.raises(UsageError, match=r"only a has seeds 6 to 9\. --common"):
        compare_runs(a, b)
    found = compare_runs(a, b, common=True)
    assert found.comparison.overall.n == 12
    assert any("Only the 12 trials that both planned" in note for note in found.notes)


def test_other_tasks_are_refused_by_name(two: Two) -> None:
    a, b = two.side("a", good), two.side("b", good, plan(["push", "pull"], 10))
    with pytest.raises(UsageError, match="only a has task toy / reach; only b has task toy / pull"):
        compare_runs(a, b)


def test_runs_without_a_common_trial_are_refused_even_on_request(two: Two) -> None:
    a, b = two.side("a", good), two.side("b", good, plan(["pull"], 3))
    with pytest.raises(UsageError, match="no trial in common"):
        compare_runs(a, b, common=True)


def test_errors_leave_their_pairs_and_are_counted(two: Two) -> None:
    a = two.side("a", lambda trial: ERROR if trial.seed == 0 else SUCCESS)
    b = two.side("b", lambda trial: ERROR if trial.seed in (0, 1) else SUCCESS)
    found = compare_runs(a, b)
    assert found.comparison.overall.n == 16
    assert found.excluded.errors == 4
    assert any("2 of a's trials are errors, 4 of b's" in note for note in found.notes)


def test_tasks_keep_their_order_where_the_first_trial_is_an_error(two: Two) -> None:
    a = two.side("a", lambda t: ERROR if (t.task, t.seed) == ("push", 0) else SUCCESS)
    found = compare_runs(a, two.side("b", good))
    assert [task.task for task in found.comparison.tasks] == TASKS


def test_only_errors_leave_nothing_to_compare(two: Two) -> None:
    found = compare_runs(two.side("a", good), two.side("b", lambda _: ERROR))
    assert "Nothing to compare" in found.sentence
    assert found.to_json()["overall"]["difference"] is None


def test_unfinished_run_is_flagged_and_judged_by_a_test_for_many_looks(two: Two) -> None:
    a, b = two.side("a", good), two.side("b", half, ended=13)
    found = compare_runs(a, b)
    assert found.comparison.overall.n == 13
    assert found.excluded.pending == 7
    assert any("b is unfinished: 13 of 20" in note for note in found.notes)
    # Six whole rounds of both tasks have ended; b lost at the even seeds.
    won = [1.0] * 12
    lost = [float(seed % 2) for seed in range(6) for _ in TASKS]
    assert found.decision is not None
    assert found.decision.look == PairedSequentialTest(pairs_per_round=2).run(won, lost)
    assert found.comparison.overall.test == "Tango's score test by seed"


def test_finished_runs_need_no_sequential_test(two: Two) -> None:
    assert compare_runs(two.side("a", good), two.side("b", half)).decision is None


@pytest.mark.parametrize("swapped", [False, True])
def test_a_run_that_stopped_when_decided_gets_no_ordinary_p(two: Two, *, swapped: bool) -> None:
    a = two.side("a", half, plan(TASKS, 30))
    b = two.side("b", good, plan(TASKS, 30), config={"until": "decided", "against": "runs/a"})
    found = compare_runs(b, a) if swapped else compare_runs(a, b)
    decision, overall = found.decision, found.comparison.overall
    assert decision is not None
    assert overall.p_value == decision.look.p_value
    assert overall.p_value > 10 * p_value(30, 0, 60)
    assert all(task.p_value is None for task in found.comparison.tasks)
    assert overall.interval is not None
    assert overall.interval.method == "betting"
    assert found.verdict == ("a better" if swapped else "b better")
    assert f"Decided at look {decision.look.number}" in found.sentence
    assert "Tango" not in found.results().text() + found.sentence + " ".join(found.notes)
    assert any("biased" in note for note in found.notes)
    document = found.to_json()
    assert document["verdict"] == found.verdict
    assert document["sequential"]["look"]["p_value"] == overall.p_value
    new_tasks = compare_runs(a, b, tasks_as="clusters").comparison.overall
    assert (new_tasks.p_value, new_tasks.interval) == (None, None)


def test_starts_that_are_declared_independent_are_bet_on_pair_by_pair(two: Two) -> None:
    config = {"until": "decided", "against": "runs/a"}
    a, b = two.side("a", half, plan(TASKS, 30)), two.side("b", good, plan(TASKS, 30), config=config)
    known = [replace(side, independent_starts=True) for side in (a, b)]
    by_round, by_pair = compare_runs(a, b).decision, compare_runs(*known).decision
    assert by_round is not None
    assert by_pair is not None
    assert "mean of each round" in by_round.test
    assert "every pair of independent starts" in by_pair.test
    assert by_pair.look.number < by_round.look.number


def test_a_verdict_that_errors_as_failures_would_change_is_told(two: Two) -> None:
    """a's failures crash, and so leave no pair."""
    a = two.side("a", lambda t: ERROR if t.seed < 10 else SUCCESS, plan(TASKS, 20))
    b = two.side("b", lambda t: SUCCESS if t.seed < 14 else FAILURE, plan(TASKS, 20))
    found = compare_runs(a, b)
    assert found.verdict == "a better"
    assert found.errors_failed is not None
    assert found.errors_failed.verdict == "undecided"
    assert found.errors_failed.overall.n == 40
    (note,) = [note for note in found.notes if "left out: an error" in note]
    assert "20 trials are left out" in note
    assert "the verdict changes: a - b is -20.0 points, undecided" in note
    assert found.to_json()["errors_as_failures"]["verdict"] == "undecided"


def test_a_verdict_that_stands_with_errors_as_failures_is_told(two: Two) -> None:
    a = two.side("a", lambda t: ERROR if t.seed == 0 else SUCCESS, plan(TASKS, 20))
    found = compare_runs(a, two.side("b", half, plan(TASKS, 20)))
    assert any("the verdict stands" in note for note in found.notes)


def test_returns_are_compared_where_nothing_can_succeed(two: Two) -> None:
    a, b = two.side("a", lambda _: FINISHED), two.side("b", lambda _: FINISHED)
    found = compare_runs(a, b)
    assert found.comparison.of == "return"
    assert found.pairs is None
    assert found.comparison.overall.n == 20


def test_trial_judged_on_one_side_only_makes_no_pair(two: Two) -> None:
    a = two.side("a", lambda trial: FINISHED if trial.seed == 0 else SUCCESS)
    found = compare_runs(a, two.side("b", good))
    assert found.comparison.overall.n == 18
    assert found.excluded.unlike == 2


def test_exactness_of_both_is_stated(two: Two) -> None:
    a = two.side("a", good, about={"exactness": "environment"})
    b = two.side("b", good, about={"exactness": "bitwise"})
    text = " ".join(compare_runs(a, b).notes)
    assert "Exactness of a is environment" in text
    assert "Exactness of b is bitwise" in text


def test_other_simulators_are_noted_but_another_python_is_not(two: Two) -> None:
    a = two.side("a", good, about={"versions": {"python": "3.11", "mujoco": "3.3.0"}})
    b = two.side("b", good, about={"versions": {"python": "3.12", "mujoco": "3.4.0"}})
    text = " ".join(compare_runs(a, b).notes)
    assert "mujoco is 3.3.0 in a, 3.4.0 in b" in text
    assert "python" not in text


def test_tasks_as_clusters_is_a_claim_about_new_tasks(two: Two) -> None:
    found: RunComparison = compare_runs(
        two.side("a", good), two.side("b", half), tasks_as="clusters"
    )
    assert "a claim about new tasks like these" in found.results().text()
    assert found.to_json()["claim"] == "about new tasks like these"
    assert "tasks_needed" in found.to_json()


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError):
        Side.open(tmp_path)
