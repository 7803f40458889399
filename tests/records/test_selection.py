from __future__ import annotations

import pytest

from hocket.core.data import Episode, Outcome, Trial
from hocket.errors import ConfigError
from hocket.records.video.films import VideoPlan
from hocket.records.video.selection import VideoSelection
from hocket.workers.sinks.video import is_rendered_later

PLANNED = [
    Trial(suite=suite, task=task, seed=seed)
    for seed in range(3)
    for suite, task in (("a", "push"), ("a", "pull"), ("b", "push"))
]


def ended(outcome: Outcome) -> list[Episode]:
    return [
        Episode(trial=trial, attempt=0, outcome=outcome, steps=1, total_reward=0.0)
        for trial in PLANNED
    ]


def test_first_n_counts_each_task_of_each_suite_in_planned_order() -> None:
    chosen = VideoSelection.parse("first:2").episodes(PLANNED, ended(Outcome.SUCCESS))
    assert [(e.trial.suite, e.trial.task, e.trial.seed) for e in chosen] == [
        (trial.suite, trial.task, trial.seed) for trial in PLANNED if trial.seed < 2
    ]
    assert VideoSelection.parse("first:0").episodes(PLANNED, ended(Outcome.SUCCESS)) == []


def test_failures_are_failures_alone() -> None:
    failures = VideoSelection.parse("failures")
    assert len(failures.episodes(PLANNED, ended(Outcome.FAILURE))) == 9
    for outcome in (Outcome.SUCCESS, Outcome.FINISHED, Outcome.ERROR):
        assert failures.episodes(PLANNED, ended(outcome)) == []


def test_few_are_three_failures_and_one_success_of_each_task_failures_first() -> None:
    planned = [Trial(suite="a", task=task, seed=seed) for seed in range(9) for task in ("x", "y")]
    ended = [
        Episode(
            trial=trial,
            attempt=0,
            outcome=Outcome.FAILURE if trial.task == "y" and trial.seed > 2 else Outcome.SUCCESS,
            steps=1,
            total_reward=0.0,
        )
        for trial in planned
    ]
    few = VideoSelection.parse("few")
    chosen = [(e.trial.task, e.trial.seed) for e in few.episodes(planned, ended)]
    assert chosen == [("y", 3), ("y", 4), ("y", 5), ("x", 0), ("y", 0)]
    plan = VideoPlan(few, planned, images=False)
    asked = [plan(trial, 0) for trial in planned]
    assert {each["video"] for each in asked} == {"any"}
    # Only one of each task is drawn for a film alone, before it is known what that costs.
    assert sum(each["drawn"] for each in asked) == 2


def test_errors_have_no_video() -> None:
    assert VideoSelection.parse("all").episodes(PLANNED, ended(Outcome.ERROR)) == []
    assert len(VideoSelection.parse("all").episodes(PLANNED, ended(Outcome.FINISHED))) == 9
    assert VideoSelection.parse("none").episodes(PLANNED, ended(Outcome.SUCCESS)) == []


@pytest.mark.parametrize("text", ["", "first", "first:", "first:-1", "last:2", "some", "ALL"])
def test_other_selections_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="none, first:N"):
        VideoSelection.parse(text)


def test_sinks_are_asked_for_video_only_where_it_is_wanted() -> None:
    plan = VideoPlan(VideoSelection.parse("first:1"), PLANNED, images=False)
    asked = [dict(plan(trial, 0)) for trial in PLANNED]
    assert asked == [{"video": "all"}] * 3 + [{}] * 6
    assert VideoPlan(VideoSelection.parse("failures"), PLANNED, images=False)(PLANNED[5], 2) == {
        "video": "failures"
    }
    assert VideoPlan(VideoSelection.parse("none"), PLANNED, images=True)(PLANNED[0], 0) == {
        "images": "all"
    }


def test_trials_that_are_planned_later_count_too() -> None:
    planned = PLANNED[:3]
    plan = VideoPlan(VideoSelection.parse("first:2"), planned, images=False)
    assert plan(PLANNED[0], 0)
    planned.extend(PLANNED[3:])
    assert plan(PLANNED[3], 0)
    assert not plan(PLANNED[6], 0)


def test_only_what_can_be_restored_and_observed_is_rendered_later() -> None:
    assert is_rendered_later(("deferred", "snapshot", "cameras"))
    assert not is_rendered_later(("snapshot",))
    assert not is_rendered_later(("deferred", "cameras"))
    assert not is_rendered_later(("deferred", "snapshot", "batched"))
