from __future__ import annotations

import pytest

from hocket.core.data import Episode, Outcome, Trial
from hocket.errors import ConfigError
from hocket.records.video.selection import Orders, Wish, is_filmed_later

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
    chosen = Wish.parse("first:2").episodes(PLANNED, ended(Outcome.SUCCESS))
    assert [(e.trial.suite, e.trial.task, e.trial.seed) for e in chosen] == [
        (trial.suite, trial.task, trial.seed) for trial in PLANNED if trial.seed < 2
    ]
    assert Wish.parse("first:0").episodes(PLANNED, ended(Outcome.SUCCESS)) == []


def test_failures_are_failures_alone() -> None:
    wish = Wish.parse("failures")
    assert len(wish.episodes(PLANNED, ended(Outcome.FAILURE))) == 9
    for outcome in (Outcome.SUCCESS, Outcome.FINISHED, Outcome.ERROR):
        assert wish.episodes(PLANNED, ended(outcome)) == []


def test_errors_have_nothing_to_film() -> None:
    assert Wish.parse("all").episodes(PLANNED, ended(Outcome.ERROR)) == []
    assert len(Wish.parse("all").episodes(PLANNED, ended(Outcome.FINISHED))) == 9
    assert Wish.parse("none").episodes(PLANNED, ended(Outcome.SUCCESS)) == []


@pytest.mark.parametrize("text", ["", "first", "first:", "first:-1", "last:2", "some", "ALL"])
def test_other_wishes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="none, first:N"):
        Wish.parse(text)


def test_sinks_are_asked_for_video_only_where_it_is_wanted() -> None:
    orders = Orders(Wish.parse("first:1"), PLANNED, images=False)
    asked = [dict(orders(trial, 0)) for trial in PLANNED]
    assert asked == [{"video": "all"}] * 3 + [{}] * 6
    assert Orders(Wish.parse("failures"), PLANNED, images=False)(PLANNED[5], 2) == {
        "video": "failures"
    }
    assert Orders(Wish.parse("none"), PLANNED, images=True)(PLANNED[0], 0) == {"images": "all"}


def test_trials_that_are_planned_later_count_too() -> None:
    planned = PLANNED[:3]
    orders = Orders(Wish.parse("first:2"), planned, images=False)
    assert orders(PLANNED[0], 0)
    planned.extend(PLANNED[3:])
    assert orders(PLANNED[3], 0)
    assert not orders(PLANNED[6], 0)


def test_only_what_can_be_restored_and_observed_is_filmed_later() -> None:
    assert is_filmed_later(("deferred", "snapshot", "cameras"))
    assert not is_filmed_later(("snapshot",))
    assert not is_filmed_later(("deferred", "cameras"))
    assert not is_filmed_later(("deferred", "snapshot", "batched"))
