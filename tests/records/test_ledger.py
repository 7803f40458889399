"""The ledger plans, numbers attempts before they run, and commits each episode once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.core.contracts.recorder import Durable
from hocket.core.data import Episode, Outcome, Trial
from hocket.errors import RunFolderError
from hocket.records.ledger.ledger import Ledger
from hocket.records.ledger.view import Failure, LedgerView
from hocket.records.ledger.writer import LedgerConfig
from support.synthetic_run import ENDED, QUICK, began, episode_of, failed, plan, sealed

LATER = LedgerConfig(group_s=60)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def ledger(root: Path) -> Iterator[Ledger]:
    with Ledger.create(root, plan(6), {"policy": "toy", "seeds": [1, 2]}, config=QUICK) as made:
        yield made


# -- planning ------------------------------------------------------------------------------------


def test_new_ledger_holds_the_plan_in_order(ledger: Ledger) -> None:
    assert ledger.trials() == plan(6)
    assert ledger.remaining() == plan(6)
    assert ledger.episodes() == []
    assert ledger.next_attempts() == {}
    assert ledger.meta() == {"policy": "toy", "seeds": [1, 2]}


def test_what_is_kept_with_the_run_later_replaces_what_was_kept_before(root: Path) -> None:
    with Ledger.create(root, plan(1), {"config": {}}) as ledger:
        ledger.keep("decision", {"p": 0.5})
        ledger.keep("decision", {"p": 0.04})
    with LedgerView.open(root) as view:
        assert view.meta() == {"config": {}, "decision": {"p": 0.04}}


def test_trial_planned_twice_is_planned_once(root: Path) -> None:
    with Ledger.create(root, [*plan(2), *plan(3)], {}) as ledger:
        assert ledger.trials() == plan(3)


def test_added_trials_follow_the_planned_ones(ledger: Ledger) -> None:
    assert ledger.add_trials(plan(8)) == plan(8)[6:]
    ledger.on(began(plan(8)[7]))
    ledger.on(sealed(episode_of(plan(8)[7], 0)))
    ledger.on(ENDED)
    assert ledger.trials() == plan(8)
    assert ledger.remaining() == plan(7)


def test_trials_that_would_share_a_folder_are_refused(root: Path) -> None:
    alike = [Trial(suite="a", task="b-c", seed=0), Trial(suite="a-b", task="c", seed=0)]
    with pytest.raises(RunFolderError, match="a-b/c/0 has the folder name"):
        Ledger.create(root, alike, {})
    with (
        Ledger.create(root, alike[:1], {}) as ledger,
        pytest.raises(RunFolderError, match="folder name"),
    ):
        ledger.add_trials(alike)


def test_tasks_that_differ_by_dashes_alone_share_a_folder_at_some_seed(root: Path) -> None:
    alike = [Trial(suite="a", task="b-", seed=2), Trial(suite="a", task="b", seed=-2)]
    with pytest.raises(RunFolderError, match="a/b/-2 has the folder name"):
        Ledger.create(root, alike, {})


def test_seed_too_large_for_the_file_is_refused(root: Path) -> None:
    with pytest.raises(RunFolderError, match="63 bits"):
        Ledger.create(root, [Trial(suite="a", task="b", seed=2**64)], {})
    assert not (root / "ledger.sqlite").exists()


# -- attempts and episodes -----------------------------------------------------------------------


def test_attempt_numbers_are_committed_before_the_event_returns(ledger: Ledger, root: Path) -> None:
    ledger.on(began(*plan(2)))
    with LedgerView.open(root) as other:
        assert other.next_attempts() == {trial.id: 1 for trial in plan(2)}


def test_attempt_number_cannot_be_begun_twice(ledger: Ledger) -> None:
    ledger.on(began(plan(1)[0]))
    with pytest.raises(RunFolderError, match="UNIQUE"):
        ledger.on(began(plan(1)[0]))


def test_episode_comes_back_as_it_was(ledger: Ledger, root: Path) -> None:
    trial, other = plan(2)
    odd = Episode(
        trial=trial,
        attempt=0,
        outcome=Outcome.ERROR,
        steps=0,
        total_reward=math.inf,
        error="Traceback ...\n  ümlaut",
        files=("episodes/x/0/front camera.mp4",),
    )
    ledger.on(began(trial, other))
    ledger.on(sealed(odd, episode_of(other, 0)))
    ledger.on(ENDED)
    assert ledger.episodes() == [odd, episode_of(other, 0)]
    ledger.close()
    with Ledger.open(root) as again:
        assert again.episodes() == [odd, episode_of(other, 0)]
        assert again.remaining() == plan(6)[2:]


def test_return_that_is_no_number_stays_no_number(ledger: Ledger) -> None:
    trial = plan(1)[0]
    ledger.on(began(trial))
    nan = Episode(trial=trial, attempt=0, outcome=Outcome.FINISHED, steps=1, total_reward=math.nan)
    ledger.on(sealed(nan))
    ledger.on(ENDED)
    assert math.isnan(ledger.episodes()[0].total_reward)


def test_second_episode_of_a_trial_is_not_counted(ledger: Ledger) -> None:
    trial = plan(1)[0]
    ledger.on(began(trial))
    ledger.on(sealed(episode_of(trial, 0)))
    ledger.on(sealed(episode_of(trial, 0)))
    ledger.on(ENDED)
    assert ledger.episodes() == [episode_of(trial, 0)]


def test_episode_of_a_lost_attempt_is_not_counted(ledger: Ledger) -> None:
    trial = plan(1)[0]
    ledger.on(began(trial))
    ledger.on(failed(trial, 0, again=True))
    ledger.on(sealed(episode_of(trial, 0)))
    ledger.on(began(trial, attempt=1))
    ledger.on(sealed(episode_of(trial, 0)))
    ledger.on(sealed(episode_of(trial, 1)))
    ledger.on(ENDED)
    assert ledger.episodes() == [episode_of(trial, 1)]
    assert ledger.failures() == [Failure(trial=trial, attempt=0, error="it broke")]


def test_last_failure_of_a_trial_is_its_episode(ledger: Ledger) -> None:
    trial = plan(1)[0]
    error = Episode(
        trial=trial, attempt=0, outcome=Outcome.ERROR, steps=0, total_reward=0.0, error="it broke"
    )
    ledger.on(began(trial))
    ledger.on(failed(trial, 0, again=False))
    ledger.on(sealed(error))
    ledger.on(ENDED)
    assert ledger.episodes() == [error]


def test_trial_with_an_episode_cannot_begin_again(ledger: Ledger) -> None:
    trial = plan(1)[0]
    ledger.on(began(trial))
    ledger.on(sealed(episode_of(trial, 0)))
    with pytest.raises(RunFolderError, match="has its episode already"):
        ledger.on(began(trial, attempt=1))


def test_episode_without_an_attempt_is_refused(ledger: Ledger) -> None:
    with pytest.raises(RunFolderError, match="before an attempt at it began"):
        ledger.on(sealed(episode_of(plan(1)[0], 0)))


def test_trial_that_is_not_planned_is_refused(ledger: Ledger) -> None:
    with pytest.raises(RunFolderError, match="not planned"):
        ledger.on(began(Trial(suite="toy", task="other", seed=0)))


def test_resumed_run_numbers_attempts_on(ledger: Ledger, root: Path) -> None:
    ledger.on(began(*plan(3)))
    ledger.on(sealed(episode_of(plan(1)[0], 0)))
    ledger.close()
    with Ledger.open(root) as again:
        assert again.leg == ledger.leg + 1
        assert again.remaining() == plan(6)[1:]
        assert again.next_attempts() == {trial.id: 1 for trial in plan(3)}


def test_finished_episodes_wait_for_their_group(root: Path) -> None:
    with Ledger.create(root, plan(2), {}, config=LATER) as ledger:
        ledger.on(began(*plan(2)))
        ledger.on(sealed(episode_of(plan(2)[0], 0)))
        assert ledger.episodes() == []
        ledger.flush()
        assert ledger.episodes() == [episode_of(plan(2)[0], 0)]
        ledger.on(sealed(episode_of(plan(2)[1], 0)))
    with LedgerView.open(root) as view:
        assert len(view.episodes()) == 2


def test_ledger_is_behind_while_too_many_episodes_wait(root: Path) -> None:
    with Ledger.create(root, plan(3), {}, config=LedgerConfig(group_s=60, max_pending=2)) as ledger:
        assert isinstance(ledger, Durable)
        ledger.on(began(*plan(3)))
        ledger.on(sealed(episode_of(plan(3)[0], 0)))
        assert not ledger.behind()
        ledger.on(sealed(episode_of(plan(3)[1], 0)))
        assert ledger.behind()
        ledger.flush()
        assert not ledger.behind()
