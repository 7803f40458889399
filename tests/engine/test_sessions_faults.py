"""A policy that keeps state and raises for one row, after it has moved all rows of the batch on."""

from __future__ import annotations

import pytest

import hocket
from hocket.core.data import Outcome
from hocket.core.events import AttemptFailed
from hocket.engine.inferring.suspects import Suspects
from support.batch_policies import Counting
from support.heard import Heard

# Rows of one simulator come back together, so that batches hold several whatever the machine does.
ENV = "support.row_toys:RowToys"
BAD = f"{ENV}/walk/3"


def run(policy: Counting, retries: int, *readers: Heard) -> hocket.Report:
    return hocket.evaluate(
        env=ENV, policy=policy, episodes=5, lanes=5, retries=retries, readers=readers
    )


def results(report: hocket.Report) -> dict[str, tuple[str, int, float]]:
    return {e.trial.id: (e.outcome.value, e.steps, e.total_reward) for e in report.episodes}


@pytest.fixture(scope="module")
def untroubled() -> dict[str, tuple[str, int, float]]:
    return results(run(Counting(), 0))


def test_one_bad_row_changes_no_other_trial_and_alone_spends_retries(
    untroubled: dict[str, tuple[str, int, float]],
) -> None:
    policy, heard = Counting(BAD), Heard()
    report = run(policy, 1, heard)
    found = results(report)
    assert [e.trial.id for e in report.episodes if e.outcome is Outcome.ERROR] == [BAD]
    assert {t: r for t, r in found.items() if t != BAD} == {
        t: r for t, r in untroubled.items() if t != BAD
    }
    # Once with its batch, then alone: its first attempt for real, and its one retry.
    lost = [event.trial.id for event in heard.of(AttemptFailed)]
    assert lost.count(BAD) == 3
    others = set(lost) - {BAD}
    assert others, "the batch that raised had one row, so that nothing was tested"
    assert all(lost.count(trial) == 1 for trial in others)
    (episode,) = (e for e in report.episodes if e.trial.id == BAD)
    assert "The policy cannot answer" in (episode.error or "")


def test_a_fault_that_does_not_come_back_costs_nobody_anything(
    untroubled: dict[str, tuple[str, int, float]],
) -> None:
    policy, heard = Counting(BAD, raises=1), Heard()
    assert results(run(policy, 0, heard)) == untroubled
    assert BAD in [event.trial.id for event in heard.of(AttemptFailed)]


def test_the_rows_of_a_failed_batch_are_inferred_alone_until_the_culprit_is_known() -> None:
    policy = Counting(BAD)
    run(policy, 0)
    together, alone = policy.raised
    members = policy.batches[together]
    assert len(members) > 1
    assert policy.batches[alone] == (BAD,)
    for trials in policy.batches[together + 1 : alone]:
        assert len(trials) == 1 or not set(members) & set(trials)
    assert all(BAD not in trials for trials in policy.batches[alone + 1 :])


def test_suspects_are_alone_until_one_is_convicted_and_the_culprit_for_good() -> None:
    suspects = Suspects()
    suspects.add(["a", "b", "c"])
    suspects.add(["x", "y"])
    assert all(map(suspects.is_alone, "abcxy"))
    suspects.acquit("c")
    assert not suspects.is_alone("c")
    assert suspects.convict("b") == {"a"}
    assert [suspects.is_alone(each) for each in "abcxy"] == [False, True, False, True, True]
    suspects.acquit("b")
    assert suspects.is_alone("b")
    assert suspects.convict("z") == set()
